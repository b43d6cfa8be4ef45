"""A table for the terminal without the columns in which nothing stands."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

Heads = Sequence[tuple[str, JustifyMethod]]


def plain_table(heads: Heads, rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of texts; long ones are folded, empty columns left out."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    for i in kept:
        table.add_column(heads[i][0], justify=heads[i][1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[i]) for i in kept))
    return table
