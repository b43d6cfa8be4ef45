"""The figure of TTFT and TPOT distributions: one row per arm."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from harness.results.effects import BASELINE
from harness.results.panels import METRIC_NAMES, Panel, arm_title
from harness.results.plots.canvas import (
    DPI,
    FAINT,
    HATCH,
    INK,
    WIDTH_IN,
    Look,
    caption_in,
    extent,
    load_style,
    log_axis,
    new_figure,
)
from harness.results.plots.layout import outline, padded, row_places
from harness.results.report import PlannedFigure, client_mark
from harness.results.summary import ArmRow, Summary
from harness.results.units import ABSENT, latency_unit, significant

VALUE_PLACES = {"p50": 1.14, "p99": 1.31}  # right edges of the printed values, in axes widths


def latency_figure(
    summary: Summary, planned: PlannedFigure, distributions: Mapping[str, pd.DataFrame]
) -> Figure:
    """Return the TTFT and TPOT distributions of each arm of one panel."""
    (panel,) = planned.panels
    arms = [arm for arm in panel.arms if arm.label == planned.label]
    names = [textwrap.wrap(arm_title(arm) + client_mark(arm), 34) for arm in arms]
    rows = row_places([len(lines) for lines in names], least_in=0.26)
    below_in = 0.6 + caption_in(planned)
    height_in = 0.84 + rows.height_in + below_in
    figure = new_figure(summary, planned, height_in)
    columns = figure.subplots(1, 2, sharey=True)
    columns[0].set_yticks(rows.middles, ["\n".join(lines) for lines in names], fontsize=7)
    columns[0].set_ylim(rows.borders[-1], rows.borders[0])
    left_px = max(extent(text).width for text in columns[0].get_yticklabels())
    figure.subplots_adjust(
        left=left_px / (WIDTH_IN * DPI) + 0.025,
        right=0.885,
        wspace=0.38,
        top=1 - 0.82 / height_in,
        bottom=below_in / height_in,
    )
    for axes, metric in zip(columns, (panel.ttft, "tpot_ms"), strict=True):
        samples = [_samples(panel, arm, metric, distributions) for arm in arms]
        column = _latency_column(axes, arms, metric, samples, load_style(planned, panel)[0])
        for place, arm, series in zip(rows.middles, arms, samples, strict=True):
            column.draw(place, arm, series)
    return figure


def _samples(
    panel: Panel, arm: ArmRow, metric: str, distributions: Mapping[str, pd.DataFrame]
) -> pd.Series[float]:
    """Return the latency of the arm's measured requests of all blocks, in ms, in any status."""
    frames = [distributions[run.key] for run in panel.runs_of(arm) if run.key in distributions]
    parts = [frame.loc[frame["measured"] & frame["ok"], metric] for frame in frames]
    joined = pd.concat(parts).astype(float) if parts else pd.Series(dtype=float)
    return joined[joined > 0]


def _latency_column(
    axes: Axes,
    arms: Sequence[ArmRow],
    metric: str,
    samples: Sequence[pd.Series[float]],
    colour: str,
) -> _Column:
    """Set up the axes of one latency, and return the column that draws its rows."""
    marks_ms = [value for arm in arms for value in _marks_ms(arm, metric) if value]
    ends_ms = [end for series in samples for end in (series.min(), series.max()) if len(series)]
    shown_ms = [*marks_ms, *ends_ms] or [1.0]
    unit, factor = latency_unit(marks_ms)
    low_ms, high_ms = padded(min(shown_ms), max(shown_ms), share=0.08)
    log_axis(axes, "x", (low_ms * factor, high_ms * factor))
    axes.set_xlabel(f"{METRIC_NAMES[f'{metric}.p50'].replace(' p50', '')}, {unit}")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for statistic, place in VALUE_PLACES.items():
        look: Look = {"fontsize": 6.5, "weight": "bold", "ha": "right", "va": "bottom"}
        axes.text(place, 1.01, f"{statistic}\n{unit}", transform=axes.transAxes, **look)
    return _Column(axes=axes, metric=metric, factor=factor, colour=colour)


def _marks_ms(arm: ArmRow, metric: str) -> tuple[float | None, float | None]:
    return arm.metrics.get(f"{metric}.p50"), arm.metrics.get(f"{metric}.p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """The column of one latency, with a row for each arm."""

    axes: Axes
    metric: str
    factor: float  # ms → the unit of the axis
    colour: str

    def draw(self, place: float, arm: ArmRow, series: pd.Series[float]) -> None:
        """Draw the row of one arm: the distribution, and p50 and p99 as lines and numbers."""
        if len(series) > 1:
            self._shape(place, arm, np.asarray(series, np.float64) * self.factor)
        p50_ms, p99_ms = _marks_ms(arm, self.metric)
        if arm.arm == BASELINE and p50_ms:
            self.axes.axvline(p50_ms * self.factor, color=INK, linewidth=0.7, dashes=(4, 3))
        self._mark(place, p50_ms, "p50", unreliable=False)
        self._mark(place, p99_ms, "p99", unreliable=not arm.p99_reliable)
        if arm.status != "ok":
            self._text(place, 0.985, arm.status.upper(), weight="bold", color=FAINT)

    def _shape(self, place: float, arm: ArmRow, values: NDArray[np.float64]) -> None:
        places, height = outline(values)
        look: Look = {"facecolor": self.colour, "alpha": 0.38, "edgecolor": self.colour}
        if arm.status != "ok":
            look = {"facecolor": "none", "edgecolor": FAINT, "hatch": HATCH}
        low, high = place - 0.4 * height, place + 0.4 * height
        self.axes.fill_between(places, low, high, linewidth=0.4, **look)

    def _mark(
        self, place: float, value_ms: float | None, statistic: str, *, unreliable: bool
    ) -> None:
        text = ABSENT
        if value_ms is not None:
            value = value_ms * self.factor
            text = "~" * unreliable + significant(value)
            half, width = (0.34, 1.6) if statistic == "p50" else (0.24, 0.9)
            ends, line = (place - half, place + half), ":" if unreliable else "-"
            self.axes.plot((value, value), ends, color=INK, linewidth=width, linestyle=line)
        self._text(place, VALUE_PLACES[statistic], text, fontsize=6.5)

    def _text(self, place: float, x: float, text: str, **look: Any) -> None:
        """Write right-aligned text on white, at `x` in axes coordinates."""
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        look = {"fontsize": 6, "ha": "right", "va": "center_baseline", "bbox": ground, **look}
        self.axes.text(x, place, text, transform=self.axes.get_yaxis_transform(), **look)
