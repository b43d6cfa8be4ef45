"""The metrics of another tool for stored runs, with our values and the reasons for differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.results.dialects.requests import requests_of
from harness.results.dialects.tool_metric import ToolMetric
from harness.results.dialects.tools import DIALECTS, ToolDialect
from harness.results.store import LoadFacts, StoredRun, read_runs
from harness.results.summary import RequestCounts, RunRow, Summary, WindowFacts, document_of

_SAME = 5e-4  # share of the larger value; values with a smaller difference count as equal
_WINDOW = "whole run; ours is the window"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """A metric of the tool, our metric in the tool's unit, and the reason for a difference."""

    name: str
    value: int | float | None
    own_name: str | None
    own_value: int | float | None
    why: str | None  # None: the values are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectRun:
    """One run with the formulas of another tool."""

    key: str
    label: str
    arm: str
    block: int
    workload: str
    load: LoadFacts
    window: WindowFacts | None
    counts: RequestCounts | None
    metrics: tuple[ComparedMetric, ...]

    @property
    def is_steady(self) -> bool:
        """Whether our metrics cover a steady window instead of the whole run."""
        return self.window is not None and self.window.kind == "steady"


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectReport:
    """The runs of a sweep with the formulas of another tool."""

    tool: str
    about: str
    approximations: tuple[str, ...]
    runs: tuple[DialectRun, ...]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return document_of(self)


def dialect_report(directory: Path, tool: str, summary: Summary) -> DialectReport:
    """Return the metrics of `tool` for the stored runs of `directory`, in the summary's order.

    `summary` must be from the same folder. Runs without requests are left out. Raises `StoreError`.
    """
    dialect = DIALECTS[tool]
    stored = {run.manifest.key: run for run in read_runs(directory)}
    rows = [row for row in summary.runs if row.key in stored and row.metrics is not None]
    return DialectReport(
        tool=tool,
        about=dialect.about,
        approximations=dialect.approximations,
        runs=tuple(_run(dialect, stored[row.key], row) for row in rows),
    )


def _run(dialect: ToolDialect, stored: StoredRun, row: RunRow) -> DialectRun:
    metrics = dialect.metrics(requests_of(stored.records), stored.manifest.slo.limits())
    return DialectRun(
        key=row.key,
        label=row.label,
        arm=row.arm,
        block=row.block,
        workload=row.workload,
        load=row.load,
        window=row.window,
        counts=row.counts,
        metrics=tuple(_beside(metric, row) for metric in metrics),
    )


def _beside(metric: ToolMetric, row: RunRow) -> ComparedMetric:
    ours = _own(metric, row)
    return ComparedMetric(
        name=metric.name,
        value=metric.value,
        own_name=metric.own,
        own_value=ours,
        why=_why(metric, ours, steady=row.window is not None and row.window.kind == "steady"),
    )


def _own(metric: ToolMetric, row: RunRow) -> int | float | None:
    if metric.own is None:
        return None
    found: Any = row
    for part in metric.own.split("."):
        found = None if found is None else getattr(found, part)
    value: int | float | None = found
    if value is None or metric.own_factor == 1:  # a count stays an integer
        return value
    return value * metric.own_factor


def _why(metric: ToolMetric, ours: float | None, *, steady: bool) -> str | None:
    if metric.own is None:
        return metric.why or None
    if _same(metric.value, ours):
        return None
    of_window = steady and metric.own.startswith("metrics.")
    return metric.why or (_WINDOW if of_window else None)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_SAME)
