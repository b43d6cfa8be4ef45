"""The KV cache: sequences that lose their blocks, and those that find no room."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import count
from harness.results.warnings import peak_in_flight

_FILLED = 0.5  # of the cache, by those that ran: their number and lengths are means
_ROOM = (
    "ask for less concurrency, lower max_num_seqs, or make room: kv_cache_dtype fp8, narrower "
    "weights, more GPUs"
)


def preemptions(run: DiagnosedRun) -> Measured:
    """Measure how often a sequence was put back to make room, for each answered request."""
    preempted = run.metrics.run.preemptions
    if preempted is None:
        return not_stored("how often sequences were preempted")
    if not run.answered:
        return NOTHING_TO_SEE
    room, swaps = run.facts.kv_tokens, run.toggle("preemption") == "swap"
    said = "" if room is None else f" in a cache of {room:,} tokens"
    return Measured(
        value=preempted / run.answered,
        evidence=f"{count(preempted, 'preemption')} in {count(run.answered, 'request')}{said}: "
        + ("KV is copied to the host and back" if swaps else "what was computed is computed again"),
        remedy=_ROOM,
    )


def kv_room(run: DiagnosedRun) -> Measured:
    """Measure which share of what is in flight has no room: what it would hold, against the room.

    A request holds its prompt, less what the prefix cache shares, and on average half of its
    answer; without paged blocks its longest length. No more requests hold anything than there are
    slots. Where those that ran do not fill the cache, the others wait for something else.
    """
    if run.toggle("batching") in ("static", "none") or not run.answered:
        return NOTHING_TO_SEE
    room, limit = run.facts.kv_tokens, run.facts.running_limit
    if room is None:
        return not_stored("the size of the KV cache")
    contiguous = run.toggle("paged_kv") == "off"
    each = run.facts.max_model_len if contiguous else _held_by_one(run)
    if not each:
        return not_stored("how many tokens a request holds")
    in_flight = peak_in_flight(run.metrics.requests)
    slots = in_flight if limit is None else min(in_flight, limit)
    ran = _ran_at_once(run)
    if ran is not None and ran * each < _FILLED * room:
        return Measured(value=0.0)
    at_once = "" if ran is None else f"; {ran:,.0f} ran at once"
    why = ", its longest length since blocks are not paged" if contiguous else ""
    return Measured(
        value=max(0.0, 1 - room / (slots * each)),
        evidence=f"{slots:,} sequences in flight would hold {slots * each:,.0f} tokens "
        f"({each:,.0f} each{why}), the KV cache has room for {room:,}{at_once}",
        remedy="turn paged_kv on" if contiguous else _ROOM,
    )


def _ran_at_once(run: DiagnosedRun) -> float | None:
    """Return how many sequences ran at once: at most where it is counted, else on average."""
    steps, filled = run.counters.steps, run.counters.sequence_steps
    mean = filled / steps if steps and filled is not None else None
    most = run.counters.peak_running
    return mean if most is None else most


def _held_by_one(run: DiagnosedRun) -> float | None:
    """Return the tokens that a request holds on average; None where they were not counted."""
    requests = run.metrics.requests[run.metrics.requests["ok"]]
    hits = run.metrics.run.prefix_hit_rate or 0.0
    held = requests["prompt_tokens"] * (1 - hits) + requests["output_tokens"] / 2
    return None if held.isna().any() else float(held.mean())
