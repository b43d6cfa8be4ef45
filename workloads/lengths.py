"""How long texts and answers are: distributions of whole numbers of tokens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.workloads.base import WorkloadError
from harness.workloads.trace import RowError, csv_values, numbered_lines, shown

_NORMAL = NormalDist()
_LONGEST_TOKENS = 2**31 - 1  # longer than any context; bounds the tail that has no bound of its own
_DIGITS = re.compile(r"[0-9]{1,18}")


class Lengths(Protocol):
    """A distribution of token counts. The same generator state gives the same lengths."""

    @property
    def minimum(self) -> int:
        """The smallest length that can be drawn, in tokens."""
        ...

    @property
    def maximum(self) -> int | None:
        """The largest length that can be drawn, in tokens; None when there is no bound."""
        ...

    @property
    def mean(self) -> float:
        """The expected length in tokens."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, shape (count,)."""
        ...

    def describe(self) -> str:
        """Return the distribution in a few words, for the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length. 0 is for parts of a prompt that may be absent."""

    tokens: int

    def __post_init__(self) -> None:
        """Refuse what is no length."""
        if not 0 <= self.tokens <= _LONGEST_TOKENS:
            raise WorkloadError(f"a length cannot be {self.tokens} tokens")

    @property
    def minimum(self) -> int:
        """The length in tokens."""
        return self.tokens

    @property
    def maximum(self) -> int:
        """The length in tokens."""
        return self.tokens

    @property
    def mean(self) -> float:
        """The length in tokens."""
        return float(self.tokens)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - nothing is random here
        """Return the length `count` times, shape (count,)."""
        return np.full(count, self.tokens, dtype=np.int64)

    def describe(self) -> str:
        """Return the length."""
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from `low` to `high`, both included, is as likely as any other."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse bounds that hold no length."""
        if not 1 <= self.low <= self.high <= _LONGEST_TOKENS:
            raise WorkloadError(f"uniform lengths need 1 ≤ low ≤ high, not {self.low}, {self.high}")

    @property
    def minimum(self) -> int:
        """The lower bound in tokens."""
        return self.low

    @property
    def maximum(self) -> int:
        """The upper bound in tokens."""
        return self.high

    @property
    def mean(self) -> float:
        """The middle of the bounds, in tokens."""
        return (self.low + self.high) / 2

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, shape (count,)."""
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)

    def describe(self) -> str:
        """Return the bounds."""
        return f"uniform {self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths whose logarithm is normal, given by two figures that one can read off real traffic.

    Lengths outside [low, high] are set to the bound, so the bounds do not move the median.
    """

    median: float
    p99: float
    low: int = 1
    high: int | None = None

    def __post_init__(self) -> None:
        """Refuse figures that no such distribution has."""
        if not 1 <= self.median < self.p99 <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"lognormal lengths need 1 ≤ median < p99, not median {self.median:g} "
                f"and p99 {self.p99:g}; write a plain number for a fixed length"
            )
        if not 1 <= self.low <= self.median <= self.maximum <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"lognormal lengths need 1 ≤ low ≤ median ≤ high, not low {self.low}, "
                f"median {self.median:g}, high {self.high}"
            )

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the length."""
        return math.log(self.p99 / self.median) / _NORMAL.inv_cdf(0.99)

    @property
    def minimum(self) -> int:
        """The lower bound in tokens."""
        return self.low

    @property
    def maximum(self) -> int:
        """The upper bound in tokens."""
        return _LONGEST_TOKENS if self.high is None else self.high

    @property
    def mean(self) -> float:
        """The expected length in tokens, with what the bounds cut off; without rounding."""
        sigma, bounds = self.sigma, (float(self.low), float(self.maximum))
        low_z, high_z = (math.log(bound / self.median) / sigma for bound in bounds)
        inside = _NORMAL.cdf(high_z - sigma) - _NORMAL.cdf(low_z - sigma)
        at_low, at_high = _NORMAL.cdf(low_z), _NORMAL.cdf(-high_z)
        whole = self.median * math.exp(sigma**2 / 2)
        return whole * inside + bounds[0] * at_low + bounds[1] * at_high

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, shape (count,)."""
        lengths = self.median * np.exp(self.sigma * rng.standard_normal(count))
        return np.rint(np.clip(lengths, self.low, self.maximum)).astype(np.int64)

    def describe(self) -> str:
        """Return the two figures."""
        return f"lognormal median {self.median:g}, p99 {self.p99:g}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths drawn, each as likely as any other, from those that were seen."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty set and lengths below 1."""
        if not self.values:
            raise WorkloadError("empirical lengths need at least one length")
        for value in (min(self.values), max(self.values)):
            if not 1 <= value <= _LONGEST_TOKENS:
                raise WorkloadError(f"empirical lengths cannot be {value} tokens")

    @classmethod
    def from_file(cls, path: Path, column: str | None = None) -> Empirical:
        """Return the lengths of a CSV's column, or of a file with one number a line.

        Raises `WorkloadError` for the first line that holds no length.
        """
        lines = list(numbered_lines(path))
        position, rows = 0, lines
        if lines and (column is not None or not _DIGITS.fullmatch(lines[0][1])):
            position, rows = _column(path, lines[0], column), lines[1:]
        if not rows:
            raise WorkloadError(f"{path}: holds no lengths")
        return cls(tuple(_length(path, line, text, position) for line, text in rows))

    @property
    def minimum(self) -> int:
        """The smallest length seen, in tokens."""
        return min(self.values)

    @property
    def maximum(self) -> int:
        """The largest length seen, in tokens."""
        return max(self.values)

    @property
    def mean(self) -> float:
        """The mean of the lengths seen, in tokens."""
        return sum(self.values) / len(self.values)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, drawn with repetition, shape (count,)."""
        seen = np.array(self.values, dtype=np.int64)
        return seen[rng.integers(len(seen), size=count)]

    def describe(self) -> str:
        """Return how many lengths were seen, and their mean."""
        return f"empirical ({len(self.values)} lengths, mean {self.mean:.0f})"


def _column(path: Path, header: tuple[int, str], column: str | None) -> int:
    """Return the place of a column in a header; of the only one where none is named."""
    line, text = header
    names = _values(path, line, text)
    if column in names:
        return names.index(column)
    if column is None and len(names) == 1:
        return 0
    wanted = "several columns and no `column` to take" if column is None else f"no column {column}"
    raise WorkloadError(f"{path}: line {line}: {wanted}; its columns are {', '.join(names)}")


def _values(path: Path, line: int, text: str) -> list[str]:
    """Return the values of one line, whose number an error names."""
    try:
        return csv_values(text)
    except RowError as error:
        raise WorkloadError(f"{path}: line {line}: {error}") from error


def _length(path: Path, line: int, text: str, position: int) -> int:
    """Return the length that one line holds, in tokens."""
    values = _values(path, line, text)
    value = values[position] if position < len(values) else ""
    if not _DIGITS.fullmatch(value) or int(value) < 1:
        raise WorkloadError(f"{path}: line {line}: {shown(value)} is no length of at least 1 token")
    return int(value)
