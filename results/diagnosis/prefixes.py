"""Prefix hits: those that could be and are not, and those that the order of a prompt hides."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import significant


def cache_unused(run: DiagnosedRun) -> Measured:
    """Measure what the hit rate lacks of its ceiling."""
    ceiling, rate = run.metrics.run.prefix_hit_ceiling, run.metrics.run.prefix_hit_rate
    off = "off" in (run.toggle("prefix_caching"), run.toggle("paged_kv"))
    if ceiling is None:
        return not_stored("how much of the prompts a cache could find")
    if rate is None and not off:
        return not_stored("how much of the prompts the cache found")
    rate = 0.0 if off or rate is None else rate
    cause, remedy = _cause(run, off=off)
    return Measured(
        value=max(0.0, ceiling - rate),
        evidence=f"{rate:.0%} of the prompt tokens were found in the prefix cache, {ceiling:.0%} "
        f"could be; {_shared(run)}{cause}",
        remedy=remedy,
    )


def _cause(run: DiagnosedRun, *, off: bool) -> tuple[str, str]:
    if off:
        paged = run.toggle("paged_kv") == "off"
        needed = "paged_kv and prefix_caching" if paged else "prefix_caching"
        is_off = "are off" if paged else "is off"
        return f"{needed} {is_off}", f"turn {needed} on"
    evicted = run.counters.evicted_blocks
    if evicted:
        return (
            f"{evicted:,.0f} blocks were dropped to make room",
            "give the KV cache room (kv_cache_dtype fp8, more GPUs), or send like requests at once",
        )
    known = "nothing was dropped" if evicted == 0 else "whether blocks were dropped is not counted"
    return (
        f"{known}: the same beginning was asked again before it had been computed once",
        "send the shared prefix once before the load (cache: primed), or start more slowly",
    )


def hidden_prefix(run: DiagnosedRun) -> Measured:
    """Measure what was seen before and stands behind the first token that differs."""
    overlap = run.manifest.prompt_overlap
    if overlap is None:
        return not_stored("where prompts differ")
    if not overlap.prompt_tokens:
        return NOTHING_TO_SEE
    hidden = overlap.hidden_tokens / overlap.prompt_tokens
    return Measured(
        value=hidden,
        evidence=f"{_shared(run)}{hidden:.0%} of the prompt tokens were asked before but stand "
        "behind that place, where no prefix cache finds them",
        remedy="put what changes (a time, an id, the user's text) behind what stays (instructions, "
        "documents, tools)",
    )


def _shared(run: DiagnosedRun) -> str:
    """Return where prompts differ from those before, in words; nothing where it is not stored."""
    overlap = run.manifest.prompt_overlap
    if overlap is None:
        return ""
    mean = overlap.prompt_tokens / max(1, len(run.metrics.requests))
    return (
        f"the median prompt begins as an earlier one for {overlap.diverge_after_tokens:,.0f} "
        f"tokens (of {significant(mean)} on average); "
    )
