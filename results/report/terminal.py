"""What `harness run` and `harness report` print: the answer, then the tables, then the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from harness.results.panels import (
    VERDICT_MARKS,
    hardware_title,
    may_be_none,
    panels,
    unmeasured,
)
from harness.results.report.best_arms import answer_lines, answer_table
from harness.results.report.client_notes import client_counts
from harness.results.report.engine_tables import READING, engine_tables
from harness.results.report.notes import (
    assumptions,
    control_alarms,
    control_note,
    engines,
    gathered_warnings,
    panel_faults,
    panel_notes,
    ratio_note,
    simulated_notes,
    verdict_note,
)
from harness.results.report.predicted import absent_predictions, predicted_panels
from harness.results.report.side_by_side import left_out, side_by_side
from harness.results.report.tables import WIDTH, panel_tables, plain_table, print_within, wrapped
from harness.results.statistics import needed_samples
from harness.results.summary import Summary

_NARROWEST = 72  # a terminal below this gets lines that it has to wrap itself
_MESSAGES = 2  # of one check with --verbose; the page has more of them


def print_summary(summary: Summary, console: Console, *, verbose: bool = False) -> None:
    """Print the best arms, a table for each workload × load, what failed, and the warnings.

    A line takes 100 columns at most, also where the console does not know its width; a pipe has
    that of the variable COLUMNS. Where metrics and ratios do not fit beside each other, they
    become two tables. `verbose` adds windows, counts, assumptions and notes.
    """
    known = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    width = max(_NARROWEST, console.width) if known else WIDTH
    width = min(width, WIDTH)
    for part in _parts(summary, width, verbose=verbose):
        print_within(console, part, width)


def _parts(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    yield wrapped(_heading(summary), width, indent="")
    yield from _answer(summary, width)
    yield from _panels(summary, width, verbose=verbose)
    yield from _engines(summary, width)
    yield from _predictions(summary, width)
    yield from (wrapped(line, width) for line in _faults(summary))
    yield from (wrapped(line, width) for line in _warnings(summary, verbose=verbose))
    if verbose:
        yield from (wrapped(line, width) for line in _notes(summary))
    yield from (wrapped(line, width) for line in simulated_notes(summary))


def _heading(summary: Summary) -> str:
    """Return name, model, hardware and engines."""
    parts = [f"{summary.model} on {hardware_title(summary)}", *engines(summary).values()]
    return f"{summary.name}: {'; '.join(parts)}"


def _answer(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield the best arms, what is not proven, and how to read the tables that follow."""
    if summary.effects:
        yield plain_table(*answer_table(summary), width)
        yield from (wrapped(line, width, "bold") for line in answer_lines(summary))
        yield from (wrapped(line, width, "bold red") for line in control_alarms(summary))
        yield wrapped(_reading(summary), width, "dim")
    yield Text("")


def _reading(summary: Summary) -> str:
    """Return how to read the ratios and marks of the tables."""
    parts = ["× on÷off for switches, else arm÷baseline"]
    if any(effect.verdict for effect in summary.effects):
        parts += [f"{mark} {verdict.lower()}" for verdict, mark in VERDICT_MARKS.items()]
    if any(may_be_none(effect) for effect in summary.effects):
        parts.append("~×: interval includes 1")
    if not all(arm.p99_reliable for arm in summary.arms):
        parts.append(f"~P99: under {needed_samples(0.99)} requests")
    if any(arm.load.is_open_loop for arm in summary.arms):
        parts.append("TTFT counts from when a request was due")
    return "; ".join(parts)


def _panels(summary: Summary, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    mark = f" · {found}" if (found := unmeasured(summary)) else ""
    for panel in panels(summary):
        yield wrapped(panel.title + mark, width, "bold", indent="")
        yield from panel_tables(panel, width, every_arm=verbose)
        if verbose:
            notes = panel_notes(panel) + assumptions(summary, panel)
            yield from (wrapped(line, width, "dim") for line in notes)
        yield Text("")


def _engines(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield the engines beside each other, one table for each panel; nothing for one engine."""
    mark = f" · {found}" if (found := unmeasured(summary)) else ""
    for beside in side_by_side(summary):
        yield wrapped(f"engines · {beside.panel.title}{mark}", width, "bold", indent="")
        yield from engine_tables(beside, width)
        notes = [*beside.notes, *([READING] if beside.toggles else [])]
        yield from (wrapped(line, width, "dim") for line in notes)
        yield Text("")
    yield from (wrapped(line, width, "dim") for line in left_out(summary))


def _predictions(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Yield predicted beside measured; nothing where nothing was predicted."""
    for one in predicted_panels(summary):
        yield wrapped(f"predicted beside measured · {one.title}", width, "bold", indent="")
        yield plain_table(one.arm_heads, one.arms, width)
        if one.effects:
            yield plain_table(one.effect_heads, one.effects, width)
        yield from (wrapped(line, width, "dim") for line in one.notes)
        yield Text("")
    yield from (wrapped(line, width, "dim") for line in absent_predictions(summary))


def _faults(summary: Summary) -> Iterator[str]:
    """Yield what failed, was void or is invalid, each panel's with its title."""
    for panel in panels(summary):
        yield from (f"{panel.title}: {line}" for line in panel_faults(panel))


def _warnings(summary: Summary, *, verbose: bool) -> Iterator[str]:
    """Yield each check that found something: its message, its remedy, and in how many runs."""
    for name, message, remedy, runs in gathered_warnings(summary, _MESSAGES if verbose else 1):
        yield f"warning: {name}: {message} ({runs})" + f"; {remedy}" * bool(remedy)
    if any(run.certificate.verdict for run in summary.runs):
        yield f"client certificates: {client_counts(summary)}"


def _notes(summary: Summary) -> Iterator[str]:
    if summary.effects:
        yield ratio_note(summary)
    yield verdict_note(summary)
    if control := control_note(summary):
        yield control
    yield from assumptions(summary, None)
    yield from (f"note: {note}" for note in summary.notes)
