"""The rule for static batching: slots that are idle until the longest answer of a batch ends."""

from __future__ import annotations

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.warnings import peak_in_flight


def idle_slots(run: DiagnosedRun) -> Measured:
    """Return the mean share of usable slots that produce no token in a step."""
    batching = run.toggle("batching")
    if batching is None:
        return not_stored("the batching mode of the engine")
    in_flight = peak_in_flight(run.metrics.requests) if run.answered else 0
    if batching == "continuous" or in_flight <= 1:
        return NOTHING_TO_SEE
    steps, filled = run.counters.steps, run.counters.sequence_steps
    if not steps or filled is None:
        return not_stored("the number of sequences per step")
    limit = run.facts.running_limit
    slots = in_flight if limit is None or batching == "none" else min(in_flight, limit)
    mean = filled / steps
    return Measured(
        value=max(0.0, 1 - mean / slots),
        evidence=f"batching is {batching}: on average {mean:.1f} of {slots:,} slots produce a "
        "token in a step",
        remedy="set batching to continuous: it fills a slot as soon as an answer ends",
    )
