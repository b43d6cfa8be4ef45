"""Loading a server that somebody else started: one run, stored and analysed like any other."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adapters.attach import Attached
from harness import __version__
from harness.environment import git_commit, host_facts
from harness.play import Answered, Played, play_http
from harness.question import Question, question_of
from harness.request_body import Asking
from harness.spec import AnyWorkload, Load
from harness.sweep import difference
from results.analysis import write_summary
from results.store import create_sweep, write_run, write_sweep

_UNBOUNDED_TOKENS = 1 << 20  # where the server does not tell how long a request may be
_BLOCK_TOKENS = 16  # in which the prefix hits of a server that does not tell are counted
_RUN = "load"  # the key of the one run
_WARMUP_SEED = 0x7761726D  # another draw than any that is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """What is asked of a server that runs."""

    endpoint: Attached
    workload: AnyWorkload
    workload_kind: str
    load: Load
    seed: int
    warmup: int  # requests before the measured ones, of other texts
    timeout_s: float | None  # for one request
    out: Path | None  # None: nothing is kept


def load_server(order: LoadOrder, answered: Answered) -> dict[str, Any]:
    """Return the summary of one run against the server; written to `out` where it is given.

    Raises `WorkloadError`, `EngineError` or `StoreError` before anything is sent.
    """
    question = _question(order, order.load, order.seed)
    with ExitStack() as kept:
        folder = order.out or Path(kept.enter_context(tempfile.TemporaryDirectory())) / "load"
        create_sweep(folder)
        ramp_ns = _warm_up(order)
        before = order.endpoint.counters()
        started = datetime.now(UTC)
        run = _play(order, question, ramp_ns, answered)
        counters = difference(before, order.endpoint.counters())
        write_sweep(folder, _document(order, started))
        manifest = _manifest(order, question, run, started) | {"counters": asdict(counters)}
        write_run(folder, _RUN, manifest, run.records)
        return write_summary(folder).summary


def _question(order: LoadOrder, load: Load, seed: int) -> Question:
    limit = order.endpoint.max_model_len or _UNBOUNDED_TOKENS
    return question_of(order.workload, load, seed=seed, max_model_len=limit)


def _play(order: LoadOrder, question: Question, ramp_ns: int, answered: Answered) -> Played:
    asking = Asking(seed=order.seed, timeout_s=order.timeout_s)
    schedule = question.schedule(order.load, ramp_ns)
    return play_http(order.endpoint.target, schedule, question.conversations, answered, asking)


def _warm_up(order: LoadOrder) -> int:
    """Send the requests that are not measured; return their mean time, over which slots start.

    Without a warm-up nothing is known of the server, and all slots start at once.
    """
    if not order.warmup:
        return 0
    slots = order.load.concurrency or 1
    load = Load(mode="concurrency", arrivals="closed", concurrency=slots, requests=order.warmup)
    question = _question(order, load, order.seed ^ _WARMUP_SEED)
    records = _play(replace(order, load=load), question, 0, lambda _: None).records
    times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
    return sum(times) // len(times) if times else 0


def _document(order: LoadOrder, started: datetime) -> dict[str, Any]:
    return {
        "name": "load",
        "created": started.isoformat(timespec="seconds"),
        "model": order.endpoint.target.model,
        "hardware": {"gpu": "unknown", "count": None},
        "seed": order.seed,
        "slo": None,
        "harness_version": __version__,
        "planned": [],
    }


def _manifest(
    order: LoadOrder, question: Question, played: Played, started: datetime
) -> dict[str, Any]:
    endpoint = order.endpoint
    failed = sum(one.error_kind is not None for one in played.records)
    return {
        "key": _RUN,
        "arm": "baseline",
        "toggles": {},
        "flipped": {},
        "block": 0,
        "engine": "url",
        "label": "url",
        "engine_version": endpoint.engine_version,
        "engine_kind": endpoint.engine_kind,
        "model": endpoint.target.model,
        "workload": order.workload.name,
        "workload_kind": order.workload_kind,
        "load": {**order.load.facts(), "warmup_requests": order.warmup},
        "seed": order.seed,
        "status": "failed" if failed else "ok",
        "reason": f"{failed} of {len(played.records)} requests failed" if failed else None,
        "max_failed_share": 0.0,  # a load that lost a request exits with 1
        "clock": played.clock,
        "clock_origin_ns": played.origin_ns,
        "started": started.isoformat(timespec="seconds"),
        "prefix_hit_ceiling": question.prefix_hit_ceiling(_BLOCK_TOKENS),
        "skipped_rows": question.skipped,
        "notes": [*question.notes, *played.notes],
        "facts": dict(endpoint.facts()),
        "host": host_facts(),
        "harness_version": __version__,
        "git_commit": git_commit(),
    }
