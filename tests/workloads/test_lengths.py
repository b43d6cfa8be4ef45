"""Distributions of lengths: what is drawn has the figures that were asked for."""

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


# At α = 0.001 the largest distance between the shares drawn and the true ones, times √n; for whole
# numbers it is on the safe side.
KOLMOGOROV = math.sqrt(-math.log(0.001 / 2) / 2)


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("lengths", EACH_KIND, ids=lambda lengths: lengths.describe())
def test_every_kind_keeps_its_word(lengths: Lengths) -> None:
    """Draws are whole numbers within the stated bounds, around the stated mean, and repeatable."""
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


def test_lognormal_has_the_median_and_p99_asked_for() -> None:
    """Median and 99th percentile of many draws are the two parameters."""
    drawn = Lognormal(120, 900).draw(200_000, generator())
    assert np.median(drawn) == pytest.approx(120, rel=0.01)
    assert np.percentile(drawn, 99) == pytest.approx(900, rel=0.03)


def test_lognormal_bounds_set_what_lies_outside_to_the_bound() -> None:
    """Clipped lengths pile up at the bounds and leave the median alone."""
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
    """Return the share of lengths up to one, rounded and set to the bounds as they are."""
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
    """A Kolmogorov-Smirnov test cannot tell the draws from the distribution, bounds included."""
    assert distance(lengths, below, seed) < KOLMOGOROV


def test_another_distribution_of_lengths_is_told_apart() -> None:
    """The test above can fail: a p99 of 700 does not pass for one of 900."""
    assert distance(Lognormal(120, 700), lognormal_share(120, 900, 1, 2**31), 0) > KOLMOGOROV


def test_empirical_draws_as_often_as_seen() -> None:
    """A length seen twice as often is drawn twice as often."""
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
    """Parameters that no distribution of lengths has raise the workloads' own error."""
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
def test_lengths_are_read_as_files_come(
    tmp_path: Path, text: bytes, column: str | None, values: tuple[int, ...]
) -> None:
    """One number a line or a named column; BOM, CR LF, blank lines and no last line end."""
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
        ('3\n"4\n', None, ["line 2", "no CSV"]),
        ("\n", None, ["holds no lengths"]),
        ("input\n", "input", ["holds no lengths"]),
    ],
)
def test_a_bad_length_is_named(
    tmp_path: Path, text: str, column: str | None, pieces: list[str]
) -> None:
    """The error names file, physical line and what was found there."""
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        Empirical.from_file(path, column)
    assert all(piece in str(caught.value) for piece in ["lengths.csv", *pieces])


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    """A path that is not there is named, without a traceback of the reader."""
    with pytest.raises(WorkloadError, match=r"absent\.csv: cannot be read: No such file"):
        Empirical.from_file(tmp_path / "absent.csv")
