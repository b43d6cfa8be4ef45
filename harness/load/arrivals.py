"""When conversations start: times drawn before the clock starts, so that no engine can slow them.

Times are whole nanoseconds after the start of the load, in order. A seed draws here other numbers
than the same seed draws in a workload: when and what vary apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

NS_PER_S = 1_000_000_000
_LATEST_NS = 2.0**62  # 146 years: later times do not fit in 64 bits, and no load lasts as long
_ARRIVALS_KEY = 0x617272  # splits this module's random stream from all others of one seed

Gaps = Callable[[int], NDArray[np.float64]]  # how many → that many more gaps, in seconds


def constant_arrivals(
    rate_rps: float, *, count: int | None = None, duration_ns: int | None = None
) -> tuple[int, ...]:
    """Return times i / rate for i = 0, 1, …, in nanoseconds.

    Give `count`, or `duration_ns` for all times before it. Each time is rounded by itself, so no
    error adds up.
    """
    _check_rate(rate_rps)
    indices = np.arange(_wanted(rate_rps, count, duration_ns), dtype=np.float64)
    times = _rounded_ns(indices * min(NS_PER_S / rate_rps, _LATEST_NS))
    return tuple((times if duration_ns is None else times[times < duration_ns]).tolist())


def poisson_arrivals(
    rate_rps: float, *, count: int | None = None, duration_ns: int | None = None, seed: int
) -> tuple[int, ...]:
    """Return the times of a Poisson process of `rate_rps` a second, in nanoseconds.

    Give `count`, or `duration_ns` for all times before it. The same seed gives the same times; a
    larger `count` or `duration_ns` only adds to their end.
    """
    _check_rate(rate_rps)
    rng = _arrivals_rng(seed)
    return _times(lambda n: rng.exponential(1 / rate_rps, n), rate_rps, count, duration_ns)


def gamma_arrivals(
    rate_rps: float,
    cv: float,
    *,
    count: int | None = None,
    duration_ns: int | None = None,
    seed: int,
) -> tuple[int, ...]:
    """Return times whose gaps are gamma distributed, mean 1 / `rate_rps`, in nanoseconds.

    `cv` is the gaps' standard deviation over their mean: 1 is a Poisson process, above it comes in
    bursts, below it is more even. `count`, `duration_ns` and `seed` as in `poisson_arrivals`.
    """
    _check_rate(rate_rps)
    if not 0 < cv < float("inf"):
        raise ValueError(f"cv must be above 0 and finite, got {cv}: use constant_arrivals for 0")
    shape = 1 / cv**2
    scale_s = 1 / (rate_rps * shape)
    rng = _arrivals_rng(seed)
    return _times(lambda n: rng.gamma(shape, scale_s, n), rate_rps, count, duration_ns)


def trace_arrivals(
    starts_ns: Sequence[int], *, speedup: float = 1.0, limit: int | None = None
) -> tuple[int, ...]:
    """Return the times of a trace, in nanoseconds after its first one.

    `starts_ns` are in order. `speedup` 4 plays four seconds of the trace in one; `limit` keeps the
    first so many.
    """
    if not 0 < speedup < float("inf"):
        raise ValueError(f"speedup must be above 0 and finite, got {speedup}")
    starts = np.asarray(starts_ns[:limit], dtype=np.int64)
    if starts.size == 0:
        return ()
    if np.any(np.diff(starts) < 0):
        raise ValueError("the trace's start times are not in order")
    return tuple(np.rint((starts - starts[0]) / speedup).astype(np.int64).tolist())


def _check_rate(rate_rps: float) -> None:
    if not 0 < rate_rps < float("inf"):
        raise ValueError(f"rate_rps must be above 0 and finite, got {rate_rps}")


def _arrivals_rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ARRIVALS_KEY,)))


def _times(
    gaps: Gaps, rate_rps: float, count: int | None, duration_ns: int | None
) -> tuple[int, ...]:
    """Sum gaps to times; the sums are kept as floats and rounded once each."""
    wanted = _wanted(rate_rps, count, duration_ns)
    drawn = gaps(wanted)
    if duration_ns is None:
        return tuple(_sums_ns(drawn).tolist())
    while (times := _sums_ns(drawn))[-1] < duration_ns:
        drawn = np.concatenate([drawn, gaps(wanted)])
    return tuple(times[times < duration_ns].tolist())


def _wanted(rate_rps: float, count: int | None, duration_ns: int | None) -> int:
    """Return how many times to draw: `count`, or what `duration_ns` holds on average and some."""
    if count is not None and duration_ns is None:
        return count
    if duration_ns is not None and count is None:
        return int(duration_ns * rate_rps / NS_PER_S) + 64
    raise ValueError("give either count or duration_ns")


def _sums_ns(gaps_s: NDArray[np.float64]) -> NDArray[np.int64]:
    return _rounded_ns(np.cumsum(np.minimum(gaps_s, _LATEST_NS)) * NS_PER_S)


def _rounded_ns(times_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(np.minimum(times_ns, _LATEST_NS)).astype(np.int64)
