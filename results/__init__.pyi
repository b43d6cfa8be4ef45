from .analysis import analyse, write_analysis, write_summary
from .metrics import run_metrics
from .names import flatten
from .rows import analysed_run
from .statistics import needed_samples, percentiles
from .summary import Summary
from .units import ABSENT, count, significant

__all__ = [
    "ABSENT",
    "Summary",
    "analyse",
    "analysed_run",
    "count",
    "flatten",
    "needed_samples",
    "percentiles",
    "run_metrics",
    "significant",
    "write_analysis",
    "write_summary",
]
