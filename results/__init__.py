"""From stored records to metrics, statistics, effects and the summary.

A name is loaded when it is first used: pandas and scipy take a second, and the processes that send
a load need neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.results.analysis import write_summary
    from harness.results.metrics import run_metrics
    from harness.results.names import flatten
    from harness.results.rows import analysed_run
    from harness.results.statistics import needed_samples, percentiles
    from harness.results.summary import Summary
    from harness.results.units import ABSENT, count, significant

__all__ = [
    "ABSENT",
    "Summary",
    "analysed_run",
    "count",
    "flatten",
    "needed_samples",
    "percentiles",
    "run_metrics",
    "significant",
    "write_summary",
]

_MODULES = {
    "ABSENT": "units",
    "Summary": "summary",
    "analysed_run": "rows",
    "count": "units",
    "flatten": "names",
    "needed_samples": "statistics",
    "percentiles": "statistics",
    "run_metrics": "metrics",
    "significant": "units",
    "write_summary": "analysis",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
