"""Requested → effective → observed: whether a run really had the settings of its label.

That of every toggle, and requested → effective of every base setting such as `max_num_seqs`.

A toggle is *verified* when a counter of the server moved as it must, *contradicted* when the
reported configuration or a counter shows the opposite (the run is void), *not exercised* when the
load could not have moved the counter, and *unverifiable* when no counter shows it. What a stand-in
counts proves nothing of the engine in whose place it stands, but may well contradict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.adapters import AS_IT_IS, EngineSettings, ServerCounters

VERIFIED = "verified"
CONTRADICTED = "contradicted"
NOT_EXERCISED = "not exercised"
UNVERIFIABLE = "unverifiable"
STAND_IN = "stand-in"  # the kind of an engine that only speaks like another


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """What the load could show: without these a counter that did not move means nothing."""

    prefix_hit_ceiling: float | None  # share of prompt tokens that a perfect cache would find
    longest_prompt_tokens: int
    most_in_flight: int  # requests that the load may have open at once
    kv_tokens: int | None = None  # capacity for KV; None: not known, so nothing was forgotten


@dataclass(frozen=True, slots=True)
class Triple:
    """One toggle or base setting of one run: requested, reported, and shown by a counter."""

    requested: str
    effective: str | None
    observed: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class _Observation:
    """All that a rule may look at: the requested value, and the counters over the run."""

    kind: str
    counters: ServerCounters  # differences over the run
    exercise: Exercise
    chunk_tokens: int


_Finding = tuple[float | None, str]  # (observed, verdict)
_Rule = Callable[[_Observation], _Finding]


def examine(
    settings: EngineSettings,
    effective: Mapping[str, str],
    counters: ServerCounters,
    exercise: Exercise,
    engine_kind: str | None = None,
) -> dict[str, Triple]:
    """Return the triple of each toggle and each base setting.

    `counters` are the differences over the run. No counter shows a base setting: the engine's own
    report verifies it.

    Of a stand-in (`engine_kind`) nothing is verified.
    """
    triples = {}
    for toggle, value in settings.toggles.items():
        seen = _Observation(value.kind, counters, exercise, settings.max_batched_tokens)
        observed, verdict = _RULES.get(toggle, _no_counter)(seen)
        reported = effective.get(toggle)
        if value == AS_IT_IS:  # nothing was requested: what a counter shows proves nothing
            triples[toggle] = Triple(value.label, reported, None, UNVERIFIABLE)
            continue
        # auto leaves it to the engine
        if reported not in (None, value.label) and value.kind != "auto":
            verdict = CONTRADICTED
        if verdict == VERIFIED and engine_kind == STAND_IN:
            verdict = UNVERIFIABLE
        triples[toggle] = Triple(value.label, reported, observed, verdict)
    if not settings.toggles or AS_IT_IS in settings.toggles.values():
        return triples  # nothing was requested of this server
    for name, wanted in settings.base().items():
        verdict = _by_report(wanted, effective.get(name), engine_kind)
        triples[name] = Triple(wanted, effective.get(name), None, verdict)
    return triples


def _by_report(requested: str, reported: str | None, engine_kind: str | None) -> str:
    if reported is None:
        return UNVERIFIABLE
    if requested not in (reported, "auto"):
        return CONTRADICTED
    return UNVERIFIABLE if engine_kind == STAND_IN else VERIFIED


def contradictions(triples: Mapping[str, Triple]) -> list[str]:
    """Return one sentence for each contradicted value; any makes the run void."""
    return [
        f"{name}: {triple.requested} was requested, the server reports "
        f"{triple.effective or 'nothing'}{_shown(triple.observed)}"
        for name, triple in triples.items()
        if triple.verdict == CONTRADICTED
    ]


def _shown(observed: float | None) -> str:
    return "" if observed is None else f" and its counter shows {observed:.4g}"


def _prefix_caching(seen: _Observation) -> _Finding:
    cached, prompt = seen.counters.cached_prompt_tokens, seen.counters.prompt_tokens
    if cached is None or not prompt or cached > prompt:  # more hits than tokens: not such a counter
        return None, UNVERIFIABLE
    share = cached / prompt
    if seen.kind == "off" and (cached or seen.counters.looked_up_prompt_tokens):
        return share, CONTRADICTED
    if not seen.exercise.prefix_hit_ceiling:
        return share, NOT_EXERCISED
    if seen.kind == "on" and not cached:
        return share, NOT_EXERCISED if _forgot(seen) else CONTRADICTED
    return share, VERIFIED


def _forgot(seen: _Observation) -> bool:
    """Return whether a cache that is on may have dropped every prefix before it was needed."""
    counters, capacity = seen.counters, seen.exercise.kv_tokens
    if counters.evicted_blocks is not None:
        return counters.evicted_blocks > 0
    went_through = (counters.prompt_tokens or 0) + (counters.output_tokens or 0)
    looked = counters.looked_up_prompt_tokens != 0  # None: lookups are not counted
    return looked and capacity is not None and went_through > capacity


def _chunked_prefill(seen: _Observation) -> _Finding:
    split = seen.counters.split_prefills
    if split is None:  # parts that were not the last: none of them where none was split
        split = seen.counters.partial_prefill_steps
    if split is None:
        return _chunks_of_a_real_server(seen)
    if seen.kind == "off" and split:
        return split, CONTRADICTED
    if split:
        return split, VERIFIED
    if seen.exercise.longest_prompt_tokens <= seen.chunk_tokens:
        return split, NOT_EXERCISED
    if seen.kind == "off":
        return split, VERIFIED
    # what was left of each prompt after its cached prefix may all have been short enough
    return split, NOT_EXERCISED if seen.counters.cached_prompt_tokens else CONTRADICTED


def _chunks_of_a_real_server(seen: _Observation) -> _Finding:
    """Judge by a lower bound: that it is 0 proves nothing, neither that none was split."""
    split = seen.counters.split_prefills_at_least
    if split:
        return split, VERIFIED if seen.kind == "on" else CONTRADICTED
    short = seen.exercise.longest_prompt_tokens <= seen.chunk_tokens
    return split, NOT_EXERCISED if short and split is not None else UNVERIFIABLE


def _batching(seen: _Observation) -> _Finding:
    late, peak = seen.counters.late_admissions, seen.counters.peak_running
    if late is None or peak is None:
        return _mean_batch(seen)
    if (seen.kind == "static" and late) or (seen.kind == "none" and peak > 1):
        return late if seen.kind == "static" else peak, CONTRADICTED
    if seen.exercise.most_in_flight <= 1:
        return late, NOT_EXERCISED
    if seen.kind == "none":
        return peak, VERIFIED
    if seen.kind == "static":
        return late, VERIFIED if peak > 1 else NOT_EXERCISED
    return late, VERIFIED if late else NOT_EXERCISED


def _mean_batch(seen: _Observation) -> _Finding:
    """Judge by the sequences that got a token in a step, on average; only `none` shows in that."""
    steps, sequence_steps = seen.counters.steps, seen.counters.sequence_steps
    if not steps or sequence_steps is None or seen.kind == "static":
        return None, UNVERIFIABLE
    mean = sequence_steps / steps
    if seen.kind == "none" and mean > 1:
        return mean, CONTRADICTED
    if seen.exercise.most_in_flight <= 1:
        return mean, NOT_EXERCISED
    return mean, VERIFIED if seen.kind == "none" or mean > 1 else NOT_EXERCISED


def _cuda_graphs(seen: _Observation) -> _Finding:
    replayed = seen.counters.graph_steps
    if replayed is None:
        return None, UNVERIFIABLE
    if seen.kind == "off":
        return replayed, CONTRADICTED if replayed else VERIFIED
    return replayed, VERIFIED if replayed else NOT_EXERCISED


def _speculative(seen: _Observation) -> _Finding:
    drafted = seen.counters.drafted_tokens
    if drafted is None:
        return None, UNVERIFIABLE
    if seen.kind == "off":
        return drafted, CONTRADICTED if drafted else VERIFIED
    return drafted, VERIFIED if drafted else NOT_EXERCISED


def _preemption(seen: _Observation) -> _Finding:
    swapped, preemptions = seen.counters.swapped_tokens, seen.counters.preemptions
    if swapped is None or preemptions is None:
        return None, UNVERIFIABLE
    if seen.kind == "recompute" and swapped:
        return swapped, CONTRADICTED
    # of a prompt that is not computed yet nothing is moved, whatever was requested
    moved = swapped if seen.kind == "swap" else preemptions
    return swapped, VERIFIED if moved else NOT_EXERCISED


def _no_counter(_: _Observation) -> _Finding:
    return None, UNVERIFIABLE


_RULES: dict[str, _Rule] = {
    "prefix_caching": _prefix_caching,
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "cuda_graphs": _cuda_graphs,
    "speculative": _speculative,
    "preemption": _preemption,
}
