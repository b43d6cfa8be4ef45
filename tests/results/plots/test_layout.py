from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.results.plots.layout import (
    Box,
    crosses,
    log_ticks,
    outline,
    padded,
    place_labels,
    row_places,
)

BOUNDS = Box(left=0.0, bottom=0.0, width=1400.0, height=800.0)


def marks(seed: int, count: int) -> list[tuple[float, float]]:
    """Return points in two dense clusters, like arms at two loads."""
    rng = np.random.default_rng(seed)
    centers = np.array([(300.0, 600.0), (1000.0, 150.0)])
    places = centers[rng.integers(0, 2, count)] + rng.normal(0, 60, (count, 2))
    return [(float(x), float(y)) for x, y in places]


@pytest.mark.parametrize("seed", range(5))
def test_labels_of_thirty_crowded_marks_cover_nothing(seed: int) -> None:
    """No label overlaps another label or a mark, and all are inside the axes."""
    points = marks(seed, 30)
    side = 24.0

    boxes = place_labels(points, [(180.0, 22.0)] * 30, BOUNDS, points, side)

    squares = [
        Box(left=x - side / 2, bottom=y - side / 2, width=side, height=side) for x, y in points
    ]
    assert all(one.overlap(two) == 0 for one, two in itertools.combinations(boxes, 2))
    assert all(box.overlap(square) == 0 for box in boxes for square in squares)
    assert all(box.inside(BOUNDS) for box in boxes)


def test_a_single_label_is_next_to_its_mark() -> None:
    """With free space on all sides the label is within a line's height of its mark."""
    (box,) = place_labels([(700.0, 400.0)], [(100.0, 20.0)], BOUNDS, [(700.0, 400.0)], 20.0)

    assert math.dist(box.nearest(700.0, 400.0), (700.0, 400.0)) <= 20.0


def test_a_label_is_nearer_to_its_own_mark_than_to_another() -> None:
    """Two adjacent marks have their labels on opposite sides."""
    points = [(600.0, 400.0), (640.0, 400.0)]

    left, right = place_labels(points, [(120.0, 20.0)] * 2, BOUNDS, points, 20.0)

    assert math.dist(left.nearest(*points[0]), points[0]) < math.dist(
        left.nearest(*points[1]), points[1]
    )
    assert math.dist(right.nearest(*points[1]), points[1]) < math.dist(
        right.nearest(*points[0]), points[0]
    )


def test_a_label_wider_than_the_axes_is_still_placed() -> None:
    """A label that does not fit is placed at the edge."""
    (box,) = place_labels([(700.0, 400.0)], [(2000.0, 20.0)], BOUNDS, [], 20.0)

    assert (box.left, box.width) == (0.0, 2000.0)


def test_a_line_crosses_a_box_only_where_it_passes_through() -> None:
    """A line through the box crosses it; a line beside it or too short does not."""
    box = Box(left=10.0, bottom=10.0, width=10.0, height=10.0)

    assert crosses((0.0, 15.0), (30.0, 15.0), box)
    assert crosses((0.0, 0.0), (30.0, 30.0), box)
    assert not crosses((0.0, 15.0), (5.0, 15.0), box)
    assert not crosses((0.0, 25.0), (30.0, 25.0), box)
    assert not crosses((25.0, 0.0), (25.0, 30.0), box)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(1e-6, 1e6),
    factor=st.floats(1.2, 1e6),
    closest=st.sampled_from([0.1, 0.12, 0.17]),
)
def test_ticks_are_inside_the_axis_and_far_enough_apart(
    low: float, factor: float, closest: float
) -> None:
    """Ticks are inside the axis, with at least the requested gap."""
    high = low * factor

    ticks = log_ticks(low, high, closest)

    assert all(low <= tick <= high for tick in ticks)
    gaps = [math.log(after / before) for before, after in itertools.pairwise(ticks)]
    assert all(gap >= closest * math.log(factor) * (1 - 1e-9) for gap in gaps)


def test_an_axis_of_ratios_has_a_tick_at_one() -> None:
    """An axis with any ratios has a tick at 1."""
    for low, high in ((0.9, 1.1), (0.3, 4.0), (0.004, 900.0)):
        assert any(tick == pytest.approx(1) for tick in log_ticks(low, high, 0.17))


def test_limits_grow_equally_on_both_sides_and_are_never_equal() -> None:
    """The middle of the axis stays the same, and a single value gets a minimum width."""
    low, high = padded(2.0, 8.0, share=0.5)
    assert (low, high) == pytest.approx((1.0, 16.0))

    low, high = padded(5.0, 5.0, share=0.0, least=1.44)
    assert (low, high) == pytest.approx((5 / 1.2, 5 * 1.2))


def test_an_outline_peaks_where_the_values_are() -> None:
    """The height is 1 at the mode and near 0 at both ends."""
    values = np.random.default_rng(0).lognormal(math.log(100), 0.3, 3000)

    places, height = outline(values)

    assert places[int(np.argmax(height))] == pytest.approx(100, rel=0.1)
    assert height.max() == 1
    assert max(height[0], height[-1]) < 0.02
    assert places[0] > 0.9 * values.min()
    assert places[-1] < 1.1 * values.max()


def test_an_outline_shows_two_peaks_of_two_kinds_of_requests() -> None:
    """Cache hits and misses are two separate peaks after smoothing."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.lognormal(0, 0.1, 500), rng.lognormal(3, 0.1, 500)])

    places, height = outline(values)

    middle = height[int(np.argmin(np.abs(places - math.exp(1.5))))]
    assert middle < 0.2
    assert height[places < math.exp(1.5)].max() > 0.8
    assert height[places > math.exp(1.5)].max() > 0.8


def test_equal_values_are_drawn_as_a_sliver() -> None:
    """If every request has the same TPOT, as on virtual time, the outline is narrow and finite."""
    places, height = outline(np.full(20, 17.2))

    assert np.isfinite(height).all()
    assert places[-1] / places[0] < 1.05


def test_rows_are_as_high_as_their_names_need() -> None:
    """A name of four lines has a higher row; names of one line have the minimum height."""
    rows = row_places([1, 4, 1], least_in=0.25)

    heights = [high - low for low, high in itertools.pairwise(rows.borders)]
    assert heights[0] == pytest.approx(1)
    assert heights[2] == pytest.approx(1)
    assert 0.25 * heights[1] == pytest.approx(0.53)
    assert rows.height_in == pytest.approx(0.25 * sum(heights))
    assert rows.middles[1] == pytest.approx((rows.borders[1] + rows.borders[2]) / 2)
