"""Stored runs in the figures of another tool, each beside ours and with what sets them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.results.dialects.figure import Figure
from harness.results.dialects.requests import requests_of
from harness.results.dialects.tools import DIALECTS, Dialect
from harness.results.store import StoredRun, finite, read_runs

_ALIKE = 5e-4  # of the larger one: figures that differ by less are called the same
_WINDOW = "of the whole run; here, its window"


def dialect_document(directory: Path, tool: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored runs of `directory` as `tool` would state them, in the summary's order.

    `summary` is that of the same folder; a run without requests is left out. Raises `StoreError`.
    """
    dialect = DIALECTS[tool]
    stored = {run.manifest["key"]: run for run in read_runs(directory)}
    rows = [row for row in summary["runs"] if row["key"] in stored and row["metrics"] is not None]
    document = {
        "tool": tool,
        "about": dialect.about,
        "approximations": list(dialect.approximations),
        "runs": [_run(dialect, stored[row["key"]], row) for row in rows],
    }
    plain: dict[str, Any] = finite(document)
    return plain


def _run(dialect: Dialect, stored: StoredRun, row: Mapping[str, Any]) -> dict[str, Any]:
    limits = stored.manifest.get("slo") or {}
    figures = dialect.figures(requests_of(stored.records), limits)
    return {
        **{name: row[name] for name in ("key", "label", "arm", "block", "workload", "load")},
        "window": row["window"],
        "counts": row["counts"],
        "figures": [_beside(figure, row) for figure in figures],
    }


def _beside(figure: Figure, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure, ours in the tool's unit, and in a few words why they differ, if they do."""
    ours = _own(figure, row)
    return {
        "name": figure.name,
        "value": figure.value,
        "own_name": figure.own,
        "own_value": ours,
        "why": _why(figure, ours, steady=row["window"]["kind"] == "steady"),
    }


def _own(figure: Figure, row: Mapping[str, Any]) -> float | None:
    if figure.own is None:
        return None
    found: Any = row
    for part in figure.own.split("."):
        found = None if found is None else found.get(part)
    value: float | None = found
    if value is None or figure.own_factor == 1:  # a count stays a whole number
        return value
    return value * figure.own_factor


def _why(figure: Figure, ours: float | None, *, steady: bool) -> str | None:
    if figure.own is None:
        return figure.why or None
    if _alike(figure.value, ours):
        return None
    of_window = steady and figure.own.startswith("metrics.")
    return figure.why or (_WINDOW if of_window else None)


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_ALIKE)
