"""The rule for speculative decoding: draft tokens that the target model rejects."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored


def drafts(run: DiagnosedRun) -> Measured:
    """Return the share of draft tokens that were rejected."""
    drafted = run.counters.drafted_tokens
    requested = run.toggle("speculative")
    if drafted is None and requested not in (None, "off"):
        return not_stored("the number of draft tokens")
    if not drafted:
        return NOTHING_TO_SEE
    accepted, length = run.counters.accepted_tokens, run.metrics.run.mean_accepted_length
    if accepted is None:
        return not_stored("the number of accepted draft tokens")
    gain = "" if length is None else f"; a verify step adds {length:.2f} tokens on average"
    return Measured(
        value=1 - accepted / drafted,
        evidence=f"{accepted:,.0f} of {drafted:,.0f} draft tokens were accepted{gain}",
        remedy="draft fewer tokens per step, use another method or draft model, or turn "
        "speculative off at high concurrency",
    )
