"""Quantities as a person writes them (`50 ms`, `1 %`) turned into plain numbers. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

from harness.sweep_file.problems import shown

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu: keyboards write either
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION = re.compile(r"\s*(\d{1,30}(?:\.\d+)?)\s*([a-zµμ]+)\s*", re.ASCII)
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)


def duration_ns(text: object) -> int:
    """Return a duration such as `1 s`, `50 ms` or `5 min` in nanoseconds, exactly.

    Raises `ValueError`, worded for the user, for a number without a unit and anything else.
    """
    words = text.strip() if isinstance(text, str) else ""
    if words.startswith("-") and _DURATION.fullmatch(words[1:]):
        raise ValueError(f"a duration must not be negative; found {shown(text)}")
    match = _DURATION.fullmatch(words)
    if match is None or match[2] not in _UNITS_NS:
        wanted = "expected a duration with its unit, such as '50 ms', '1 s' or '5 min'"
        raise ValueError(f"{wanted}; found {shown(text)}")
    return round(Fraction(match[1]) * _UNITS_NS[match[2]])


def share(value: object) -> float:
    """Return `1 %` or `0.01` as a share between 0 and 1.

    Raises `ValueError`, worded for the user, for anything else; a bare number above 1 is refused,
    since 5 may mean 5 % or five times.
    """
    number = _share(value)
    if number is None:
        raise ValueError(f"expected a share such as '1 %' or 0.01; found {shown(value)}")
    return number


def positive_share(value: object) -> float:
    """Return a share as `share` does, which must not be 0. Raises `ValueError`."""
    number = _share(value)
    if not number:
        wanted = "expected a share above 0 and at most 1, such as 0.9 or '90 %'"
        raise ValueError(f"{wanted}; found {shown(value)}")
    return number


def _share(value: object) -> float | None:
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
        number = float(Fraction(match[1]) / 100)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        return None
    return number if 0 <= number <= 1 else None


def plain_number(value: float) -> str:
    """Return a number in digits that a sweep file may hold: 1000000, never 1e+06."""
    return str(int(value)) if value == int(value) else f"{value:.15g}"


def duration_text(nanoseconds: int) -> str:
    """Return a duration the way a sweep file writes it, in the largest unit that stays short."""
    for unit in ("h", "min", "s", "ms", "us"):
        whole, rest = divmod(nanoseconds, _UNITS_NS[unit])
        if whole and not rest:
            return f"{whole} {unit}"
        if whole and unit not in ("h", "min"):  # 100 s, not 1.66667 min
            return f"{nanoseconds / _UNITS_NS[unit]:.6g} {unit}"
    return f"{nanoseconds} ns"
