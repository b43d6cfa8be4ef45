"""The figures of another tool in print: its name for each, its value, ours, and what differs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from harness.results.panels import load_title
from harness.results.units import ABSENT, significant
from harness.results.unmeasured import unmeasured

_WIDTH = 100
_NAME, _VALUE = 38, 11


def dialect_block(summary: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return a block of lines for each run, and what our records cannot tell of them."""
    mark = f" ({found})" if (found := unmeasured(summary)) else ""
    title = f"The same records by the formulas of {document['about']}{mark}, to compare with it"
    lines = textwrap.wrap(title, _WIDTH, subsequent_indent="  ")
    for run in document["runs"]:
        lines += _run(document["tool"], run)
    for text in document["approximations"]:
        lines += textwrap.wrap(f"approximated: {text}", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _run(tool: str, run: Mapping[str, Any]) -> Iterator[str]:
    title = f"{run['label']} · {run['arm']} · {run['workload']} · {load_title(run['load'])}"
    yield ""
    yield from textwrap.wrap(f"{title} · block {run['block']}", _WIDTH, subsequent_indent="  ")
    if run["window"]["kind"] == "steady":
        sent, measured = run["counts"]["sent"], run["counts"]["measured"]
        yield f"here: the {measured} requests of the measured window; {tool}: all {sent}"
    yield f"{'':<{_NAME}}{tool:>{_VALUE}}{'here':>{_VALUE}}"
    for figure in run["figures"]:
        yield from _lines(figure)


def _lines(figure: Mapping[str, Any]) -> Iterator[str]:
    """Yield the row of a figure, the reason for a difference in a column of its own."""
    values = f"{_number(figure['value']):>{_VALUE}}{_number(figure['own_value']):>{_VALUE}}"
    row = f"{figure['name']:<{_NAME}}{values}"
    first, *more = textwrap.wrap(figure["why"] or "", _WIDTH - len(row) - 2) or [""]
    yield f"{row}  {first}".rstrip()
    for line in more:
        yield f"{'':<{len(row)}}  {line}"


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) < 10:
        return significant(value)
    return f"{value:,.2f}"
