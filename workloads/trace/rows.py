"""Parse trace files. Each line becomes a usable row or a fault with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from harness.workloads.base import WorkloadError
from harness.workloads.trace.formats import NANOSECONDS, UNIT_IN_NAME, TraceFormat
from harness.workloads.trace.lines import (
    Fault,
    Fields,
    RowError,
    csv_fields,
    csv_values,
    json_fields,
    numbered_lines,
    shown,
)

_WORD_LIMIT = 2**63  # limit of 64-bit integers: ids, and nanoseconds since 1970 (the year 2262)
_WALL_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINKS = ("session", "session_id", "chat_id")  # fields that link rows into one conversation


class _OptionError(Exception):
    """A value that the file does not contain, and the option that sets it."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    line: int  # physical line in its file, from 1
    time_ns: int | None  # time with the file's own origin; None in a file without times
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None  # one id per block; None: shared prefixes are unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """The rows and faults of a trace file, in file order."""

    rows: list[TraceRow]
    faults: list[Fault]
    linked_by: str | None  # the field that links rows into one conversation; None without one
    shrunk_from_tokens: int | None = None  # block size in the file; None: prompts are not shrunk


def shrink(row: TraceRow, own_tokens: int, block_tokens: int) -> TraceRow:
    """Return `row` with all blocks, the partial last one too, shrunk to `block_tokens` tokens."""
    if row.hash_ids is None:
        return row
    full = len(row.hash_ids) - 1
    last = row.input_tokens - full * own_tokens
    shrunk = full * block_tokens + -(-last * block_tokens // own_tokens)
    return replace(row, input_tokens=shrunk)


def read_rows(path: Path, form: TraceFormat) -> TraceRows:
    """Return the usable rows of a trace file, and the faults of its other lines.

    Raises `WorkloadError` when the file cannot be read or lacks a column.
    """
    rows: list[TraceRow] = []
    faults: list[Fault] = []
    linked_by: str | None = None
    lines = numbered_lines(path)
    fields_of = _parser(path, form, lines)
    for line, text in lines:
        try:
            fields = fields_of(text)
            rows.append(_row(line, fields, form))
        except RowError as error:
            faults.append(Fault(line=line, reason=error.reason, message=str(error)))
        except _OptionError as needed:
            refusal = WorkloadError(f"{path}: line {line}: {needed}")
            refusal.add_note(f"set it in the sweep file: {needed.option}")
            raise refusal from needed
        else:
            linked_by = linked_by or next((name for name in _LINKS if name in fields), None)
    if any(row.time_ns is not None for row in rows):
        faults += [_untimed(row, form) for row in rows if row.time_ns is None]
        rows = [row for row in rows if row.time_ns is not None]
    faults.sort(key=lambda fault: fault.line)
    return TraceRows(rows=rows, faults=faults, linked_by=linked_by)


def _untimed(row: TraceRow, form: TraceFormat) -> Fault:
    """Return the fault of a row without a time in a file that has times."""
    message = f"no {form.time_fields[0]}, but other rows have one"
    return Fault(line=row.line, reason="missing", message=message)


def _parser(
    path: Path, form: TraceFormat, lines: Iterator[tuple[int, str]]
) -> Callable[[str], Fields]:
    """Return the parser of a row. For CSV, consume the header from `lines`."""
    if form.lines == "json":
        return json_fields
    line, text = next(lines, (1, ""))
    try:
        header = csv_values(text)
    except RowError as error:
        raise WorkloadError(f"{path}: line {line}: {error}") from error
    missing = [names for names in form.needed_fields if not set(names) & set(header)]
    if missing:
        found = f"found {', '.join(map(shown, header))}" if text else "the file is empty"
        named = ", ".join(names[0] for names in missing)
        refusal = WorkloadError(f"{path}: line {line}: no column {named}; {found}")
        refusal.add_note(f"required columns: {form.columns}")
        raise refusal
    return partial(csv_fields, header)


def _row(line: int, fields: Fields, form: TraceFormat) -> TraceRow:
    """Return the row with the fields of one line. Raises `RowError`."""
    time_ns = _time_ns(fields, form)
    tokens = _tokens(fields, form.input_fields, "zero_input")
    output_tokens = _tokens(fields, form.output_fields, "zero_output")
    ids = _hash_ids(fields, tokens, form) if form.has_blocks else None
    return TraceRow(line, time_ns, tokens, output_tokens, ids)


def _found(fields: Fields, names: tuple[str, ...]) -> tuple[str, Any]:
    """Return name and value of a field by the first name present; value None if absent."""
    for name in names:
        value = fields.get(name)
        if value is not None and value != "":
            return name, value
    return names[0], None


def _tokens(fields: Fields, names: tuple[str, ...], zero: str) -> int:
    """Return a length in tokens, at least 1. Raises `RowError`."""
    name, value = _found(fields, names)
    if value is None:
        raise RowError("missing", f"no {name}")
    if type(value) is not int:  # also refuses a bool
        raise RowError("not_an_integer", f"{name} is {shown(value)}, expected a whole number")
    if value < 1:
        reason = "negative" if value else zero
        raise RowError(reason, f"{name} is {shown(value)}, expected at least 1")
    return value


def _time_ns(fields: Fields, form: TraceFormat) -> int | None:
    """Return a row's time in nanoseconds, with the file's own origin. Raises `RowError`."""
    name, value = _found(fields, form.time_fields)
    if value is None:
        if form.time_needed:
            raise RowError("missing", f"no {name}")
        return None
    if form.wall_time:
        return _wall_time_ns(name, value)
    if type(value) is not int and not isinstance(value, Decimal):
        raise RowError("bad_time", f"{name} is {shown(value)}, expected a number")
    if value < 0:
        raise RowError("negative", f"{name} is {shown(value)}, expected at least 0")
    nanoseconds = NANOSECONDS[UNIT_IN_NAME.get(name) or _unit(form)]
    if value >= _WORD_LIMIT // nanoseconds:
        raise RowError("bad_time", f"{name} is {shown(value)}, expected a time before 2262")
    return round(value * nanoseconds)


def _unit(form: TraceFormat) -> str:
    """Return the unit of a plain `timestamp`. Raise `_OptionError` when it is not set."""
    if form.time_unit is None:
        raise _OptionError(
            "the unit of timestamp is unknown", f"time_unit: {' | '.join(NANOSECONDS)}"
        )
    return form.time_unit


def _wall_time_ns(name: str, value: object) -> int:
    """Return a wall-clock time as nanoseconds since 1970. Raises `RowError`.

    A time without a zone is UTC. Keeps nanoseconds, because `datetime` drops the seventh digit.
    """
    refusal = RowError(
        "bad_time", f"{name} is {shown(value)}, expected YYYY-MM-DD HH:MM:SS.fraction"
    )
    match = _WALL_TIME.fullmatch(str(value))
    if match is None:
        raise refusal
    second, fraction, zone = match.groups()
    try:
        time = datetime.fromisoformat(f"{second}{zone or '+00:00'}")
    except ValueError as error:  # the 31st of February
        raise refusal from error
    since_1970 = time - _EPOCH
    seconds = since_1970.days * 86_400 + since_1970.seconds
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _hash_ids(fields: Fields, tokens: int, form: TraceFormat) -> tuple[int, ...] | None:
    """Return the block ids of a row; None without `hash_ids`. Raises `RowError`."""
    ids = fields.get("hash_ids")
    if ids is None:
        return None
    if not isinstance(ids, list):
        raise RowError("not_an_integer", f"hash_ids is {shown(ids)}, expected a list of integers")
    for value in ids:
        if type(value) is not int or not -_WORD_LIMIT <= value < _WORD_LIMIT:
            message = f"hash_ids contains {shown(value)}, expected 64-bit integers"
            raise RowError("not_an_integer", message)
    needed = -(-tokens // _block_tokens(form))
    if len(ids) != needed:
        message = (
            f"hash_ids has {len(ids)} ids, but input_length {tokens} needs {needed} "
            f"at {form.block_tokens} tokens per block"
        )
        raise RowError("blocks_mismatch", message)
    return tuple(ids)


def _block_tokens(form: TraceFormat) -> int:
    """Return the tokens of a block. Raise `_OptionError` when the number is not set."""
    if form.block_tokens is None:
        options = "block_tokens (Mooncake: 512, Bailian: 16)"
        raise _OptionError("the number of tokens per hash id is unknown", options)
    return form.block_tokens
