"""The mark of values that no engine gave: on every title, table, plot and page that shows them."""

from __future__ import annotations

from typing import Protocol


class Marked(Protocol):
    """What may show values that no engine gave."""

    @property
    def simulated(self) -> bool:
        """Whether some times come from a model of the hardware."""
        ...

    @property
    def stand_in(self) -> bool:
        """Whether some times are those of a program that imitates an engine."""
        ...


def unmeasured(document: Marked) -> str:
    """Return "SIMULATED", "STAND-IN", both, or nothing where all was measured on real engines.

    A stand-in imitates an engine to test how it is started and asked; its timings mean nothing.
    """
    marks = ["SIMULATED"] * document.simulated + ["STAND-IN"] * document.stand_in
    return " · ".join(marks)
