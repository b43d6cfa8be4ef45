"""Plain statistics: numbers in, numbers out. Knows nothing of requests or runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Name = TypeVar("Name")
_PERCENTILES = (0.50, 0.90, 0.95, 0.99)


def percentiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Return the percentiles of `values`, which must not be empty, linear between order statistics.

    The p-th lies at index p·(N - 1) of the sorted values; what numpy calls "linear", definition 7
    of Hyndman and Fan, "Sample quantiles in statistical packages" (1996).
    """
    places = [share * (len(values) - 1) for share in shares]
    ranks = sorted({rank for place in places for rank in (math.floor(place), math.ceil(place))})
    ordered = np.partition(values, ranks)
    return [_between(ordered, place) for place in places]


def _between(ordered: NDArray[np.float64], place: float) -> float:
    below, above = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    if below == above:  # also where both are infinite, which have no difference
        return below
    return below + (place - math.floor(place)) * (above - below)


def needed_samples(share: float, confidence: float = 0.95) -> int:
    """Return from how many samples on the largest bounds the percentile from above.

    All n of n samples lie below the percentile with probability share^n; from share^n ≤
    1 - confidence on, a one-sided upper bound for it exists. 299 for P99 at 95 %. See Meeker,
    Hahn and Escobar, "Statistical Intervals", 2nd ed., section 5.
    """
    return math.ceil(math.log(1 - confidence) / math.log(share))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Statistics of the values of one metric; None for what is not finite."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    n: int
    p99_reliable: bool
    p99_needs: int  # more samples that P99 needs to be reliable


def describe(values: NDArray[np.float64], independent: int | None = None) -> Distribution | None:
    """Return mean, percentiles and reliability of `values`; None when there are none.

    `independent` is how many of them count as samples, where they come in bundles of the same
    cause (the gaps of one answer).
    """
    if len(values) == 0:
        return None
    samples = len(values) if independent is None else independent
    needs = max(0, needed_samples(0.99) - samples)
    mean, *stated = (
        value if math.isfinite(value) else None
        for value in (float(np.mean(values)), *percentiles(values, _PERCENTILES))
    )
    p50, p90, p95, p99 = stated
    return Distribution(
        mean=mean,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        n=len(values),
        p99_reliable=needs == 0,
        p99_needs=needs,
    )


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean; 0 when a value is 0, None for no values."""
    if not values:
        return None
    if min(values) <= 0:
        return 0.0
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two arms over blocks. Without at least two blocks there is no interval."""

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None  # two-sided, of "the ratio is 1"


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> Ratio:
    """Return the geometric mean ratio of paired positive values and its t interval.

    Student's t on the logarithms of the pairs' ratios, n - 1 degrees of freedom: what holds for
    n/d holds for d/n. It covers the true ratio as often as it says where the logarithms are about
    normal; blocks that are all alike give an interval of no width.
    """
    logs = np.log(np.asarray(numerators, np.float64)) - np.log(np.asarray(denominators, np.float64))
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return Ratio(ratio=math.exp(mean), low=None, high=None, p_value=None)
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    half = float(stdtrit(len(logs) - 1, (1 + confidence) / 2)) * error
    return Ratio(
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        p_value=_two_sided(mean, error, len(logs) - 1),
    )


def _two_sided(mean: float, error: float, freedom: int) -> float:
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(freedom, -abs(mean) / error))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Return p values adjusted for having made all these comparisons at once.

    The k-th smallest of m is multiplied by m - k + 1, kept in order and at most 1. The chance of
    any false alarm stays at the level asked for. Holm, "A simple sequentially rejective multiple
    test procedure" (1979).
    """
    adjusted: dict[Name, float] = {}
    largest = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - place)))
        adjusted[name] = largest
    return adjusted
