"""Arrival times: the process that is named, at the rate that is asked, the same for one seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.load.arrivals import (
    constant_arrivals,
    gamma_arrivals,
    poisson_arrivals,
    trace_arrivals,
)

S = 1_000_000_000
ALPHA = 0.001


def gaps_s(times_ns: tuple[int, ...]) -> NDArray[np.float64]:
    """All gaps in seconds, the one from the start of the load included."""
    return np.diff(np.array((0, *times_ns))) / S


@pytest.mark.parametrize("seed", [0, 1, 2, 2**63])
@pytest.mark.parametrize("rate_rps", [0.3, 2.0, 500.0])
def test_poisson_gaps_are_exponential(seed: int, rate_rps: float) -> None:
    """A Kolmogorov-Smirnov test cannot tell the gaps from an exponential of mean 1 / rate."""
    gaps = gaps_s(poisson_arrivals(rate_rps, count=5000, seed=seed))

    assert stats.kstest(gaps, stats.expon(scale=1 / rate_rps).cdf).pvalue > ALPHA


def test_poisson_places_arrivals_evenly_within_a_second() -> None:
    """Arrivals do not gather at whole seconds: their fractions of a second are uniform."""
    times = np.array(poisson_arrivals(1.0, count=5000, seed=5))

    assert stats.kstest(times % S / S, "uniform").pvalue > ALPHA


def test_poisson_counts_vary_as_a_poisson_process_does() -> None:
    """Counts in equal windows have a variance equal to their mean: the number is not fixed."""
    counts = [len(poisson_arrivals(20.0, duration_ns=5 * S, seed=seed)) for seed in range(400)]

    mean, variance = np.mean(counts), np.var(counts, ddof=1)

    assert abs(mean - 100) < 4 * 10 / np.sqrt(400)  # standard error of a mean of 400 counts
    assert 0.75 < variance / mean < 1.3


@pytest.mark.parametrize("cv", [0.25, 1.0, 1.5, 2.0])
def test_gamma_gaps_are_gamma_distributed(cv: float) -> None:
    """A Kolmogorov-Smirnov test cannot tell the gaps from a gamma of that mean and cv."""
    gaps = gaps_s(gamma_arrivals(10.0, cv, count=5000, seed=3))

    assert stats.kstest(gaps, stats.gamma(1 / cv**2, scale=0.1 * cv**2).cdf).pvalue > ALPHA


@pytest.mark.parametrize("cv", [0.25, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_mean_and_the_cv_asked_for(cv: float) -> None:
    """The mean rate is the one asked for, and so is the gaps' coefficient of variation.

    At cv 4 a quarter of the gaps is below half a nanosecond, so only the moments can be compared.
    """
    count = 20_000
    gaps = gaps_s(gamma_arrivals(10.0, cv, count=count, seed=3))

    assert abs(gaps.mean() - 0.1) < 4 * 0.1 * cv / np.sqrt(count)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_a_gamma_process_of_another_cv_is_told_apart() -> None:
    """The test above can fail: gaps of cv 1.2 do not pass for exponential ones."""
    gaps = gaps_s(gamma_arrivals(10.0, 1.2, count=5000, seed=3))

    assert stats.kstest(gaps, stats.expon(scale=0.1).cdf).pvalue < ALPHA


def test_constant_gaps_are_equal_and_the_first_is_at_zero() -> None:
    """Constant arrivals have no spread at all."""
    assert constant_arrivals(4.0, count=5) == (0, S // 4, S // 2, 3 * S // 4, S)
    assert np.diff(constant_arrivals(8.0, count=1000)).std() == 0


def test_constant_arrivals_do_not_drift_at_odd_rates() -> None:
    """At 3 a second the 3,000,000th arrival is at its second to the nanosecond."""
    times = constant_arrivals(3.0, count=3_000_001)

    assert times[3_000_000] == 1_000_000 * S
    assert set(np.diff(times[:1000]).tolist()) == {333_333_333, 333_333_334}


def test_a_duration_holds_the_arrivals_before_its_end() -> None:
    """Ten seconds at three a second are thirty arrivals; the one at the end is outside."""
    assert len(constant_arrivals(3.0, duration_ns=10 * S)) == 30
    assert constant_arrivals(1.0, duration_ns=0) == ()
    assert poisson_arrivals(1.0, duration_ns=0, seed=0) == ()


DRAWS: list[Callable[..., tuple[int, ...]]] = [
    poisson_arrivals,
    lambda rate_rps, **how: gamma_arrivals(rate_rps, 0.5, **how),
    lambda rate_rps, **how: gamma_arrivals(rate_rps, 3.0, **how),
]


@pytest.mark.parametrize("draw", DRAWS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), few=st.integers(0, 300), more=st.integers(0, 2000))
def test_asking_for_more_only_adds_to_the_end(
    draw: Callable[..., tuple[int, ...]], seed: int, few: int, more: int
) -> None:
    """The same seed gives the same times, and a larger count begins with the smaller one."""
    short = draw(7.0, count=few, seed=seed)
    long = draw(7.0, count=few + more, seed=seed)

    assert len(short) == few
    assert long[:few] == short
    assert list(long) == sorted(long)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seed", range(10))
def test_a_duration_gives_the_same_process_as_a_count(
    draw: Callable[..., tuple[int, ...]], seed: int
) -> None:
    """All of the process before the end is there, also where it has more arrivals than usual."""
    everything = draw(40.0, count=4000, seed=seed)

    window = draw(40.0, duration_ns=20 * S, seed=seed)

    assert everything[-1] > 20 * S
    assert window == tuple(time_ns for time_ns in everything if time_ns < 20 * S)


def test_a_burst_longer_than_expected_is_drawn_to_its_end() -> None:
    """A process with wild gaps is not cut short where the first draw did not reach the end."""
    for seed in range(40):
        window = gamma_arrivals(100.0, 10.0, duration_ns=2 * S, seed=seed)
        longer = gamma_arrivals(100.0, 10.0, duration_ns=40 * S, seed=seed)

        assert window == tuple(time_ns for time_ns in longer if time_ns < 2 * S)


def test_another_seed_gives_other_times() -> None:
    """Seeds are used."""
    assert poisson_arrivals(1.0, count=9, seed=1) != poisson_arrivals(1.0, count=9, seed=2)


def test_a_seed_shared_with_the_content_shares_no_draws() -> None:
    """With one seed for both, arrivals are not the numbers that a workload would draw."""
    content = np.random.default_rng(7).exponential(1.0, 2000)
    gaps = gaps_s(poisson_arrivals(1.0, count=2000, seed=7))

    assert abs(np.corrcoef(content, gaps)[0, 1]) < 0.1


def test_a_trace_keeps_its_times_relative_to_its_first() -> None:
    """Offsets count from the first row; speedup divides them; limit keeps the first rows."""
    rows = [5 * S, 5 * S, 9 * S, 1_000 * S]

    assert trace_arrivals(rows) == (0, 0, 4 * S, 995 * S)
    assert trace_arrivals(rows, speedup=4, limit=3) == (0, 0, S)
    assert trace_arrivals(rows, speedup=0.5, limit=3) == (0, 0, 8 * S)
    assert trace_arrivals([]) == ()


def test_times_are_plain_integers() -> None:
    """Times are Python integers, so that records hold no other kind."""
    drawn = [
        *constant_arrivals(2.0, count=2),
        *poisson_arrivals(2.0, count=2, seed=0),
        *gamma_arrivals(2.0, 2.0, duration_ns=S, seed=0),
        *trace_arrivals([1, 2], speedup=2),
    ]

    assert {type(time_ns) for time_ns in drawn} == {int}


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: constant_arrivals(0.0, count=1), "rate_rps"),
        (lambda: poisson_arrivals(float("nan"), count=1, seed=0), "rate_rps"),
        (lambda: poisson_arrivals(float("inf"), count=1, seed=0), "rate_rps"),
        (lambda: poisson_arrivals(1.0, seed=0), "either count or duration_ns"),
        (lambda: constant_arrivals(1.0, count=1, duration_ns=1), "either count or duration_ns"),
        (lambda: gamma_arrivals(1.0, 0.0, count=1, seed=0), "constant_arrivals"),
        (lambda: trace_arrivals([2, 1]), "not in order"),
        (lambda: trace_arrivals([1], speedup=0), "speedup"),
    ],
)
def test_a_process_that_cannot_be_is_refused(
    draw: Callable[[], tuple[int, ...]], message: str
) -> None:
    """Arguments without a meaning raise, and the text names the argument."""
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize("rate_rps", [1e-9, 1e-30, 1e-300])
def test_a_rate_whose_first_gap_outlasts_every_clock_ends(rate_rps: float) -> None:
    """Times beyond 64 bits are late, not negative, so the draw ends."""
    hour_ns = 3600 * S

    assert constant_arrivals(rate_rps, duration_ns=hour_ns) == (0,)
    assert poisson_arrivals(rate_rps, duration_ns=hour_ns, seed=1) == ()
    assert len(gamma_arrivals(rate_rps, 2.0, duration_ns=hour_ns, seed=1)) <= 1
