"""Fitting of step costs to measured runs."""

from harness.prediction.fit import (
    METRICS,
    HeldOutMetric,
    MeasuredRun,
    fitted_costs,
    fixed_toggles,
    held_out_metrics,
    measured_run,
    median_errors,
)

__all__ = [
    "METRICS",
    "HeldOutMetric",
    "MeasuredRun",
    "fitted_costs",
    "fixed_toggles",
    "held_out_metrics",
    "measured_run",
    "median_errors",
]
