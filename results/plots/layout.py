"""The layout of figures: label positions, log ticks, outlines of distributions. No drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DIRECTIONS = 24  # positions tried around a point at each distance
_TICK_STEPS = (
    *((tuple(1 + i / 20 for i in range(180)), 1), (tuple(1 + i / 10 for i in range(90)), 1)),
    *(((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), 1), ((1, 1.5, 2, 3, 5, 7), 1), ((1, 2, 5), 1)),
    *(((1, 3), 1), *(((1,), every) for every in (1, 2, 3, 4, 6))),
)
_LINE_IN, _GAP_IN = 0.12, 0.05  # height of a line of a row's name in 7 points, and its padding
_NEARER_COST = 25.0  # cost of a label that is nearer to another point, in pixels of distance
_CROSSING_COST = 60.0  # cost of a leader that crosses another label, in pixels of distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in pixels."""

    left: float
    bottom: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right edge, in pixels."""
        return self.left + self.width

    @property
    def top(self) -> float:
        """The upper edge, in pixels."""
        return self.bottom + self.height

    def overlap(self, other: Box) -> float:
        """Return the area of overlap with another box, in square pixels."""
        across = min(self.right, other.right) - max(self.left, other.left)
        up = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(across, 0.0) * max(up, 0.0)

    def inside(self, other: Box) -> bool:
        """Return whether this box lies within another one."""
        sideways = other.left <= self.left and self.right <= other.right
        return sideways and other.bottom <= self.bottom and self.top <= other.top

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the box that is nearest to (x, y)."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    marks: Sequence[tuple[float, float]],
    mark_side: float,
) -> list[Box]:
    """Return a box for each label, near its point, inside `bounds`, without overlaps.

    Greedy: the largest label first, each at the nearest free position around its point. A leader
    that crosses another label adds a cost, and so does a position nearer to another mark. If no
    position is free, the label gets the one with the smallest overlap. All values are in pixels.
    """
    half = mark_side / 2
    squares = [
        Box(left=x - half, bottom=y - half, width=mark_side, height=mark_side) for x, y in marks
    ]
    placed: dict[int, Box] = {}
    for i in sorted(range(len(points)), key=lambda i: (-sizes[i][0] * sizes[i][1], i)):
        labels = list(placed.values())
        others = [mark for mark in marks if math.dist(mark, points[i]) > half]
        costs = _Costs(point=points[i], others=others, marks=squares, labels=labels)
        placed[i] = _cheapest(_places(points[i], sizes[i], bounds), costs)
    return [placed[i] for i in range(len(points))]


def _cheapest(places: Iterator[tuple[float, Box]], costs: _Costs) -> Box:
    """Return the position of least cost; distances above the best cost are not searched."""
    _, best = next(places)
    least = costs.of(best)
    for distance, box in places:
        if distance >= least:
            break
        if (cost := costs.of(box)) < least:
            best, least = box, cost
    return best


def _places(
    point: tuple[float, float], size: tuple[float, float], bounds: Box
) -> Iterator[tuple[float, Box]]:
    """Yield boxes around a point by distance; the first is the point clamped to the bounds."""
    (x, y), (width, height) = point, size
    clamped = Box(
        left=max(bounds.left, min(x, bounds.right - width)),
        bottom=max(bounds.bottom, min(y, bounds.top - height)),
        width=width,
        height=height,
    )
    yield 0.0, clamped
    step = height * 0.5
    for distance in np.arange(step, max(bounds.width, bounds.height) / 2, step):
        for turn in range(_DIRECTIONS):
            box = _beside(x, y, width, height, float(distance), turn / _DIRECTIONS)
            if box.inside(bounds):
                yield float(distance), box


def _beside(x: float, y: float, width: float, height: float, distance: float, turn: float) -> Box:
    """Return the box at `distance` from (x, y) in the direction `turn`."""
    across, up = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    center_x = x + across * (distance + width / 2)
    center_y = y + up * (distance + height / 2)
    return Box(left=center_x - width / 2, bottom=center_y - height / 2, width=width, height=height)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """The costs of positions for the label of one point, in pixels of distance."""

    point: tuple[float, float]
    others: Sequence[tuple[float, float]]  # marks of other points
    marks: Sequence[Box]
    labels: Sequence[Box]  # labels that are already placed

    def of(self, box: Box) -> float:
        """Return the cost of a box; an overlap costs more than any position without one."""
        covered = sum(box.overlap(other) for other in (*self.marks, *self.labels))
        if covered:
            return 1e6 + covered
        end = box.nearest(*self.point)
        distance = math.dist(self.point, end)
        crossed = sum(crosses(self.point, end, label) for label in self.labels)
        nearer = sum(math.dist(box.nearest(*other), other) < distance + 4 for other in self.others)
        return distance + _CROSSING_COST * crossed + _NEARER_COST * nearer


def crosses(start: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Return whether a straight line passes through a box."""
    enter, leave = 0.0, 1.0
    edges = ((box.left, box.right), (box.bottom, box.top))
    for begin, stop, (low, high) in zip(start, end, edges, strict=True):
        run = stop - begin
        if run == 0:
            if not low <= begin <= high:
                return False
            continue
        near, far = sorted(((low - begin) / run, (high - begin) / run))
        enter, leave = max(enter, near), min(leave, far)
    return enter < leave


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """The positions of rows along the axis, downward from 0; the smallest row has height 1."""

    middles: tuple[float, ...]
    borders: tuple[float, ...]  # one more than rows
    height_in: float  # height of all rows, in inches


