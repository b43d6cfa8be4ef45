"""The tables on the terminal: the only place that knows how wide a line may be."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from harness.results.effects import BASELINE, CONTROL
from harness.results.panels import (
    VERDICT_MARKS,
    Panel,
    arm_lines,
    arm_title,
    may_be_none,
)
from harness.results.report.client_notes import is_degraded
from harness.results.summary import ArmRow
from harness.results.units import ABSENT, latency_unit, ratio_text, significant

WIDTH = 100  # columns that a line may take
_NARROWEST = 72  # a terminal below this gets lines that it has to wrap itself
_NAME_COLUMNS = 18  # an arm's name is not squeezed below this: "overlap_scheduling"
_MESSAGES = 2  # of one check; the report has more of them
_OF_COLUMNS = 11  # "continuous" and a sign
_LONGEST_VALUE = 24  # columns; one that is longer still is cut into lines
_MARK_STYLES = {"▲": "green", "▼": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: three lines of header (metric, statistic, unit) and a cell for each row."""

    head: tuple[str, str, str]
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of the terminal that the widest line of it takes."""
        lines = [line for text in (*self.head, *self.cells) for line in text.split("\n")]
        return max(cell_len(line) for line in lines)


def print_within(console: Console, part: RenderableType, width: int) -> None:
    """Print `part` in so many columns, whatever the console takes for its own width."""
    options = console.options.update(width=width)
    console.print(Segments(console.render(part, options)), soft_wrap=True, end="")


def wrapped(line: str, width: int, style: str = "", indent: str = "  ") -> Text:
    """Return a line broken at `width` columns; its second and later lines are indented."""
    return Text("\n".join(_wrap(line, width, indent)), style=style, no_wrap=True)


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Table:
    """Return a table of texts; the first column takes what the others leave."""
    cells = [list(row) for row in rows]
    wide = [max((_columns(row[i]) for row in cells), default=0) for i in range(len(heads))]
    wide = [max(wide[i], *map(cell_len, head.split("\n"))) for i, head in enumerate(heads)]
    room = max(_NAME_COLUMNS, width - sum(wide[1:]) - 2 * (len(heads) - 1))
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for i, head in enumerate(heads):
        justify: Literal["left", "right"] = "right" if i else "left"
        table.add_column(Text(head), justify=justify, no_wrap=True, overflow="fold")
    for first, *others in cells:
        table.add_row(Text(_folded(first, room)), *map(Text, others))
    return table


def _columns(text: str) -> int:
    """Return the columns of the longest line of a text."""
    return max(map(cell_len, text.split("\n")))


def _folded(text: str, width: int) -> str:
    return "\n".join(_wrap(text, width, indent=""))


def _wrap(line: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def panel_tables(panel: Panel, width: int, *, every_arm: bool = True) -> list[Table]:
    """Return the metrics and ratios of one panel: one table, or two where one is too wide.

    Without `every_arm` a control that equals the baseline, as on virtual time, has no row.
    """
    rows = [row for row in _rows(panel) if every_arm or not _repeats_baseline(panel, row)]
    metrics = _metric_columns(panel, rows)
    ratios = _ratio_columns(panel, rows) if panel.effects else []
    together = [*metrics, *ratios]
    fits = _room(together, width) >= _NAME_COLUMNS
    parts = [together] if fits or not ratios else [metrics, ratios]
    return [_table(rows, part, width) for part in parts]


def _room(columns: Sequence[Column], width: int) -> int:
    """What the columns leave for the names of the arms."""
    return width - sum(column.width + 1 for column in columns)


def _rows(panel: Panel) -> list[ArmRow | str]:
    """The arms; with several engines, each engine's label before its arms."""
    names = list(dict.fromkeys(arm.label for arm in panel.arms))
    rows: list[ArmRow | str] = []
    for name in names:
        rows += [name] if len(names) > 1 else []
        rows += [arm for arm in panel.arms if arm.label == name]
    return rows


def _repeats_baseline(panel: Panel, row: ArmRow | str) -> bool:
    """Return whether a row is the control, and equals the baseline to the last digit."""
    if isinstance(row, str) or row.arm != CONTROL:
        return False
    effects = [panel.effect(row, metric) for metric in panel.primary]
    return all(effect is not None and effect.ratio == 1.0 for effect in effects)


