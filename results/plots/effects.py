"""The figure of toggle effects: ratios on a log axis, one row per arm."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.results.effects import BASELINE, CONTROL
from harness.results.names import HIGHER, kind
from harness.results.panels import METRIC_NAMES, VERDICT_MARKS, arm_lines, effect_lines, is_combined
from harness.results.plots.canvas import (
    HATCH,
    INK,
    Look,
    caption_in,
    head_in,
    load_legend,
    load_style,
    log_axis,
    new_figure,
    three_columns,
)
from harness.results.plots.layout import padded, row_places
from harness.results.report import PlannedFigure, client_mark
from harness.results.summary import ArmRow, Effect, Summary
from harness.results.units import ratio_text

_REACH = 2.0  # an interval is cut off beyond this factor of the outermost ratio


def effects_figure(summary: Summary, planned: PlannedFigure) -> Figure:
    """Return the ratios of the three primary metrics, one row per arm and one mark per load."""
    arms = _by_size(planned)
    names = [_name(planned, arm) for arm in arms]
    rows = row_places(
        [len(lines) for lines in names], least_in=max(0.25, 0.13 * len(planned.panels) + 0.04)
    )
    above_in = head_in(planned) + 0.3 + 0.14 * _mixed(planned)
    below_in = 0.5 + caption_in(planned)
    height_in = above_in + rows.height_in + below_in
    figure = new_figure(summary, planned, height_in)
    load_legend(figure, planned, height_in)
    columns = three_columns(figure, rows, names, (above_in, below_in, height_in))
    for i, axes in enumerate(columns):
        _draw_column(summary, planned, list(zip(rows.middles, arms, strict=True)), axes, i)
    return figure


def _mixed(planned: PlannedFigure) -> bool:
    """Return whether the figure has closed and open loops, so that a title has two metrics."""
    return len({panel.primary for panel in planned.panels}) > 1


def _by_size(planned: PlannedFigure) -> list[ArmRow]:
    """Return all arms except the baseline: single flips first, by change of throughput."""

    def place(arm: ArmRow) -> tuple[bool, bool, float]:
        found = [panel.effect(arm, panel.primary[0]) for panel in planned.panels]
        effects = [effect for effect in found if effect]
        sizes = [abs(math.log(effect.ratio)) for effect in effects if effect.ratio]
        combined = any(is_combined(effect) for effect in effects)
        return arm.arm == CONTROL, combined, -max(sizes, default=-1.0)

    return sorted((arm for arm in planned.arms if arm.arm != BASELINE), key=place)


def _name(planned: PlannedFigure, arm: ArmRow) -> list[str]:
    for panel in planned.panels:
        effect = panel.effect(arm, panel.primary[0])
        if effect is not None:
            return [part for line in effect_lines(arm, effect) for part in textwrap.wrap(line, 34)]
    return [part for line in arm_lines(arm) for part in textwrap.wrap(line, 34)]


def _draw_column(
    summary: Summary,
    planned: PlannedFigure,
    rows: Sequence[tuple[float, ArmRow]],
    axes: Axes,
    i: int,
) -> None:
    """Draw one metric: one row per arm, one mark per load."""
    margin, metrics = summary.margin, [panel.primary[i] for panel in planned.panels]
    axes.axvspan(1 - margin, 1 + margin, color="#e9e9e9", zorder=0)
    axes.axvline(1, color=INK, linewidth=0.8, zorder=1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    better = "better →" if kind(metrics[0]).better == HIGHER else "← better"
    title = " / ".join(METRIC_NAMES[metric] for metric in dict.fromkeys(metrics))
    gap = "\n" if _mixed(planned) else "   "
    axes.set_title(f"{title}{gap}{better}", fontsize=8, weight="bold")
    edges = _edges(
        [panel.effect(arm, panel.primary[i]) for panel in planned.panels for _, arm in rows]
    )
    log_axis(axes, "x", padded(*edges, share=0.36), "×", 0.17)
    depth = 0.76 / len(planned.panels)
    for j, panel in enumerate(planned.panels):
        colour, marker = load_style(planned, panel)
        lane = _Lane(axes=axes, edges=edges, depth=depth, colour=colour, marker=marker)
        for row, arm in rows:
            place = row + (j - (len(planned.panels) - 1) / 2) * depth
            shown = planned.arm_of(panel, arm.arm)
            mark = client_mark(shown, planned.arm_of(panel, BASELINE)).strip()
            lane.draw(place, shown, panel.effect(arm, panel.primary[i]), mark)


def _edges(effects: Sequence[Effect | None]) -> tuple[float, float]:
    """Return the limits of the axis: all ratios, and intervals up to the factor `_REACH`."""
    found = [effect for effect in effects if effect and effect.ratio]
    ratios = [ratio for one in found for ratio in (one.ratio, one.predicted) if ratio]
    low, high = min([*ratios, 0.9]), max([*ratios, 1.1])
    lows = [effect.low for effect in found if effect.low]
    highs = [effect.high for effect in found if effect.high]
    return max(min([*lows, low]), low / _REACH), min(max([*highs, high]), high * _REACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """The marks of one load in one metric's panel."""

    axes: Axes
    edges: tuple[float, float]  # limits for all marks
    depth: float  # height of the lane, in rows
    colour: str
    marker: str

    def draw(self, place: float, arm: ArmRow | None, effect: Effect | None, mark: str) -> None:
        """Draw one arm: its ratio with mark and interval, or the status of a left-out run."""
        if arm is not None and arm.status != "ok":
            self._hatch(place, arm.status.upper())
        if effect is not None and effect.ratio:
            self._predicted(place, effect)
            self._ratio(place, effect, effect.ratio, mark)

    def _predicted(self, place: float, effect: Effect) -> None:
        """Draw the prediction behind the measurement: a bar for its band, a vertical stroke."""
        predicted = effect.predicted
        if not predicted or not self.edges[0] <= predicted <= self.edges[1]:
            return
        low = max(effect.predicted_low or predicted, self.edges[0])
        high = min(effect.predicted_high or predicted, self.edges[1])
        band: Look = {"linewidth": 5, "solid_capstyle": "butt", "alpha": 0.22}
        self.axes.plot((low, high), (place, place), color=self.colour, zorder=1, **band)
        self.axes.plot(predicted, place, "|", markersize=8, color=self.colour, zorder=2)

    def _ratio(self, place: float, effect: Effect, ratio: float, mark: str) -> None:
        verdict = effect.verdict or ""
        low = max(effect.low or ratio, self.edges[0])
        high = min(effect.high or ratio, self.edges[1])
        line: Look = {"color": self.colour, "linewidth": 1.2, "solid_capstyle": "butt"}
        self.axes.plot((low, high), (place, place), zorder=2, **line)
        for shown, whole, sign in ((low, effect.low, "<"), (high, effect.high, ">")):
            if whole and shown != whole:  # the interval extends beyond the edge
                self.axes.plot(shown, place, sign, markersize=3.5, color=self.colour, zorder=3)
        hollow = verdict in ("NO DIFFERENCE", "INCONCLUSIVE")
        fill: Look = {"color": self.colour, "markerfacecolor": "white" if hollow else self.colour}
        self.axes.plot(ratio, place, self.marker, markersize=4, zorder=3, **fill)
        right = ratio >= 1
        self.axes.annotate(
            ratio_text(ratio) + VERDICT_MARKS.get(verdict, "") + mark,
            (high if right else low, place),
            xytext=(4.5 if right else -4.5, -0.3),
            textcoords="offset points",
            fontsize=6,
            color=self.colour,
            ha="left" if right else "right",
            va="center_baseline",
        )

    def _hatch(self, place: float, word: str) -> None:
        across = self.axes.get_yaxis_transform()
        look: Look = {"facecolor": "none", "edgecolor": "#b5b5b5", "hatch": HATCH, "linewidth": 0}
        self.axes.barh(place, 1, self.depth, transform=across, zorder=0, **look)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        words: Look = {"weight": "bold", "fontsize": 6, "ha": "center", "va": "center_baseline"}
        self.axes.text(0.5, place, word, transform=across, color=self.colour, bbox=ground, **words)
