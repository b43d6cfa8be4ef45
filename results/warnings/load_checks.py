"""Checks of the load: whether what was asked was sent, and whether the engine kept up with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.results.client import cap_waits_ns, conversation_spans, start_rates, started_words
from harness.results.metrics import RunMetrics
from harness.results.store import LoadFacts, RunManifest
from harness.results.summary import RunWarning
from harness.results.units import significant
from harness.results.warnings.backlog import Backlog, backlog_of

_RUNS_FEWER = 0.9  # an engine that runs less of what is in flight than this makes the rest wait
_BLOCK_TOKENS = 16  # by so many a request the ceiling may be short where a cache has finer blocks
_ABOVE_CEILING = 0.01  # of all prompt tokens: more hits than the ceiling and this were there before
_RATE_TOLERANCE = 0.02  # sends slower than the schedule by more than this were not delivered


def concurrency_not_reached(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about a closed loop that never had so many conversations alive as were asked."""
    load = manifest.load
    if load.is_open_loop or metrics.requests.empty:
        return None
    peak = peak_conversations(metrics.requests)
    if peak >= load.concurrency:
        return None
    return RunWarning(
        name="concurrency_not_reached",
        message=f"at most {peak} conversations were alive at once, {load.concurrency:g} were asked",
        remedy="ask for more requests, or for less concurrency",
    )


