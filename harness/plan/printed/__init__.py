"""The plan as text and as JSON."""

from harness.plan.printed.document import plan_document
from harness.plan.printed.plan import print_plan

__all__ = [
    "plan_document",
    "print_plan",
]
