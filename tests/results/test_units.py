from __future__ import annotations

import pytest

from harness.results.units import (
    ABSENT,
    count,
    interval_text,
    latency_unit,
    ratio_text,
    significant,
    span,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (1234, "1,234"),
        (999.96, "1,000"),
        (99.96, "100"),
        (99.94, "99.9"),
        (9.996, "10.0"),
        (0.17449, "0.174"),
        (0.00012345, "0.000123"),
        (-2.5, "-2.50"),
        (7, "7"),
        (0, "0"),
        (0.0, "0"),
        (None, ABSENT),
    ],
)
def test_three_significant_digits_and_every_whole_one(value: float | None, text: str) -> None:
    """A figure keeps three digits that mean something, never loses a whole one, and None is –."""
    assert significant(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "1.00"),
        (0.9666, "0.97"),
        (0.1, "0.10"),
        (0.0996, "0.10"),
        (0.01234, "0.012"),
        (9.994, "9.99"),
        (64.04, "64.0"),
        (12345.0, "12,345"),
        (None, ABSENT),
    ],
)
def test_ratios_near_one_show_percents(ratio: float | None, text: str) -> None:
    """Two decimals near 1, where ±3 % matters; significant digits far from it."""
    assert ratio_text(ratio) == text


def test_an_interval_needs_both_ends() -> None:
    """A single block has none, and half of one would mislead."""
    assert interval_text(0.93, 1.02) == "0.93 to 1.02"
    assert interval_text(0.93, None) == interval_text(None, 1.0) == ABSENT


def test_long_latencies_are_read_in_seconds() -> None:
    """From 10 s on all rows of a column turn to seconds; absent rows have no say."""
    assert latency_unit([12.0, 9_999.0, None]) == ("ms", 1.0)
    assert latency_unit([12.0, 10_000.0]) == ("s", 1e-3)
    assert latency_unit([None]) == latency_unit([]) == ("ms", 1.0)


def test_counts_and_spans_read_as_words() -> None:
    """One run, two runs; equal numbers are one number."""
    assert count(1, "run") == "1 run"
    assert count(1200, "request") == "1,200 requests"
    assert span([300, 288, 300]) == "288 to 300"
    assert span([300, 300]) == "300"
    assert span([]) == ABSENT
