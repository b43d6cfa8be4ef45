"""The plan of a sweep: the ordered list of runs. Pure: nothing starts."""

from harness.plan.make import make_plan
from harness.plan.planned import EMBEDDED, Plan, PlannedArm, PlannedRun, RunConditions, labels
from harness.plan.selection import select
from harness.plan.token_rate import PeakRate, peak_rates

__all__ = [
    "EMBEDDED",
    "PeakRate",
    "Plan",
    "PlannedArm",
    "PlannedRun",
    "RunConditions",
    "labels",
    "make_plan",
    "peak_rates",
    "select",
]