def engine_runs_fewer(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Say when the engine itself cannot run what was asked for: its queue is part of the TTFT.

    One at a time, or a batch until it is done, is what such a `batching` means: no warning.
    """
    load, limit = manifest.load, manifest.facts.running_limit
    batching = manifest.toggles.get("batching")
    if load.is_open_loop or batching == "none":
        return None
    if limit is not None and load.concurrency > limit:
        return RunWarning(
            name="engine_runs_fewer",
            message=f"the engine runs at most {limit} of {load.concurrency:g} requests at once; "
            "the others wait in its queue",
            remedy=more_sequences(manifest, load.concurrency),
        )
    return None if batching == "static" else _engine_full(metrics, manifest)


def more_sequences(manifest: RunManifest, wanted: int) -> str:
    """Return what lets an engine run `wanted` sequences at once.

    Where `max_num_seqs` allows them already, raising it changes nothing.
    """
    slots = manifest.evidence.get("max_num_seqs")
    step = manifest.evidence.get("max_batched_tokens")
    if slots is None or int(slots.requested) < wanted:
        return (
            "raise max_num_seqs, or max_batched_tokens: a step feeds each sequence a token, and "
            "its draft tokens"
        )
    if step is not None and int(step.requested) < wanted:
        return "raise max_batched_tokens: a step feeds each sequence a token"
    if slots.effective not in (None, slots.requested):
        return (
            f"the engine did not take max_num_seqs {slots.requested}, it reports "
            f"{slots.effective}: look at its launch line and its log for what changed it"
        )
    return (
        f"max_num_seqs is {slots.requested} already: raise memory_utilization or lower "
        "max_model_len, since engines run fewer where their KV cache is small, or lower the "
        "concurrency"
    )


def _engine_full(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Say when the engine ran fewer sequences than were in flight, though its limit allows them."""
    ran = manifest.counters.peak_running
    in_flight = peak_in_flight(metrics.requests)
    if ran is None or ran >= _RUNS_FEWER * in_flight:
        return None
    tokens = manifest.facts.kv_tokens
    size = f" ({tokens:,} tokens)" if tokens else ""
    return RunWarning(
        name="engine_runs_fewer",
        message=f"KV cache full{size}: at most {ran:g} of {in_flight} requests ran at once",
        remedy="lower the concurrency, add GPUs or use a narrower KV cache",
    )


def peak_in_flight(requests: pd.DataFrame) -> int:
    """Return how many requests were under way at once at most."""
    return _peak(requests["placed_ns"], requests["closed_ns"])


def peak_conversations(requests: pd.DataFrame) -> int:
    """Return how many conversations were alive at once at most, think time included.

    One lives from its first send to its last end; one that ends as another begins is not counted
    with it.
    """
    spans = conversation_spans(requests)
    return _peak(spans["placed_ns"], spans["closed_ns"])


def _peak(starts_ns: pd.Series[Any], ends_ns: pd.Series[Any]) -> int:
    times = np.concatenate([ends_ns, starts_ns])
    steps = np.concatenate([-np.ones(len(ends_ns)), np.ones(len(starts_ns))])
    order = np.argsort(times, kind="stable")  # ends come first among equals
    return int(np.cumsum(steps[order]).max(initial=0))


def load_not_delivered(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Hold the sends against the schedule, as a certificate does, for runs that have none."""
    if not manifest.load.is_open_loop:
        return None
    rates = start_rates(metrics, manifest)
    if rates is None:
        return None
    wanted, achieved = rates
    if wanted <= achieved * (1 + _RATE_TOLERANCE):
        return None
    return RunWarning(
        name="load_not_delivered",
        message=started_words(wanted, achieved),
        remedy="give the client more CPU or more connections; latencies count from the schedule",
    )


def cap_reached(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Name the wait for a place under a cap on conversations alive: no fault of the client."""
    cap = manifest.load.max_concurrency
    waits_ns = cap_waits_ns(metrics, manifest)
    waited = int((waits_ns > 0).sum())
    if not waited:
        return None
    return RunWarning(
        name="cap_reached",
        message=f"{waited} conversations waited for one of {cap} places, for up to "
        f"{significant(float(waits_ns.max()) / 1e9)} s; TTFT from due holds this wait",
        remedy="raise the cap, or ask for a lower rate",
    )


def warm_prefix_cache(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    """Say when more was found in the prefix cache than this run's own requests can have left there.

    A sequence that was preempted finds its own blocks again: where there were any, nothing is told.
    """
    rate, ceiling = metrics.run.prefix_hit_rate, metrics.run.prefix_hit_ceiling
    prompts = metrics.requests["prompt_tokens"].sum()
    if rate is None or ceiling is None or not prompts > 0 or metrics.run.preemptions:
        return None
    finer = _BLOCK_TOKENS * len(metrics.requests) / prompts
    if rate <= ceiling + finer + _ABOVE_CEILING:
        return None
    return RunWarning(
        name="warm_prefix_cache",
        message=f"{rate:.1%} of the prompt tokens were found in the prefix cache, but this run "
        f"shares {ceiling:.1%}: the cache held them before",
        remedy="empty the cache or restart the server first, or ask other texts (another seed)",
    )


def overloaded(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn when requests came faster than they were answered: the metrics are of the backlog."""
    load = manifest.load
    backlog = backlog_of(metrics.requests, metrics.window) if load.is_open_loop else None
    if backlog is None:
        return None
    return RunWarning(
        name="overloaded",
        message="requests came faster than they were answered: half-way "
        f"{backlog.in_flight_middle} were in flight, {backlog.in_flight_end} when the last "
        f"conversation was due, and it took {significant(backlog.drain_s)} s more to answer them; "
        "the longer this load, the longer they wait",
        remedy=_lower(load, backlog, metrics.requests),
    )


def _lower(load: LoadFacts, backlog: Backlog, requests: pd.DataFrame) -> str:
    """Return what load the engine kept up with, in the words of the sweep file."""
    answered = backlog.answered_rps
    if load.mode == "trace":
        speedup = significant((load.speedup or 1.0) * answered / backlog.due_rps)
        return (
            f"ask for a lower rate: about {significant(answered)} requests/s were answered, "
            f"which is speedup {speedup}"
        )
    starts_rps = answered * requests["conversation"].nunique() / len(requests)
    return f"ask for a lower rate: about {significant(starts_rps)} conversations/s were answered"
