"""Read the lines of a trace file, with line numbers, as JSON or CSV fields."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.workloads.base import WorkloadError

Fields = Mapping[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_FRACTION = re.compile(r"[+-]?[0-9]{1,30}\.[0-9]{0,30}")


class RowError(Exception):
    """An unusable row: a reason for the count, and a message with the value found."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An unusable row and its line number."""

    line: int  # physical line, from 1; the header of a CSV is line 1
    reason: str
    message: str

    def __str__(self) -> str:
        """Return the line number and the message."""
        return f"line {self.line}: {self.message}"


def check_file(path: Path) -> None:
    """Raise `WorkloadError` for a pipe or a device, whose end may never come."""
    kind = os.stat(path).st_mode if os.path.exists(path) else 0  # noqa: PTH110, PTH116  long names
    if kind and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise WorkloadError(f"{path}: not a regular file; expected a trace in a file")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (physical line number, text) of every line that is not blank.

    Accepts LF and CR LF line ends, a byte-order mark, and a last line without a line end. Invalid
    UTF-8 bytes become U+FFFD, so that the row parser reports the line. Raises `WorkloadError`.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                text = line.decode("utf-8", errors="replace").strip()
                if text:
                    yield number, text
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from error


def shown(value: object) -> str:
    """Return a value as written in the file, cut to 40 characters for an error message."""
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)


def json_fields(text: str) -> Fields:
    """Return the JSON object in one line, with fractions as `Decimal`. Raises `RowError`."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg} at column {error.colno}"
        raise RowError("bad_json", message) from error
    except (ValueError, RecursionError) as error:  # NaN, a number too long, nesting too deep
        raise RowError("bad_json", f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise RowError("not_an_object", f"expected a JSON object, found {shown(value)}")
    return value


def csv_values(text: str) -> list[str]:
    """Return the stripped values of one CSV line. Raises `RowError`."""
    try:
        return [value.strip() for value in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise RowError("bad_csv", f"not valid CSV: {error}") from error


def csv_fields(header: list[str], text: str) -> Fields:
    """Return the values of one CSV line by the names in the header. Raises `RowError`.

    A number is an `int` or, with a fraction, a `Decimal`, as in `json_fields`.
    """
    values = csv_values(text)
    if len(values) != len(header):
        found = f"found {len(values)} values, but the header has {len(header)}"
        raise RowError("wrong_columns", found)
    return dict(zip(header, map(_typed, values), strict=True))


def _typed(value: str) -> str | int | Decimal:
    """Return a CSV value as a number if it is one, otherwise as text."""
    if _INTEGER.fullmatch(value):
        return int(value)
    return Decimal(value) if _FRACTION.fullmatch(value) else value