def _table(rows: Sequence[ArmRow | str], columns: Sequence[Column], width: int) -> Table:
    names = [_name_cell(row, max(_room(columns, width), _NAME_COLUMNS)) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    table.add_column(Text("\n\narm"), no_wrap=True, overflow="fold")
    for column in columns:
        words = column.head[2] == "ratio of"
        table.add_column(
            Text("\n".join(column.head)),
            justify="left" if words else "right",
            no_wrap=True,
            overflow="fold",
        )
    for i, name in enumerate(names):
        table.add_row(name, *(_cell(column.cells[i]) for column in columns))
    return table


def _name_cell(row: ArmRow | str, width: int) -> Text:
    if isinstance(row, str):
        return Text("\n".join(_wrap(row, width)), style="bold underline")
    mark = row.status.upper() if row.status != "ok" else "DEGRADED" * is_degraded(row)
    lines = [part for line in arm_lines(row) for part in _wrap(line.replace("(", " ("), width)]
    whole = f"{arm_title(row)} {mark}".rstrip()
    if cell_len(whole) <= width:
        lines = [whole]
    elif mark:
        lines.append(f"  {mark}")
    style = "" if row.status == "ok" else "yellow"
    return Text("\n".join(lines), style="bold" if row.arm == BASELINE else style)


def _cell(text: str) -> Text:
    return Text(text, style=_MARK_STYLES.get(text[-1:], ""))


def _metric_columns(panel: Panel, rows: Sequence[ArmRow | str]) -> list[Column]:
    return [
        _metric_column(rows, "output_tokens_per_s", ("output", "", "tok/s")),
        _metric_column(rows, "output_tokens_per_s_per_user", ("per", "user", "tok/s")),
        *_latencies(rows, panel.ttft, "TTFT", ("p50", "p99")),
        *_latencies(rows, "tpot_ms", "TPOT", ("p50", "p99")),
        *_latencies(rows, "e2e_ms", "E2E", ("p99",)),
        _metric_column(rows, "goodput_rps", ("good-", "put", "req/s")),
    ]


def _metric_column(rows: Sequence[ArmRow | str], metric: str, head: tuple[str, str, str]) -> Column:
    values = (_value(row, metric) for row in rows)
    cells = tuple(
        "" if isinstance(row, str) else significant(value)
        for row, value in zip(rows, values, strict=True)
    )
    return Column(head=head, cells=cells)


def _latencies(
    rows: Sequence[ArmRow | str], metric: str, name: str, statistics: Iterable[str]
) -> list[Column]:
    keys = [f"{metric}.{statistic}" for statistic in statistics]
    unit, factor = latency_unit(_value(row, key) for row in rows for key in keys)
    return [
        Column(
            head=(name, key.partition(".")[2], unit),
            cells=tuple(_latency_cell(row, key, factor) for row in rows),
        )
        for key in keys
    ]


def _latency_cell(row: ArmRow | str, key: str, factor: float) -> str:
    if isinstance(row, str):
        return ""
    value = _value(row, key)
    if value is None:
        return ABSENT
    unreliable = key.endswith("p99") and not row.p99_reliable
    return "~" * unreliable + significant(value * factor)


def _value(row: ArmRow | str, key: str) -> float | None:
    return None if isinstance(row, str) else row.metrics.get(key)


def _ratio_columns(panel: Panel, rows: Sequence[ArmRow | str]) -> list[Column]:
    names = ("output", "tok/s"), ("TTFT", "p50"), ("TPOT", "p50")
    columns = [
        Column(
            head=(name, statistic, "×"),
            cells=tuple(_ratio_cell(panel, row, metric) for row in rows),
        )
        for metric, (name, statistic) in zip(panel.primary, names, strict=True)
    ]
    if not any(effect.others_flipped for effect in panel.effects):
        return columns
    of = Column(head=("", "", "ratio of"), cells=tuple(_of_cell(panel, row) for row in rows))
    return [of, *columns]


def _ratio_cell(panel: Panel, row: ArmRow | str, metric: str) -> str:
    if isinstance(row, str) or row.arm == BASELINE:
        return ""
    effect = panel.effect(row, metric)
    if effect is None:
        return ABSENT
    mark = VERDICT_MARKS.get(effect.verdict or "", "")
    text = "~" * may_be_none(effect) + ratio_text(effect.ratio) + mark
    return f"({text})" if row.label in panel.control_off and row.arm != CONTROL else text


def _of_cell(panel: Panel, row: ArmRow | str) -> str:
    effect = None if isinstance(row, str) else panel.effect(row, panel.primary[0])
    if effect is None:
        return ""
    above, slash, below = effect.ratio_of.partition("/")
    text = f"{_kind(above)}{slash}{_kind(below)}"
    lines = [text] if len(text) <= _OF_COLUMNS else [f"{_kind(above)}{slash}", _kind(below)]
    toggle = [effect.toggle] if effect.others_flipped else []
    return "\n".join([*toggle, *(part for line in lines for part in _broken(line))])


def _kind(value: str) -> str:
    """Values without their options, which the arm's name shows: off+ngram(tokens=4) → off+ngram."""
    return re.sub(r"\([^()]*\)", "", value)


def _broken(text: str) -> list[str]:
    """Break "off+continuous+off/" after its signs, never inside a value that fits a line."""
    lines = [""]
    for part in re.findall(r"[^+/]+[+/]?|[+/]", text):
        if lines[-1] and len(lines[-1] + part) > _OF_COLUMNS:
            lines.append("")
        *whole, rest = textwrap.wrap(lines[-1] + part, _LONGEST_VALUE) or [""]
        lines[-1:] = [*whole, rest]
    return lines
