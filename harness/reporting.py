"""From stored runs to what a reader opens: summary, plots, page. Needs no engine."""

from __future__ import annotations

from pathlib import Path

from harness.results import Summary, write_summary
from harness.results.plots import draw_all
from harness.results.report import write_report

REPORT_FILE = "report.html"


def rebuild(directory: Path) -> Summary:
    """Write summary, plots and page into the folder of a sweep; return the summary.

    Raises `StoreError`.
    """
    summary, requests = write_summary(directory)
    plots = draw_all(summary, requests, directory)
    write_report(summary, plots, directory / REPORT_FILE)
    return summary
