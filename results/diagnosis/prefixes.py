"""The rules for prefix caching: missed hits, and hits that the order of the prompt prevents."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import significant


def cache_unused(run: DiagnosedRun) -> Measured:
    """Return the highest possible prefix hit rate minus the measured one."""
    ceiling, rate = run.metrics.run.prefix_hit_ceiling, run.metrics.run.prefix_hit_rate
    off = "off" in (run.toggle("prefix_caching"), run.toggle("paged_kv"))
    if ceiling is None:
        return not_stored("the highest possible prefix hit rate")
    if rate is None and not off:
        return not_stored("the prefix hit rate")
    rate = 0.0 if off or rate is None else rate
    cause, remedy = _cause(run, off=off)
    return Measured(
        value=max(0.0, ceiling - rate),
        evidence=f"the prefix hit rate is {rate:.0%}, {ceiling:.0%} is possible; "
        f"{_shared(run)}{cause}",
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
            f"{evicted:,.0f} KV blocks were evicted",
            "enlarge the KV cache (kv_cache_dtype fp8, more GPUs), or send equal prefixes together",
        )
    known = "no KV block was evicted" if evicted == 0 else "evicted KV blocks are not counted"
    return (
        f"{known}: requests with the same prefix were sent before its first computation ended",
        "send the shared prefix once before the load (cache: primed), or ramp up more slowly",
    )


def hidden_prefix(run: DiagnosedRun) -> Measured:
    """Return the share of prompt tokens that are repeated after the first unique token."""
    overlap = run.manifest.prompt_overlap
    if overlap is None:
        return not_stored("the overlap of the prompts")
    if not overlap.prompt_tokens:
        return NOTHING_TO_SEE
    hidden = overlap.hidden_tokens / overlap.prompt_tokens
    return Measured(
        value=hidden,
        evidence=f"{_shared(run)}{hidden:.0%} of the prompt tokens are repeated after that point, "
        "where a prefix cache cannot find them",
        remedy="move changing text (a time, an id, the user's question) after constant text "
        "(instructions, documents, tools)",
    )


def _shared(run: DiagnosedRun) -> str:
    """Return how much the median prompt shares with earlier ones; empty if it is not stored."""
    overlap = run.manifest.prompt_overlap
    if overlap is None:
        return ""
    mean = overlap.prompt_tokens / max(1, len(run.metrics.requests))
    return (
        f"the median prompt shares its first {overlap.diverge_after_tokens:,.0f} tokens with an "
        f"earlier one (mean length {significant(mean)} tokens); "
    )
