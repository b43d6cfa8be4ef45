"""Which published form a trace file has, seen from its first line."""

from __future__ import annotations

import json
from pathlib import Path

from harness.workloads.base import WorkloadError
from harness.workloads.trace.formats import FORMATS, TraceFormat

_LONGEST_LINE = 1 << 20  # bytes of the file that are looked at


def guess_format(path: Path) -> str:
    """Return the name of the first known form whose fields the first line of the file has.

    A form whose own unit of time would be assumed (Mooncake: milliseconds) is only taken where
    `hash_ids` gives it away. Raises `WorkloadError` for a file that looks like none of them.
    """
    line = _first_line(path)
    kind, fields = _fields(line)
    by_marks = sorted(FORMATS.items(), key=lambda one: -len(one[1].marks))  # the closest first
    for name, form in by_marks:
        if form.lines == kind and _has_fields(form, fields):
            return name
    error = WorkloadError(f"{path}: the first line looks like no known trace: {line[:60]!r}")
    error.add_note(f"say which it is with format: {' | '.join(FORMATS)}")
    error.add_note(f"a table of your own has the columns {FORMATS['csv'].columns}")
    raise error


def _first_line(path: Path) -> str:
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
    """Return `json` or `csv`, and the names of the fields in a line of JSON or a CSV header."""
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
