"""One metric of another tool with our matching metric, and the statistics that tools use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.results.statistics import percentiles

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float | None]
Limits = Mapping[str, float | None]  # of the SLO, in ms: ttft_ms, tpot_ms, e2e_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetric:
    """A metric of the tool; the value is None if the tool prints none."""

    name: str  # the tool's name for it, with the unit
    value: float | None
    own: str | None  # our metric in a run of the summary, such as `metrics.ttft_ms.p50`
    own_factor: float = 1.0  # converts our unit into the tool's
    why: str = ""  # how the formulas differ on these records; empty: they do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Several statistics of one quantity."""

    statistics: Mapping[str, tuple[Statistic, str]]  # tool's name → (function, our name or "")

    def of(
        self, name: str, values: Floats, *, own: str | None, why: str = "", own_factor: float = 1.0
    ) -> Iterator[ToolMetric]:
        """Yield the statistics of `values`; `{}` in `name` is replaced by the tool's name."""
        for word, (statistic, our_word) in self.statistics.items():
            yield ToolMetric(
                name=name.format(word),
                value=statistic(values),
                own=None if own is None or not our_word else f"metrics.{own}.{our_word}",
                own_factor=own_factor,
                why=why,
            )


def mean(values: Floats) -> float | None:
    """Return the mean; None without values."""
    return float(np.mean(values)) if len(values) else None


def greatest(values: Floats) -> float | None:
    """Return the maximum; None without values."""
    return float(np.max(values)) if len(values) else None


def linear(share: float) -> Statistic:
    """Return a function for a percentile, linear between order statistics; None without values."""
    return lambda values: percentiles(values, [share])[0] if len(values) else None


def zero_of_nothing(statistic: Statistic) -> Statistic:
    """Return `statistic` with the result 0 without values."""
    return lambda values: statistic(values) if len(values) else 0.0


def per(amount: float | None, length: float | None) -> float | None:
    """Return `amount` / `length`; None if one is unknown or `length` is not positive."""
    return amount / length if amount is not None and length is not None and length > 0 else None


def total(values: Floats) -> int | None:
    """Return the sum of counts; None if one of them is unknown."""
    return None if np.isnan(values).any() else int(values.sum())


def added(*amounts: int | None) -> int | None:
    """Return the sum; None if an amount is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def meeting(limits: Limits, seen: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Return which requests meet every limit that is set.

    A value equal to the limit meets it; an absent one does not. `seen` maps each limit to the
    values of all requests.
    """
    good = np.ones(len(next(iter(seen.values()))), np.bool_)
    for name, limit in limits.items():
        if limit is not None:
            good &= seen[name] <= limit
    return good


def any_limit(limits: Limits) -> bool:
    """Return whether the SLO sets a limit."""
    return any(limit is not None for limit in limits.values())