def row_places(lines: Sequence[int], least_in: float) -> RowPlaces:
    """Return the positions of rows, each high enough for the given number of lines."""
    heights_in = [max(least_in, _LINE_IN * count + _GAP_IN) for count in lines]
    borders = [0.0, *itertools.accumulate(height / least_in for height in heights_in)]
    return RowPlaces(
        middles=tuple((low + high) / 2 for low, high in itertools.pairwise(borders)),
        borders=tuple(borders),
        height_in=sum(heights_in),
    )


def log_ticks(low: float, high: float, closest: float = 0.1) -> list[float]:
    """Return round ticks inside [low, high] with a gap of at least `closest` of the axis.

    They are as dense as possible: 1-2-5 and finer, or powers of ten, or every second or third one.
    """
    wide = math.log(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps, every in _TICK_STEPS:
        ticks = [
            step * 10.0**power
            for power, step in itertools.product(powers, steps)
            if power % every == 0 and low <= step * 10.0**power <= high
        ]
        gaps = [math.log(after / before) for before, after in itertools.pairwise(ticks)]
        if min(gaps, default=wide) >= closest * wide:
            return ticks
    return ticks


def padded(low: float, high: float, share: float, least: float = 1.2) -> tuple[float, float]:
    """Return log-axis limits around [low, high], extended by `share` on both sides.

    A range below the factor `least` is widened to it first.
    """
    wide = max(math.log(high / low), math.log(least))
    middle = math.log(low * high) / 2
    half = wide * (0.5 + share)
    return math.exp(middle - half), math.exp(middle + half)


def outline(values: Floats, points: int = 160) -> tuple[Floats, Floats]:
    """Return (positions, heights from 0 to 1) of the smoothed density of log values.

    It uses a Gaussian kernel by Silverman's rule on a histogram, for display only. It ends one
    kernel width beyond the values, so that it shows no latencies outside of the data.
    """
    logs = np.log(values)
    quartiles = np.subtract(*np.percentile(logs, [75, 25])) / 1.34
    spread = min(float(np.std(logs)), float(quartiles)) or float(np.std(logs))
    width = max(0.9 * spread * len(logs) ** -0.2, 0.004)
    grid = np.linspace(logs.min() - width, logs.max() + width, points)
    cell = grid[1] - grid[0]
    counts, _ = np.histogram(logs, bins=np.append(grid - cell / 2, grid[-1] + cell / 2))
    reach = np.arange(-points + 1, points) * cell
    smooth = np.convolve(counts, np.exp(-0.5 * (reach / width) ** 2), mode="valid")
    return np.exp(grid), smooth / smooth.max()
