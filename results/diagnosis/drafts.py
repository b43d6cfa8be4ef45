"""Speculation: drafted tokens that are thrown away."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored


def drafts(run: DiagnosedRun) -> Measured:
    """Measure which share of the drafted tokens was not accepted."""
    drafted = run.counters.drafted_tokens
    asked = run.toggle("speculative")
    if drafted is None and asked not in (None, "off"):
        return not_stored("how many tokens were drafted")
    if not drafted:
        return NOTHING_TO_SEE
    accepted, length = run.counters.accepted_tokens, run.metrics.run.mean_accepted_length
    if accepted is None:
        return not_stored("how many drafted tokens were accepted")
    brought = "" if length is None else f"; a verify step brings {length:.2f} tokens more than one"
    return Measured(
        value=1 - accepted / drafted,
        evidence=f"{accepted:,.0f} of {drafted:,.0f} drafted tokens were accepted{brought}",
        remedy="draft fewer tokens a step, take another method or drafter, or leave speculation "
        "off where many decode at once",
    )
