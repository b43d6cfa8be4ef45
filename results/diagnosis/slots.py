"""Slots of a batch that stand idle until its longest answer has ended."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.warnings import peak_in_flight


def idle_slots(run: DiagnosedRun) -> Measured:
    """Measure the slots that got no token in a step, of those that requests could have filled."""
    batching = run.toggle("batching")
    if batching is None:
        return not_stored("how the engine batches")
    in_flight = peak_in_flight(run.metrics.requests) if run.answered else 0
    if batching == "continuous" or in_flight <= 1:
        return NOTHING_TO_SEE
    steps, filled = run.counters.steps, run.counters.sequence_steps
    if not steps or filled is None:
        return not_stored("how many sequences got a token in a step")
    limit = run.facts.running_limit
    slots = in_flight if limit is None or batching == "none" else min(in_flight, limit)
    mean = filled / steps
    return Measured(
        value=max(0.0, 1 - mean / slots),
        evidence=f"batching is {batching}: on average {mean:.1f} of {slots:,} slots got a token in "
        "a step",
        remedy="turn batching to continuous, which fills a slot as soon as an answer has ended",
    )
