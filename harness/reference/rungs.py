"""The rungs of a calibration: increasing load of this client on the reference server.

The client is the one that runs use, in this process. The server is another process, on its own core
if there are two or more.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.adapters import EngineError
from harness.calibration import MedianAndP99, Rung
from harness.client import allow_open_files
from harness.load import OWN_FILES, LoadResult, RequestSet, play_http, request_set_of
from harness.reference.log import ReferenceLog
from harness.reference.process import ReferenceProcess, reference_process
from harness.reference.stamp_errors import stamp_errors
from harness.results import needed_samples
from harness.sweep_file import Load
from harness.workloads import Fixed, SharedPrefix

STREAMS = (16, 64, 128, 256, 512)  # concurrency of each rung
TTFT_MS, ITL_MS = 50.0, 10.0
_PROMPT_TOKENS = 128
_OUTPUT_TOKENS, _FEW_TOKENS = 64, 16
_ROUNDS = 5  # minimum requests per stream
_REQUESTS = needed_samples(0.99)  # minimum requests per rung, for a reliable P99
_RUN_DELAY = Path("/proc/self/schedstat")  # ns on a CPU, ns waiting for one, number of slices


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of server and client; None: the system chooses."""

    server: int | None
    client: frozenset[int] | None


@contextlib.contextmanager
def cores() -> Iterator[Cores]:
    """Reserve one core for the server until the end of the block.

    With one core, or on a system without CPU affinity, server and client share all cores.
    """
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        yield Cores(None, None)
        return
    before = os.sched_getaffinity(0)
    server = max(before)
    os.sched_setaffinity(0, before - {server})
    try:
        yield Cores(server, frozenset(before - {server}))
    finally:
        os.sched_setaffinity(0, before)


def fits(streams: int) -> bool:
    """Return whether this process may open enough files for that many streams."""
    return allow_open_files(streams + OWN_FILES) >= streams + OWN_FILES


def rung(streams: int, server_core: int | None, *, requests: int | None = None) -> Rung:
    """Run one rung: `streams` concurrent streams with a token every 10 ms each.

    With few streams the requests are short, so that a rung has enough requests in a few seconds.
    Raises `EngineError` if the server does not start or a request fails.
    """
    requests = requests or max(_ROUNDS * streams, _REQUESTS)
    output_tokens = _OUTPUT_TOKENS if requests <= _ROUNDS * streams else _FEW_TOKENS
    ramp_ns = round(
        (TTFT_MS + ITL_MS * output_tokens) * 1e6
    )  # as in sweeps, streams start spread over one service time
    load = Load(mode="concurrency", arrivals="closed", concurrency=streams, requests=requests)
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS, cpu=server_core) as server:
        return measured(server, load, output_tokens=output_tokens, ramp_ns=ramp_ns)


def measured(
    server: ReferenceProcess,
    load: Load,
    *,
    output_tokens: int,
    ramp_ns: int = 0,
    workers: int = 1,
) -> Rung:
    """Run one closed loop on `server`, end the server, and return the measurements."""
    target, request_set = server.target(), _request_set(load, output_tokens)
    begun_s, queued_s = time.perf_counter(), _queued_s()
    schedule = request_set.schedule(load, ramp_ns)
    played = play_http(target, schedule, request_set.conversations, lambda _: None, workers=workers)
    wall_s = time.perf_counter() - begun_s
    queued = None if queued_s is None else ((_queued_s() or 0.0) - queued_s) / wall_s
    return _rung(load.concurrency or 1, played, queued, server.log())


def _queued_s() -> float | None:
    """Return how long this process has waited for a CPU in seconds; None if it is unknown."""
    try:
        return int(_RUN_DELAY.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _request_set(load: Load, output_tokens: int) -> RequestSet:
    workload = SharedPrefix(
        name="calibration",
        prefix_tokens=Fixed(_PROMPT_TOKENS // 2),
        suffix_tokens=Fixed(_PROMPT_TOKENS // 2),
        output_tokens=Fixed(output_tokens),
    )
    return request_set_of(workload, load, seed=0, max_model_len=1 << 20)


def _rung(streams: int, played: LoadResult, queued: float | None, log: ReferenceLog) -> Rung:
    failed = [record for record in played.records if record.error_kind is not None]
    if failed:
        error = EngineError(f"{len(failed)} of {len(played.records)} requests failed")
        error.add_note(f"first failure: {failed[0].error_kind}: {failed[0].error}")
        raise error
    errors = stamp_errors(played.records, played.origin_ns, log)
    return Rung(
        streams=streams,
        requests=len(played.records),
        tokens=len(errors.each_ms),
        tokens_per_s=_steady_tokens_per_s(log),
        client_cores=_cores_used((played.client or {}).get("workers", [])),
        client_queued=queued,
        first_ms=MedianAndP99.of(errors.first_ms),
        last_ms=MedianAndP99.of(errors.last_ms),
        each_ms=MedianAndP99.of(errors.each_ms),
        wait_ms=MedianAndP99.of(errors.wait_ms),
        server_late_ms=MedianAndP99.of(np.array(log.lateness_ns()) / 1e6),
        server_sending_ms=MedianAndP99.of(np.array([*log.sending_ns().values()]) / 1e6),
    )


def _steady_tokens_per_s(log: ReferenceLog) -> float:
    """Return tokens per second while all streams ran: first end of an answer to last request."""
    begin_ns = min(answer.sent_ns[-1] for answer in log.answers)
    end_ns = max(answer.received_ns for answer in log.answers)
    if end_ns <= begin_ns:  # one request per stream: use the whole time
        begin_ns = min(answer.received_ns for answer in log.answers)
        end_ns = max(answer.sent_ns[-1] for answer in log.answers)
    times_ns = np.concatenate([np.asarray(answer.sent_ns) for answer in log.answers])
    inside = (times_ns > begin_ns) & (times_ns <= end_ns)
    return float(np.count_nonzero(inside) / (end_ns - begin_ns) * 1e9)


def _cores_used(workers: Sequence[dict[str, Any]]) -> float | None:
    """Return the CPU cores that the client used during the load; None if it is unknown."""
    used = [(one["cpu_s"], one["wall_s"]) for one in workers if one.get("wall_s")]
    return sum(cpu_s / wall_s for cpu_s, wall_s in used) if used else None
