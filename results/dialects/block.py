"""The metrics of another tool as text: name, value, our value and the difference."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from harness.results.dialects.document import ComparedMetric, DialectReport, DialectRun
from harness.results.panels import load_title, unmeasured
from harness.results.summary import Summary
from harness.results.units import ABSENT, significant

_WIDTH = 100
_NAME, _VALUE = 38, 11


def dialect_block(summary: Summary, report: DialectReport) -> str:
    """Return a block of lines for each run, followed by the approximations."""
    mark = f" ({found})" if (found := unmeasured(summary)) else ""
    title = f"The same records with the formulas of {report.about}{mark}"
    lines = textwrap.wrap(title, _WIDTH, subsequent_indent="  ")
    for run in report.runs:
        lines += _run(report.tool, run)
    for text in report.approximations:
        lines += textwrap.wrap(f"approximated: {text}", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _run(tool: str, run: DialectRun) -> Iterator[str]:
    title = f"{run.label} · {run.arm} · {run.workload} · {load_title(run.load)}"
    yield ""
    yield from textwrap.wrap(f"{title} · block {run.block}", _WIDTH, subsequent_indent="  ")
    if run.is_steady and run.counts is not None:
        sent, measured = run.counts.sent, run.counts.measured
        yield f"here: the {measured} requests of the measured window; {tool}: all {sent}"
    yield f"{'':<{_NAME}}{tool:>{_VALUE}}{'here':>{_VALUE}}"
    for metric in run.metrics:
        yield from _lines(metric)


def _lines(metric: ComparedMetric) -> Iterator[str]:
    """Yield the row of a metric, with the reason for a difference in the last column."""
    values = f"{_number(metric.value):>{_VALUE}}{_number(metric.own_value):>{_VALUE}}"
    row = f"{metric.name:<{_NAME}}{values}"
    first, *more = textwrap.wrap(metric.why or "", _WIDTH - len(row) - 2) or [""]
    yield f"{row}  {first}".rstrip()
    for line in more:
        yield f"{'':<{len(row)}}  {line}"


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) < 10:
        return significant(value)
    return f"{value:,.2f}"
