"""Distributions of lengths in tokens, for parts of prompts and for outputs."""

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
_LONGEST_TOKENS = 2**31 - 1  # longer than any context; the limit of a distribution without `high`
_DIGITS = re.compile(r"[0-9]{1,18}")


class Lengths(Protocol):
    """A distribution of token counts. The same generator state gives the same lengths."""

    @property
    def minimum(self) -> int:
        """The smallest possible length in tokens."""
        ...

    @property
    def maximum(self) -> int | None:
        """The largest possible length in tokens; None without a limit."""
        ...

    @property
    def mean(self) -> float:
        """The expected length in tokens."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, shape (count,)."""
        ...

    def describe(self) -> str:
        """Return a short description of the distribution for the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same length in every draw. A part of a prompt with length 0 is absent."""

    tokens: int

    def __post_init__(self) -> None:
        """Refuse a length outside 0 to 2**31 - 1."""
        if not 0 <= self.tokens <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"invalid length {self.tokens}; expected 0 to {_LONGEST_TOKENS} tokens"
            )

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

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG002 - a fixed length needs no random numbers
        """Repeat the length `count` times, shape (count,)."""
        return np.full(count, self.tokens, dtype=np.int64)

    def describe(self) -> str:
        """Return the length."""
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniformly distributed lengths from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse bounds that contain no valid length."""
        if not 1 <= self.low <= self.high <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"uniform lengths need 1 ≤ low ≤ high, not low {self.low}, high {self.high}"
            )

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
        """The mean of both bounds in tokens."""
        return (self.low + self.high) / 2

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, shape (count,)."""
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)

    def describe(self) -> str:
        """Return the bounds."""
        return f"uniform {self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths with a normally distributed logarithm, given by median and 99th percentile.

    Both parameters can be measured on real traffic. A length outside [low, high] becomes the
    nearest bound, so the bounds do not change the median.
    """

    median: float
    p99: float
    low: int = 1
    high: int | None = None

    def __post_init__(self) -> None:
        """Refuse parameters that no lognormal distribution of lengths has."""
        if not 1 <= self.median < self.p99 <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"lognormal lengths need 1 ≤ median < p99, not median {self.median:g} "
                f"and p99 {self.p99:g}; for a fixed length, write a plain number"
            )
        if not 1 <= self.low <= self.median <= self.maximum <= _LONGEST_TOKENS:
            raise WorkloadError(
                f"lognormal lengths need 1 ≤ low ≤ median ≤ high, not low {self.low}, "
                f"median {self.median:g}, high {self.high}"
            )

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm of the length."""
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
        """The expected length in tokens, including the effect of the bounds, not of rounding."""
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
        """Return median and 99th percentile."""
        return f"lognormal median {self.median:g}, p99 {self.p99:g}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths drawn with equal probability from a list of observed lengths."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty list and lengths below 1."""
        if not self.values:
            raise WorkloadError("empirical lengths need at least one length")
        for value in (min(self.values), max(self.values)):
            if not 1 <= value <= _LONGEST_TOKENS:
                raise WorkloadError(
                    f"empirical lengths contain {value}; expected 1 to {_LONGEST_TOKENS} tokens"
                )

    @classmethod
    def from_file(cls, path: Path, column: str | None = None) -> Empirical:
        """Read lengths from one column of a CSV file, or from a file with one number per line.

        Raises `WorkloadError` for the first line without a valid length.
        """
        lines = list(numbered_lines(path))
        position, rows = 0, lines
        if lines and (column is not None or not _DIGITS.fullmatch(lines[0][1])):
            position, rows = _column(path, lines[0], column), lines[1:]
        if not rows:
            raise WorkloadError(f"{path}: the file contains no lengths")
        return cls(tuple(_length(path, line, text, position) for line, text in rows))

    @property
    def minimum(self) -> int:
        """The smallest observed length in tokens."""
        return min(self.values)

    @property
    def maximum(self) -> int:
        """The largest observed length in tokens."""
        return max(self.values)

    @property
    def mean(self) -> float:
        """The mean of the observed lengths in tokens."""
        return sum(self.values) / len(self.values)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` lengths in tokens, drawn with replacement, shape (count,)."""
        seen = np.array(self.values, dtype=np.int64)
        return seen[rng.integers(len(seen), size=count)]

    def describe(self) -> str:
        """Return the number of observed lengths and their mean."""
        return f"empirical ({len(self.values)} lengths, mean {self.mean:.0f})"


def _column(path: Path, header: tuple[int, str], column: str | None) -> int:
    """Return the index of `column` in the header; with `column` None, of the only column."""
    line, text = header
    names = _values(path, line, text)
    if column in names:
        return names.index(column)
    if column is None and len(names) == 1:
        return 0
    wrong = "several columns; set `column` to one" if column is None else f"no column {column}"
    raise WorkloadError(f"{path}: line {line}: {wrong}; the columns are {', '.join(names)}")


def _values(path: Path, line: int, text: str) -> list[str]:
    """Return the values of one CSV line. An error names the line number."""
    try:
        return csv_values(text)
    except RowError as error:
        raise WorkloadError(f"{path}: line {line}: {error}") from error


def _length(path: Path, line: int, text: str, position: int) -> int:
    """Return the length in one line, in tokens."""
    values = _values(path, line, text)
    value = values[position] if position < len(values) else ""
    if not _DIGITS.fullmatch(value) or int(value) < 1:
        raise WorkloadError(
            f"{path}: line {line}: invalid length {shown(value)}; expected at least 1 token"
        )
    return int(value)
