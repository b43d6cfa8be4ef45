from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.statistics import (
    describe,
    geometric_mean,
    holm,
    needed_samples,
    paired_ratio,
    percentiles,
)

_VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [
        ([7], 7, 7, 7),
        ([10, 20, 30], 20, 28, 29.8),
        (range(1, 101), 50.5, 90.1, 99.01),
        (range(101), 50, 90, 99),
    ],
)
def test_percentiles_of_few_samples(
    values: list[float], p50: float, p90: float, p99: float
) -> None:
    """Linear between order statistics at index p·(N - 1), also where N is 1 or 3."""
    shuffled = np.random.default_rng(0).permutation(np.array(values, np.float64))

    assert percentiles(shuffled, [0.5, 0.9, 0.99]) == pytest.approx([p50, p90, p99])


@given(_VALUES)
def test_percentiles_agree_with_numpy(values: list[float]) -> None:
    """The formula is the one that numpy calls linear, in whatever order the values come."""
    shares = [0.0, 0.25, 0.5, 0.9, 0.99, 1.0]
    array = np.array(values)

    expected = np.percentile(array, [100 * share for share in shares])

    assert percentiles(array, shares) == pytest.approx(expected, rel=1e-9, abs=1e-3)


def test_percentiles_leave_the_values_as_they_are() -> None:
    """The order of the caller's array is not changed."""
    values = np.array([3.0, 1.0, 2.0])

    percentiles(values, [0.5])

    assert values.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(("share", "samples"), [(0.99, 299), (0.95, 59), (0.9, 29), (0.5, 5)])
def test_samples_that_a_percentile_needs(share: float, samples: int) -> None:
    """The first n with share^n ≤ 5 %: there, and not one sample earlier, a bound exists."""
    assert needed_samples(share) == samples
    assert share**samples <= 0.05 < share ** (samples - 1)


@pytest.mark.parametrize(
    ("n", "reliable", "needs"), [(299, True, 0), (298, False, 1), (1, False, 298)]
)
def test_p99_says_how_many_samples_it_lacks(n: int, reliable: bool, needs: int) -> None:
    """Reliable from 299 on; below, the number of samples that are missing."""
    stated = describe(np.arange(n, dtype=np.float64))

    assert stated is not None
    assert (stated.n, stated.p99_reliable, stated.p99_needs) == (n, reliable, needs)


def test_nothing_is_described_by_nothing() -> None:
    """No values have no mean, not a mean of 0."""
    assert describe(np.empty(0)) is None


def test_geometric_mean() -> None:
    """Of 2, 4 and 8 it is 4; with a 0 it is 0; of nothing there is none."""
    assert geometric_mean([2, 4, 8]) == pytest.approx(4)
    assert geometric_mean([0, 4]) == 0
    assert geometric_mean([]) is None


def test_paired_ratio_by_hand() -> None:
    """Log ratios ln 2 ± ln 1.1: mean ln 2, error ln 1.1, t(1) at 97.5 % is 12.706."""
    found = paired_ratio([220, 200 / 1.1], [100, 100])

    half = 12.7062047 * math.log(1.1)
    assert found.ratio == pytest.approx(2)
    assert found.low == pytest.approx(2 * math.exp(-half))
    assert found.high == pytest.approx(2 * math.exp(half))
    # Student's t with one degree of freedom is Cauchy: P(|T| > t) = 1 - 2·atan(t)/π
    t = math.log(2) / math.log(1.1)
    assert found.p_value == pytest.approx(1 - 2 * math.atan(t) / math.pi)


def test_paired_ratio_is_paired() -> None:
    """Blocks that differ tenfold leave a steady ratio its narrow interval."""
    found = paired_ratio([11, 110, 1100], [10, 100, 1000])

    assert found.ratio == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)


def test_one_block_has_a_ratio_and_no_interval() -> None:
    """A spread cannot be known from one pair."""
    found = paired_ratio([3], [2])

    assert found.ratio == pytest.approx(1.5)
    assert (found.low, found.high, found.p_value) == (None, None, None)


def test_equal_arms_give_exactly_one() -> None:
    """Virtual time repeats itself: ratio and both ends are 1 to the last digit, p is 1."""
    values = [1234.5678, 987.654, 1111.1]

    found = paired_ratio(values, values)

    assert (found.ratio, found.low, found.high, found.p_value) == (1.0, 1.0, 1.0, 1.0)


def test_blocks_that_agree_exactly_on_a_change_leave_no_doubt() -> None:
    """The same ratio of 2 in each block: an interval of no width, p is 0."""
    found = paired_ratio([2, 2, 2], [1, 1, 1])

    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)
    assert found.p_value == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=6))
def test_swapping_the_arms_inverts_the_answer(pairs: list[tuple[float, float]]) -> None:
    """What is said of on/off is what is said of off/on, turned round."""
    above, below = zip(*pairs, strict=True)

    one, other = paired_ratio(above, below), paired_ratio(below, above)

    assert one.low is not None
    assert other.high is not None
    assert math.log(one.ratio) == pytest.approx(-math.log(other.ratio), abs=1e-9)
    assert math.log(one.low) == pytest.approx(-math.log(other.high), abs=1e-9)


@pytest.mark.parametrize("blocks", [3, 5])
def test_the_interval_covers_the_true_ratio_as_often_as_it_says(blocks: int) -> None:
    """Of 4,000 simulated sweeps with a true ratio of 1.2, 95 % ± 1 % hold it."""
    rng = np.random.default_rng(20260105)
    base = rng.lognormal(5, 0.5, (4000, blocks))  # blocks differ much, as days do
    noise = rng.lognormal(0, 0.05, (2, 4000, blocks))

    found = [
        paired_ratio(1.2 * b * n, b * m) for b, n, m in zip(base, noise[0], noise[1], strict=True)
    ]

    covered = np.mean([f.low <= 1.2 <= f.high for f in found if f.low and f.high])
    rejected = np.mean([f.p_value is not None and f.p_value < 0.05 for f in found])
    assert covered == pytest.approx(0.95, abs=0.01)
    assert rejected > 0.5  # a change of 20 % at 7 % noise is seen more often than not


def test_holm_by_hand() -> None:
    """0.01, 0.03, 0.04 of three: × 3, × 2, × 1, kept in order and at most 1."""
    adjusted = holm({"a": 0.04, "b": 0.01, "c": 0.03})

    assert adjusted == {
        "b": pytest.approx(0.03),
        "c": pytest.approx(0.06),
        "a": pytest.approx(0.06),
    }
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_holm_keeps_false_alarms_at_the_level() -> None:
    """Twelve toggles without effect: at most about 5 % of the families ring at all."""
    draws = np.random.default_rng(1).uniform(size=(2000, 12))

    alarms = np.mean([min(holm(dict(enumerate(row))).values()) <= 0.05 for row in draws])

    assert alarms == pytest.approx(0.05, abs=0.015)
