"""The tables on the terminal: the only place that knows how wide a line may be."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
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
    hardware_title,
    may_be_none,
    panels,
    unmeasured,
)
from harness.results.report.client_notes import client_counts, is_degraded
from harness.results.report.engine_tables import READING, engine_tables
from harness.results.report.notes import (
    assumptions,
    control_alarms,
    control_note,
    engines,
    gathered_warnings,
    panel_notes,
    ratio_note,
    simulated_notes,
    unreported_settings,
    verdict_note,
)
from harness.results.report.predicted import absent_predictions, predicted_panels
from harness.results.report.side_by_side import left_out, side_by_side
from harness.results.summary import ArmRow, Summary
from harness.results.units import ABSENT, count, latency_unit, ratio_text, significant

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


def print_summary(summary: Summary, console: Console) -> None:
    """Print one table for each workload × load, then what a reader must know of all of them.

    A line takes 100 columns at most, also where the console does not know its width; a pipe has
    that of the variable COLUMNS. Where metrics and ratios do not fit beside each other, they
    become two tables.
    """
    known = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    width = max(_NARROWEST, console.width) if known else WIDTH
    width = min(width, WIDTH)
    print_within(console, _wrapped(_heading(summary), width, ""), width)
    for panel in panels(summary):
        for part in _panel_parts(summary, panel, width):
            print_within(console, part, width)
    for part in _engine_parts(summary, width):
        print_within(console, part, width)
    for part in _predicted_parts(summary, width):
        print_within(console, part, width)
    for line in control_alarms(summary):
        print_within(console, _wrapped(line, width, "bold red"), width)
    for line in _closing_lines(summary):
        print_within(console, _wrapped(line, width, ""), width)


def _heading(summary: Summary) -> str:
    """What was run: name, model, hardware, engines."""
    parts = [f"{summary.model} on {hardware_title(summary)}", *engines(summary).values()]
    return f"{summary.name}: {'; '.join(parts)}"


def print_within(console: Console, part: RenderableType, width: int) -> None:
    """Print `part` in so many columns, whatever the console takes for its own width."""
    options = console.options.update(width=width)
    console.print(Segments(console.render(part, options)), soft_wrap=True, end="")


def _panel_parts(summary: Summary, panel: Panel, width: int) -> list[RenderableType]:
    mark = f" · {found}" if (found := unmeasured(summary)) else ""
    parts: list[RenderableType] = [
        _wrapped(panel.title + mark, width, "bold", indent=""),
        *_tables(panel, width),
    ]
    notes = panel_notes(panel) + assumptions(summary, panel)
    return [*parts, *(_wrapped(line, width, "dim") for line in notes), Text("")]


def _engine_parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield the engines beside each other, one table for each panel; nothing for one engine."""
    mark = f" · {found}" if (found := unmeasured(summary)) else ""
    for beside in side_by_side(summary):
        yield _wrapped(f"engines · {beside.panel.title}{mark}", width, "bold", indent="")
        yield from engine_tables(beside, width)
        notes = [*beside.notes, *([READING] if beside.toggles else [])]
        yield from (_wrapped(line, width, "dim") for line in notes)
        yield Text("")
    yield from (_wrapped(line, width, "dim") for line in left_out(summary))


def _predicted_parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield predicted beside measured; nothing where nothing was predicted."""
    for one in predicted_panels(summary):
        yield _wrapped(f"predicted beside measured · {one.title}", width, "bold", indent="")
        yield plain_table(one.arm_heads, one.arms, width)
        if one.effects:
            yield plain_table(one.effect_heads, one.effects, width)
        yield from (_wrapped(line, width, "dim") for line in one.notes)
        yield Text("")
    yield from (_wrapped(line, width, "dim") for line in absent_predictions(summary))


def _wrapped(line: str, width: int, style: str, indent: str = "  ") -> Text:
    return Text("\n".join(_wrap(line, width, indent)), style=style, no_wrap=True)


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Table:
    """Return a table of texts; the first column takes what the others leave."""
    cells = [list(row) for row in rows]
    wide = [max(map(cell_len, (row[i] for row in cells)), default=0) for i in range(len(heads))]
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


def _folded(text: str, width: int) -> str:
    return "\n".join(_wrap(text, width, indent=""))


def _wrap(line: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _tables(panel: Panel, width: int) -> list[Table]:
    rows = _rows(panel)
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
    lines = [part for line in arm_lines(row) for part in _wrap(line.replace("(", " ("), width)]
    if row.status != "ok":
        lines.append(f"  {row.status.upper()}")
    elif is_degraded(row):
        lines.append("  DEGRADED")
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


def _closing_lines(summary: Summary) -> list[str]:
    lines = [ratio_note(summary)] if summary.effects else []
    lines.append(verdict_note(summary))
    lines += [control] if (control := control_note(summary)) else []
    lines += [
        f"doubt: {name}: {message} ({count(runs, 'run')})" + f"; {remedy}" * bool(remedy)
        for name, message, remedy, runs in gathered_warnings(summary, _MESSAGES)
    ]
    if any(run.certificate.verdict for run in summary.runs):
        lines.append(f"client certificates: {client_counts(summary)}")
    lines += unreported_settings(summary)
    lines += assumptions(summary, None)
    lines += [f"note: {note}" for note in summary.notes]
    return [*lines, *simulated_notes(summary)]
