"""From stored runs to what a reader opens: summary, plots, page. Needs no engine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from harness.results import Summary, analyse, write_analysis
from harness.results.plots import draw_all
from harness.results.report import write_report
from harness.results.store import StoreError, create_sweep

REPORT_FILE = "report.html"


class Rebuilt(NamedTuple):
    """A summary, and where its page is."""

    summary: Summary
    folder: Path
    unwritten: StoreError | None  # why there is no page


def rebuild(directory: Path, out: Path | None = None) -> Rebuilt:
    """Write summary, plots and page of the sweep in `directory`, or into a new folder `out`.

    Where they cannot be written, as on a read-only disk, the summary is returned all the same.
    Raises `StoreError` where the store cannot be read.
    """
    analysis = analyse(directory)
    folder = directory if out is None else out
    unwritten = None
    try:
        if out is not None:
            create_sweep(out)
        write_analysis(analysis, folder)
        plots = draw_all(analysis.summary, analysis.requests, folder)
        write_report(analysis.summary, plots, folder / REPORT_FILE)
    except StoreError as error:
        unwritten = error
    except OSError as cause:
        unwritten = StoreError(f"{folder}: cannot be written: {cause.strerror or cause}")
    return Rebuilt(analysis.summary, folder, unwritten)
