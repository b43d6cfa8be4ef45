"""Records and manifests with known times, for the tests of everything that reads the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.results.rows import planned_run
from harness.results.store.manifest import RunManifest, ToggleFlip, manifest_of
from harness.results.store.records import RequestRecord
from harness.results.summary import AnalysedRun, RunRow, Values

MS = 1_000_000  # nanoseconds


def known_record(
    index: int,
    events_ms: Sequence[tuple[float, int]] = (),
    *,
    scheduled_ms: float | None = None,
    sent_ms: float | None = 0.0,
    closed_ms: float | None = None,
    conversation: str | None = None,
    turn: int = 0,
    output_tokens: int | None = None,
    source: str | None = "usage",
    asked_tokens: int | None = None,
    prompt_tokens: int | None = 10,
    error_kind: str | None = None,
) -> RequestRecord:
    """Return a record whose events lie at `events_ms`: (ms since the run's start, tokens).

    Left out: due when sent, closed with the last event, as many tokens as the events hold.
    """
    last_ms = events_ms[-1][0] if events_ms else (sent_ms or 0.0)
    due_ms = scheduled_ms if scheduled_ms is not None else (sent_ms or 0.0)
    tokens = sum(held for _, held in events_ms) if output_tokens is None else output_tokens
    return RequestRecord(
        request_id=f"r{index:04}",
        conversation=conversation or f"c{index:04}",
        turn=turn,
        scheduled_ns=round(due_ms * MS),
        sent_ns=None if sent_ms is None else round(sent_ms * MS),
        first_byte_ns=None,
        token_events=np.array(
            [(round(time_ms * MS), held) for time_ms, held in events_ms], np.int64
        ).reshape(-1, 2),
        closed_ns=round((last_ms if closed_ms is None else closed_ms) * MS),
        prompt_tokens=prompt_tokens,
        output_tokens=None if source is None else tokens,
        output_tokens_source=source,
        asked_tokens=tokens if asked_tokens is None else asked_tokens,
        finish_reason="length" if error_kind is None else None,
        error_kind=error_kind,
    )


def steady_records(
    slots: int, rounds: int, *, service_ms: float = 100.0, scale: float = 1.0, tokens: int = 5
) -> list[RequestRecord]:
    """Return a closed loop of `slots` × `rounds` single turns, each of `service_ms` × `scale`.

    Slots start spread over one service time. The tokens of a request come evenly, the last at
    its end, so that the next request of the slot is sent when it comes.
    """
    length_ms = service_ms * scale
    return [
        known_record(
            turn * slots + slot,
            [(begin_ms + length_ms * (k + 1) / tokens, 1) for k in range(tokens)],
            sent_ms=begin_ms,
        )
        for turn in range(rounds)
        for slot in range(slots)
        for begin_ms in [length_ms * slot / slots + turn * length_ms]
    ]


CLOSED = {"mode": "concurrency", "value": 2, "requests": 8, "arrivals": "closed", "warmup": 0}
OPEN = {"mode": "rate", "value": 10.0, "requests": 8, "arrivals": "poisson", "warmup": 0}


def known_manifest(**changes: Any) -> RunManifest:
    """Return the manifest of a baseline run in closed loop at concurrency 2, with `changes`."""
    return manifest_of(manifest_facts(**changes))


def manifest_facts(**changes: Any) -> dict[str, Any]:
    """Return that manifest as plain values."""
    manifest: dict[str, Any] = {
        "format": 1,
        "key": "0123456789abcdef",
        "arm": "baseline",
        "block": 0,
        "engine": "embedded",
        "label": "embedded",
        "engine_version": "0.1.0",
        "engine_kind": "simulated",
        "model": "m",
        "hardware": {"gpu": "a100-80gb", "count": 4},
        "gpus": 4,
        "toggles": {"prefix_caching": "on"},
        "flipped": {},
        "workload": "chat",
        "load": CLOSED,
        "seed": 11,
        "status": "ok",
        "reason": None,
        "clock": "virtual",
        "client": None,
        "evidence": {},
        "counters": {},
        "prefix_hit_ceiling": None,
        "skipped_rows": {},
        "notes": [],
        "facts": {},
        "slo": {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None},
        "max_failed_share": 0.01,
        "price_per_gpu_hour": None,
    }
    return {**manifest, **changes}


def known_row(**changes: Any) -> RunRow:
    """Return the row of that run, as if it had come out ok, with `changes`."""
    row = planned_run(known_manifest()).row
    return replace(row, **{"status": "ok", "reason": None, **changes})


def analysed(values: Values, *, clock: str | None = None, **changes: Any) -> AnalysedRun:
    """Return a run with these metrics, its row with `changes`."""
    run = planned_run(known_manifest())
    return replace(run, row=known_row(**changes), metrics=values, clock=clock)


def flips(flipped: Mapping[str, Mapping[str, Any]]) -> dict[str, ToggleFlip]:
    """Return `flipped` of a row from plain values."""
    return {toggle: ToggleFlip(**flip) for toggle, flip in flipped.items()}


def known_worker(**changes: Any) -> dict[str, Any]:
    """Return what one client process noted of itself on a quiet machine, with `changes`."""
    worker: dict[str, Any] = {
        "cpu_s": 3.0,
        "wall_s": 30.0,
        "requests": 600,
        "loop_lag_ns": {"p50": 60_000, "p99": 300_000, "max": 2_000_000, "n": 4854},
        "read_on_the_clock": 0,
        "replaced_connections": 0,
    }
    return {**worker, **changes}


def known_client(*workers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return `client` of a manifest: of one process on a quiet machine, or as given."""
    client: dict[str, Any] = {
        "kind": "http",
        "workers": list(workers) or [known_worker()],
        "wall_clock_step_ns": 0,
        "open_files": {"limit": 65_536, "most": 66},
        "ports": {"available": 28_232, "used": 2},
        "calibration": None,
    }
    return {**client, **changes}


def late_client(p99_ms: float) -> dict[str, Any]:
    """Return `client` of a manifest whose event loop woke so late, at P99."""
    lag = {"p50": round(p99_ms * MS / 2), "p99": round(p99_ms * MS), "max": 2 * 10**9, "n": 900}
    return known_client(known_worker(loop_lag_ns=lag))
