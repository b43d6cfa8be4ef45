"""Distributions of lengths: the draws have the requested parameters."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from harness.workloads.base import WorkloadError
from harness.workloads.lengths import Empirical, Fixed, Lengths, Lognormal, Uniform

EACH_KIND: list[Lengths] = [
    Fixed(7),
    Uniform(3, 9),
    Lognormal(120, 900),
    Lognormal(120, 900, low=100, high=150),
    Empirical((5, 5, 80)),
]


# The critical value of √n times the Kolmogorov-Smirnov distance at α = 0.001; conservative for
# whole numbers.
KOLMOGOROV = math.sqrt(-math.log(0.001 / 2) / 2)


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("lengths", EACH_KIND, ids=lambda lengths: lengths.describe())
def test_every_kind_has_its_stated_bounds_and_mean(lengths: Lengths) -> None:
    """Draws are repeatable whole numbers within the stated bounds and near the stated mean."""
    drawn = lengths.draw(40_000, generator())
    assert drawn.shape == (40_000,)
    assert drawn.dtype == np.int64
    assert drawn.min() >= lengths.minimum
    assert lengths.maximum is None or drawn.max() <= lengths.maximum
    assert drawn.mean() == pytest.approx(lengths.mean, rel=0.02)
    assert np.array_equal(drawn, lengths.draw(40_000, generator()))
    assert len(np.unique(drawn)) == 1 or not np.array_equal(
        drawn, lengths.draw(40_000, generator(2))
    )


def test_uniform_reaches_both_bounds() -> None:
    """Both bounds are among the lengths drawn."""
    assert set(Uniform(3, 5).draw(1_000, generator()).tolist()) == {3, 4, 5}


def test_lognormal_has_the_requested_median_and_p99() -> None:
    """Median and 99th percentile of many draws equal the two parameters."""
    drawn = Lognormal(120, 900).draw(200_000, generator())
    assert np.median(drawn) == pytest.approx(120, rel=0.01)
    assert np.percentile(drawn, 99) == pytest.approx(900, rel=0.03)


def test_lognormal_lengths_outside_the_bounds_become_the_bound() -> None:
    """Lengths outside the bounds become the bound, and the median does not change."""
    drawn = Lognormal(120, 900, low=60, high=500).draw(50_000, generator())
    assert (drawn.min(), drawn.max()) == (60, 500)
    assert (drawn == 60).mean() > 0.1
    assert np.median(drawn) == pytest.approx(120, rel=0.02)


def distance(lengths: Lengths, below: Callable[[int], float], seed: int) -> float:
    """Return √n times the Kolmogorov-Smirnov distance of 5000 draws from the shares `below`."""
    drawn = np.sort(lengths.draw(5000, generator(seed)))
    values = np.unique(np.concatenate([drawn, drawn - 1]))
    seen = np.searchsorted(drawn, values, side="right") / len(drawn)
    return math.sqrt(len(drawn)) * float(np.abs(seen - [below(int(v)) for v in values]).max())


def lognormal_share(median: float, p99: float, low: int, high: int) -> Callable[[int], float]:
    """Return the cumulative distribution of rounded lengths limited to the bounds."""
    sigma = math.log(p99 / median) / NormalDist().inv_cdf(0.99)

    def below(tokens: int) -> float:
        if tokens < low:
            return 0.0
        return (
            1.0 if tokens >= high else NormalDist(0, sigma).cdf(math.log((tokens + 0.5) / median))
        )

    return below


EXACT_SHARES: list[tuple[Lengths, Callable[[int], float]]] = [
    (Uniform(10, 400), lambda tokens: min(max((tokens - 9) / 391, 0.0), 1.0)),
    (Lognormal(120, 900), lognormal_share(120, 900, 1, 2**31)),
    (Lognormal(120, 900, low=60, high=500), lognormal_share(120, 900, 60, 500)),
    (Empirical((5, 5, 80, 7)), lambda tokens: sum(seen <= tokens for seen in (5, 5, 80, 7)) / 4),
]


@pytest.mark.parametrize("seed", [0, 1, 2, 2**63])
@pytest.mark.parametrize(
    ("lengths", "below"), EXACT_SHARES, ids=[lengths.describe() for lengths, _ in EXACT_SHARES]
)
def test_lengths_are_distributed_as_they_are_named(
    lengths: Lengths, below: Callable[[int], float], seed: int
) -> None:
    """A Kolmogorov-Smirnov test accepts the draws of each distribution, with its bounds."""
    assert distance(lengths, below, seed) < KOLMOGOROV


def test_another_distribution_of_lengths_is_rejected() -> None:
    """The Kolmogorov-Smirnov test can fail: it rejects a p99 of 700 instead of 900."""
    assert distance(Lognormal(120, 700), lognormal_share(120, 900, 1, 2**31), 0) > KOLMOGOROV


def test_empirical_draws_as_often_as_seen() -> None:
    """A length that is listed twice is drawn twice as often."""
    drawn = Empirical((5, 5, 80)).draw(30_000, generator())
    assert (drawn == 5).mean() == pytest.approx(2 / 3, abs=0.01)
    assert set(drawn.tolist()) == {5, 80}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Fixed, (-1,)),
        (Fixed, (2**31,)),
        (Uniform, (0, 5)),
        (Uniform, (6, 5)),
        (Uniform, (1, 2**31)),
        (Lognormal, (100, 100)),
        (Lognormal, (0.5, 100)),
        (Lognormal, (100, float("nan"))),
        (Lognormal, (100, 1e300)),
        (Lognormal, (100, 200, 0)),
        (Lognormal, (100, 200, 101)),
        (Lognormal, (100, 200, 1, 99)),
        (Empirical, ((),)),
        (Empirical, ((3, 0),)),
        (Empirical, ((3, 2**40),)),
    ],
)
def test_impossible_parameters_are_refused(kind: type, arguments: tuple[object, ...]) -> None:
    """Impossible parameters raise `WorkloadError`."""
    with pytest.raises(WorkloadError):
        kind(*arguments)


@pytest.mark.parametrize(
    ("text", "column", "values"),
    [
        (b"3\n5\n\n8", None, (3, 5, 8)),
        (b"tokens\r\n3\r\n5\r\n", None, (3, 5)),
        (b"\xef\xbb\xbfinput,output\r\n3,10\r\n4,20", "output", (10, 20)),
        (b'"input","output"\n3,"10"\n', "input", (3,)),
    ],
)
def test_lengths_are_read_from_common_file_layouts(
    tmp_path: Path, text: bytes, column: str | None, values: tuple[int, ...]
) -> None:
    """A file has one number per line or a named column; BOM, CR LF and blank lines are accepted."""
    path = tmp_path / "lengths.csv"
    path.write_bytes(text)
    assert Empirical.from_file(path, column).values == values


@pytest.mark.parametrize(
    ("text", "column", "pieces"),
    [
        ("input,output\n3,4\n", None, ["line 1", "column", "input, output"]),
        ("input,output\n3,4\n", "outputs", ["line 1", "outputs", "input, output"]),
        ("3\n\n0\n", None, ["line 3", '"0"', "at least 1"]),
        ("input,output\n3\n", "output", ["line 2"]),
        ("3\n4.5\n", None, ["line 2", "4.5"]),
        ('3\n"4\n', None, ["line 2", "not valid CSV"]),
        ("\n", None, ["contains no lengths"]),
        ("input\n", "input", ["contains no lengths"]),
    ],
)
def test_a_bad_length_is_named(
    tmp_path: Path, text: str, column: str | None, pieces: list[str]
) -> None:
    """The error names the file, the physical line and the value found."""
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        Empirical.from_file(path, column)
    assert all(piece in str(caught.value) for piece in ["lengths.csv", *pieces])


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    """The error names a path that does not exist."""
    with pytest.raises(WorkloadError, match=r"absent\.csv: cannot be read: No such file"):
        Empirical.from_file(tmp_path / "absent.csv")
