"""Fit step times to measured runs."""

from harness.prediction.fit import (
    METRICS,
    Seen,
    Unseen,
    fitted_costs,
    fixed_toggles,
    median_errors,
    seen_run,
    unseen_errors,
)

__all__ = [
    "METRICS",
    "Seen",
    "Unseen",
    "fitted_costs",
    "fixed_toggles",
    "median_errors",
    "seen_run",
    "unseen_errors",
]
