"""Detect the format of a trace file from its first line."""

from __future__ import annotations

import json
from pathlib import Path

from harness.workloads.base import WorkloadError
from harness.workloads.trace.formats import FORMATS, TraceFormat
from harness.workloads.trace.lines import check_file

_LONGEST_LINE = 1 << 20  # characters read to find the first line


def guess_format(path: Path) -> str:
    """Return the name of the first format whose fields are in the first line of the file.

    A JSON format with a default time unit (Mooncake: milliseconds) also needs `hash_ids`, so that
    the unit is not a guess. Raises `WorkloadError` when no format matches.
    """
    line = _first_line(path)
    kind, fields = _fields(line)
    by_marks = sorted(FORMATS.items(), key=lambda one: -len(one[1].marks))  # most specific first
    for name, form in by_marks:
        if form.lines == kind and _has_fields(form, fields):
            return name
    error = WorkloadError(f"{path}: the first line has no known trace format: {line[:60]!r}")
    error.add_note(f"set format: {' | '.join(FORMATS)}")
    error.add_note(f"format csv needs the columns {FORMATS['csv'].columns}")
    raise error


def _first_line(path: Path) -> str:
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = file.read(_LONGEST_LINE)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from error
    line = next((line for line in head.splitlines() if line.strip()), None)
    if line is None:
        raise WorkloadError(f"{path}: the trace is empty")
    return line


def _fields(line: str) -> tuple[str, set[str]]:
    """Return `json` or `csv`, and the field names of the JSON line or CSV header."""
    try:
        value = json.loads(line)
    except ValueError:
        return "csv", {name.strip().strip('"') for name in line.split(",")}
    return "json", set(value) if isinstance(value, dict) else set()


def _has_fields(form: TraceFormat, fields: set[str]) -> bool:
    needed = [*form.needed_fields, *((mark,) for mark in form.marks)]
    if form.lines == "json" and form.time_needed and form.time_unit:
        needed.append(("hash_ids",))
    return all(fields & set(names) for names in needed)
