"""The rules for the KV cache: preempted sequences, and requests that do not fit."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import count
from harness.results.warnings import peak_in_flight

_FILLED = 0.5  # share of the cache that running sequences must fill; it is computed from means
_ROOM = (
    "lower the concurrency or max_num_seqs, or enlarge the KV cache: kv_cache_dtype fp8, quantized "
    "weights, more GPUs"
)


def preemptions(run: DiagnosedRun) -> Measured:
    """Return preemptions per answered request."""
    preempted = run.metrics.run.preemptions
    if preempted is None:
        return not_stored("the number of preemptions")
    if not run.answered:
        return NOTHING_TO_SEE
    capacity, swaps = run.facts.kv_tokens, run.toggle("preemption") == "swap"
    size = "" if capacity is None else f" (KV cache: {capacity:,} tokens)"
    return Measured(
        value=preempted / run.answered,
        evidence=f"{count(preempted, 'preemption')} in {count(run.answered, 'request')}{size}; "
        + ("KV blocks are copied to the host and back" if swaps else "KV blocks are recomputed"),
        remedy=_ROOM,
    )


def kv_room(run: DiagnosedRun) -> Measured:
    """Return the share of KV tokens that requests in flight need and the cache cannot store.

    A request needs its prompt, less the tokens shared through the prefix cache, plus on average
    half of its answer. Without paged blocks it needs the maximum model length. Only sequences that
    have a slot count. The value is 0 if the running sequences fill less than half of the cache,
    because the others then wait for another reason.
    """
    if run.toggle("batching") in ("static", "none") or not run.answered:
        return NOTHING_TO_SEE
    capacity, limit = run.facts.kv_tokens, run.facts.running_limit
    if capacity is None:
        return not_stored("the size of the KV cache")
    contiguous = run.toggle("paged_kv") == "off"
    each = run.facts.max_model_len if contiguous else _held_by_one(run)
    if not each:
        return not_stored("the number of tokens per request")
    in_flight = peak_in_flight(run.metrics.requests)
    slots = in_flight if limit is None else min(in_flight, limit)
    ran = _ran_at_once(run)
    if ran is not None and ran * each < _FILLED * capacity:
        return Measured(value=0.0)
    at_once = "" if ran is None else f"; {ran:,.0f} ran at once"
    why = ", the maximum length, because paged_kv is off" if contiguous else ""
    return Measured(
        value=max(0.0, 1 - capacity / (slots * each)),
        evidence=f"{slots:,} sequences in flight need {slots * each:,.0f} KV tokens "
        f"({each:,.0f} each{why}); the KV cache has {capacity:,}{at_once}",
        remedy="turn paged_kv on" if contiguous else _ROOM,
    )


def _ran_at_once(run: DiagnosedRun) -> float | None:
    """Return how many sequences ran at once: the peak if the engine counts it, else the mean."""
    steps, filled = run.counters.steps, run.counters.sequence_steps
    mean = filled / steps if steps and filled is not None else None
    most = run.counters.peak_running
    return mean if most is None else most


def _held_by_one(run: DiagnosedRun) -> float | None:
    """Return the mean KV tokens of a request; None if its tokens were not counted."""
    requests = run.metrics.requests[run.metrics.requests["ok"]]
    hits = run.metrics.run.prefix_hit_rate or 0.0
    held = requests["prompt_tokens"] * (1 - hits) + requests["output_tokens"] / 2
    return None if held.isna().any() else float(held.mean())
