"""How numbers are written for people: the only place that rounds one for the eye."""

from __future__ import annotations

import math
from collections.abc import Iterable

ABSENT = "–"  # what stands where nothing was measured; never 0


def significant(value: float | None, digits: int = 3) -> str:
    """Return `value` with at least `digits` significant digits and thousands separators.

    Whole digits are never rounded away: 12345.6 becomes "12,346". None becomes "–".
    """
    if value is None:
        return ABSENT
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    rounded = float(f"{value:.{digits - 1}e}")  # 99.96 has three whole digits once it is rounded
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{max(decimals, 0)}f}"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio with two decimals near 1 and two significant digits elsewhere."""
    if ratio is None:
        return ABSENT
    if ratio < 0.1:
        return significant(ratio, 2)
    return f"{ratio:.2f}" if ratio < 9.995 else significant(ratio, 3)


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval of ratios as "0.93 to 1.02"; "–" when it has no ends."""
    if low is None or high is None:
        return ABSENT
    return f"{ratio_text(low)} to {ratio_text(high)}"


def latency_unit(values_ms: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit that suits latencies in ms, and the factor that turns ms into it.

    Seconds from 10 s on, so that a column stays narrow; one unit for all of its rows.
    """
    largest_ms = max((value for value in values_ms if value is not None), default=0.0)
    return ("s", 1e-3) if largest_ms >= 10_000 else ("ms", 1.0)


def count(number: int, noun: str) -> str:
    """Return a counted noun, such as "1 run" or "1,200 requests"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def span(numbers: Iterable[float]) -> str:
    """Return "300" for equal numbers and "288 to 300" for others; "–" for none."""
    ordered = sorted(numbers)
    if not ordered:
        return ABSENT
    low, high = significant(ordered[0]), significant(ordered[-1])
    return low if low == high else f"{low} to {high}"
