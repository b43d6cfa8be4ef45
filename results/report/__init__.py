"""Terminal tables and the HTML page. The page, which needs jinja2, is loaded when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.results.report.client_notes import client_mark
from harness.results.report.notes import engines
from harness.results.report.plot_list import SPEED, PlannedFigure, planned_figures
from harness.results.report.serving_block import serving_block
from harness.results.report.side_by_side import compared_engines, engine_kinds
from harness.results.report.tables import plain_table, print_summary, print_within

if TYPE_CHECKING:
    from harness.results.report.page import write_report

__all__ = [
    "SPEED",
    "PlannedFigure",
    "client_mark",
    "compared_engines",
    "engine_kinds",
    "engines",
    "plain_table",
    "planned_figures",
    "print_summary",
    "print_within",
    "serving_block",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.page").write_report
