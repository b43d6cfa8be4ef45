"""The engines of a sweep beside each other on the terminal: for each panel one table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from harness.results.report.side_by_side import Ratios, SideBySide

ENGINES_A_TABLE = 4  # columns of ratios that fit into 100
_NAME_COLUMNS = 24
READING = (
    "each toggle: the ratio of output tok/s, of TTFT p50 and of TPOT p50, then what proves the flip"
)


def engine_tables(beside: SideBySide, width: int) -> Iterator[Table]:
    """Yield the engines of one panel in columns, four at most in one table."""
    for first in range(0, len(beside.engines), ENGINES_A_TABLE):
        yield _table(beside, slice(first, first + ENGINES_A_TABLE), width)


def _table(beside: SideBySide, part: slice, width: int) -> Table:
    heads = beside.heads[part]
    room = max(12, (width - _NAME_COLUMNS) // len(heads) - 2)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(Text("baseline"), width=_NAME_COLUMNS, overflow="fold")
    for head in heads:
        table.add_column(Text(_folded([head], room)), justify="right", overflow="fold")
    for name, values in beside.values:
        table.add_row(Text(name), *(Text(value) for value in values[part]))
    if beside.toggles:
        table.add_section()
    for name, cells in beside.toggles:
        table.add_row(
            Text(_folded([name.replace("(", " (")], _NAME_COLUMNS)),
            *(Text(_cell(cell, room)) for cell in cells[part]),
        )
    return table


def _cell(cell: Ratios, room: int) -> str:
    return _folded([" ".join(cell.ratios), cell.proof], room)


def _folded(lines: Sequence[str], room: int) -> str:
    parts = [part for line in lines if line for part in textwrap.wrap(line, room)]
    return "\n".join(parts)
