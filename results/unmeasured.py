"""The mark of figures that no engine gave: on every title, table, plot and page that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MARKS = {"simulated": "SIMULATED", "stand_in": "STAND-IN"}


def unmeasured(summary: Mapping[str, Any]) -> str:
    """Return "SIMULATED", "STAND-IN", both, or nothing where all was measured on real engines.

    Simulated times come from a model of the hardware. A stand-in is a program that speaks like an
    engine, to test how it is started and asked: its times are nobody's.
    """
    return " · ".join(mark for key, mark in _MARKS.items() if summary.get(key))
