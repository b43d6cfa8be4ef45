"""Checks of the load: whether what was asked was sent, and whether the engine kept up with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from results.backlog import Backlog, backlog_of
from results.doubt import Doubt
from results.metrics import RunFigures
from results.names import is_open_loop
from results.units import significant
from results.window import first_turn

_RUNS_FEWER = 0.9  # an engine that runs less of what is in flight than this makes the rest wait
_RATE_TOLERANCE = 0.02  # sends slower than the schedule by more than this were not delivered


def concurrency_not_reached(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Doubt a closed loop that never had so many conversations alive as were asked."""
    load = manifest["load"]
    if is_open_loop(load) or figures.requests.empty:
        return None
    peak = peak_conversations(figures.requests)
    if peak >= load["value"]:
        return None
    return Doubt(
        name="concurrency_not_reached",
        message=f"at most {peak} conversations were alive at once, {load['value']:g} were asked",
        remedy="ask for more requests, or for less concurrency",
    )


def engine_runs_fewer(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Say when the engine itself cannot run what was asked for: its queue is part of the TTFT.

    Where `batching` says so (one at a time, or a batch until it is done) that is no doubt.
    """
    load, facts = manifest["load"], manifest.get("facts") or {}
    batching = (manifest.get("toggles") or {}).get("batching")
    if is_open_loop(load) or batching == "none":
        return None
    limit = facts.get("running_limit")
    if limit is not None and load["value"] > limit:
        return Doubt(
            name="engine_runs_fewer",
            message=f"the engine runs at most {limit} sequences at once, {load['value']:g} were "
            "asked: the others wait in its queue",
            remedy="raise max_num_seqs, or max_batched_tokens: a step feeds each sequence a token, "
            "and its draft tokens",
        )
    return None if batching == "static" else _engine_full(figures, manifest)


def _engine_full(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Say when the engine ran fewer sequences than were in flight, though its limit allows them."""
    ran = (manifest.get("counters") or {}).get("peak_running")
    in_flight = peak_in_flight(figures.requests)
    if ran is None or ran >= _RUNS_FEWER * in_flight:
        return None
    tokens = (manifest.get("facts") or {}).get("kv_tokens")
    room = f" ({tokens:,} tokens)" if tokens else ""
    return Doubt(
        name="engine_runs_fewer",
        message=f"the engine ran at most {ran:g} sequences at once while {in_flight} requests were "
        f"in flight: its KV room{room} was full, the others waited in its queue",
        remedy="ask for less concurrency, or read TTFT and E2E as those of a full engine; more "
        "GPUs or a narrower KV cache make room",
    )


def peak_in_flight(requests: pd.DataFrame) -> int:
    """Return how many requests were under way at once at most."""
    return _peak(requests["placed_ns"], requests["closed_ns"])


def peak_conversations(requests: pd.DataFrame) -> int:
    """Return how many conversations were alive at once at most, think time included.

    One lives from its first send to its last end; one that ends as another begins is not counted
    with it.
    """
    spans = requests.groupby("conversation").agg({"placed_ns": "min", "closed_ns": "max"})
    return _peak(spans["placed_ns"], spans["closed_ns"])


def _peak(starts_ns: pd.Series[Any], ends_ns: pd.Series[Any]) -> int:
    times = np.concatenate([ends_ns, starts_ns])
    steps = np.concatenate([-np.ones(len(ends_ns)), np.ones(len(starts_ns))])
    order = np.argsort(times, kind="stable")  # ends come first among equals
    return int(np.cumsum(steps[order]).max(initial=0))


def load_not_delivered(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Hold the sends against the schedule, not the rate: a Poisson draw has a rate of its own."""
    if not is_open_loop(manifest["load"]):
        return None
    starts = figures.requests[first_turn(figures.requests)]
    if len(starts) < 2:
        return None
    wanted_ns, sent_ns = (float(np.ptp(starts[name])) for name in ("scheduled_ns", "placed_ns"))
    if wanted_ns <= 0 or sent_ns <= wanted_ns * (1 + _RATE_TOLERANCE):
        return None
    wanted, achieved = ((len(starts) - 1) / span * 1e9 for span in (wanted_ns, sent_ns))
    return Doubt(
        name="load_not_delivered",
        message=f"{achieved:.4g} conversations/s were started, the schedule has {wanted:.4g}",
        remedy="give the client more CPU or more connections; latencies count from the schedule",
    )


def overloaded(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Say when requests came faster than they were answered: the figures are of the backlog."""
    load = manifest["load"]
    backlog = backlog_of(figures.requests, figures.window) if is_open_loop(load) else None
    if backlog is None:
        return None
    return Doubt(
        name="overloaded",
        message="requests came faster than they were answered: half-way "
        f"{backlog.in_flight_middle} were in flight, {backlog.in_flight_end} when the last "
        f"conversation was due, and it took {significant(backlog.drain_s)} s more to answer them; "
        "the longer this load, the longer they wait",
        remedy=_lower(load, backlog, figures.requests),
    )


def _lower(load: Mapping[str, Any], backlog: Backlog, requests: pd.DataFrame) -> str:
    """Return what load the engine kept up with, in the words of the sweep file."""
    answered = backlog.answered_rps
    if load["mode"] == "trace":
        speedup = significant((load.get("speedup") or 1.0) * answered / backlog.due_rps)
        return (
            f"ask for a lower rate: about {significant(answered)} requests/s were answered, "
            f"which is speedup {speedup}"
        )
    starts_rps = answered * requests["conversation"].nunique() / len(requests)
    return f"ask for a lower rate: about {significant(starts_rps)} conversations/s were answered"
