"""One metric of another tool, which of ours stands beside it, and how tools take statistics."""

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
    """A metric as the tool names it; None where the tool has none."""

    name: str  # the tool's own words, with its unit
    value: float | None
    own: str | None  # where a run of the summary has the like, as `metrics.ttft_ms.p50`
    own_factor: float = 1.0  # turns our unit into the tool's
    why: str = ""  # how the formulas differ on these records; empty: they do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Several statistics of one quantity: what they are called, and what they are."""

    statistics: Mapping[str, tuple[Statistic, str]]  # the tool's word → (how, our word or none)

    def of(
        self, name: str, values: Floats, *, own: str | None, why: str = "", own_factor: float = 1.0
    ) -> Iterator[ToolMetric]:
        """Yield the statistics of `values`; `name` has a place for the tool's word."""
        for word, (statistic, our_word) in self.statistics.items():
            yield ToolMetric(
                name=name.format(word),
                value=statistic(values),
                own=None if own is None or not our_word else f"metrics.{own}.{our_word}",
                own_factor=own_factor,
                why=why,
            )


def mean(values: Floats) -> float | None:
    """Return the mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def greatest(values: Floats) -> float | None:
    """Return the greatest; None of nothing."""
    return float(np.max(values)) if len(values) else None


def linear(share: float) -> Statistic:
    """Return how to take a percentile, linear between order statistics; None of nothing."""
    return lambda values: percentiles(values, [share])[0] if len(values) else None


def zero_of_nothing(statistic: Statistic) -> Statistic:
    """Return `statistic` of a tool that prints 0 where there is no sample."""
    return lambda values: statistic(values) if len(values) else 0.0


def per(amount: float | None, length: float | None) -> float | None:
    """Return `amount` over `length`; None where one is not known or there is no length."""
    return amount / length if amount is not None and length is not None and length > 0 else None


def total(values: Floats) -> int | None:
    """Return the sum of counts; None where one of them is not known."""
    return None if np.isnan(values).any() else int(values.sum())


def added(*amounts: int | None) -> int | None:
    """Return the sum; None where an amount is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def meeting(limits: Limits, seen: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Return which requests keep every limit that is set; equal is kept, an absent metric is not.

    `seen` has a metric a request for each limit.
    """
    good = np.ones(len(next(iter(seen.values()))), np.bool_)
    for name, limit in limits.items():
        if limit is not None:
            good &= seen[name] <= limit
    return good


def any_limit(limits: Limits) -> bool:
    """Return whether there is an SLO to keep."""
    return any(limit is not None for limit in limits.values())
