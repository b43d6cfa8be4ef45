"""The figure of throughput against speed per user: one mark per arm and load."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.results.effects import BASELINE
from harness.results.panels import Panel, arm_title, load_name
from harness.results.plots.canvas import (
    DPI,
    FAINT,
    HATCH,
    INK,
    Look,
    caption_in,
    extent,
    head_in,
    load_legend,
    load_style,
    log_axis,
    new_figure,
)
from harness.results.plots.layout import Box, padded, place_labels
from harness.results.report import SPEED, PlannedFigure, client_mark
from harness.results.summary import ArmRow, Summary

RATE = "output_tokens_per_s_per_gpu"
GAP_PX = 7.0  # gap between two names in one line
MARK_PX = 9.0 * DPI / 72  # side of the square around a mark


def throughput_figure(summary: Summary, planned: PlannedFigure) -> Figure:
    """Return output tokens/s per GPU against output tokens/s per user, for each arm and load."""
    missing = _missing(planned)
    above_in = head_in(planned) + 0.14 + 0.13 * len(missing)
    below_in = 0.72 + caption_in(planned)
    height_in = 3.62 + above_in + below_in
    figure = new_figure(summary, planned, height_in)
    load_legend(figure, planned, height_in)
    axes = figure.add_axes((0.075, below_in / height_in, 0.91, 3.62 / height_in))
    points = [
        (panel, arm)
        for panel in planned.panels
        for arm in panel.arms
        if arm.label == planned.label and arm.metrics.get(SPEED) and arm.metrics.get(RATE)
    ]
    axes.set_xlabel("output tokens/s for each user (1 / mean TPOT)")
    axes.set_ylabel("output tokens/s per GPU")
    places = [_at(arm) for _, arm in points] or [(1.0, 1.0)]
    for which, values in zip("xy", zip(*places, strict=True), strict=True):
        log_axis(axes, which, padded(min(values), max(values), share=0.16, least=1.5))
    for panel, arm in points:
        _throughput_mark(axes, planned, panel, arm)
    _throughput_labels(planned, axes, points, _throughput_texts(summary, planned, points))
    look: Look = {"loc": "left", "fontsize": 6.5, "color": FAINT, "style": "italic"}
    axes.set_title("\n".join(missing), **look)
    return figure


def _at(arm: ArmRow) -> tuple[float, float]:
    """Return speed per user and throughput of an arm with both metrics."""
    return arm.metrics[SPEED] or 0.0, arm.metrics[RATE] or 0.0


def _throughput_mark(axes: Axes, planned: PlannedFigure, panel: Panel, arm: ArmRow) -> None:
    colour, marker = load_style(planned, panel)
    fine, base = arm.status == "ok", arm.arm == BASELINE
    axes.scatter(
        *_at(arm),
        s=70 if base else 24,
        marker=marker,
        facecolor=colour if fine else "none",
        edgecolor=INK if base else colour,
        linewidth=1.1 if base else 0.5,
        hatch=None if fine else HATCH,
        zorder=3 if base else 4,  # keeps arms close to the baseline visible
        alpha=1 if base else 0.9,
    )


def _throughput_texts(
    summary: Summary, planned: PlannedFigure, points: Sequence[tuple[Panel, ArmRow]]
) -> list[tuple[Panel, ArmRow, str]]:
    """Return a label for each mark; arms within the margin of the baseline share its label."""
    texts: list[tuple[Panel, ArmRow, str]] = []
    for panel in planned.panels:
        arms = [arm for owner, arm in points if owner is panel]
        base = next((arm for arm in arms if arm.arm == BASELINE), None)
        close = [arm for arm in arms if base and arm is not base and _close(arm, base, summary)]
        for arm in arms:
            if arm is base:
                texts.append((panel, arm, _base_text(arm, close, summary.margin)))
            elif arm not in close:
                status = "" if arm.status == "ok" else f" ({arm.status.upper()})"
                texts.append((panel, arm, _wrapped(arm) + status + client_mark(arm)))
    return texts


def _wrapped(arm: ArmRow) -> str:
    lines = arm_title(arm).replace(" ⇒", "\n⇒").split("\n")
    return "\n".join(part for line in lines for part in textwrap.wrap(line, 40))


def _close(arm: ArmRow, base: ArmRow, summary: Summary) -> bool:
    ratios = (own / other for own, other in zip(_at(arm), _at(base), strict=True))
    return all(abs(ratio - 1) <= summary.margin for ratio in ratios)


def _base_text(base: ArmRow, close: Sequence[ArmRow], margin: float) -> str:
    name = BASELINE + client_mark(base)
    if not close:
        return name
    names = ", ".join(arm_title(arm) + client_mark(arm) for arm in close)
    return f"{name}\nand within ±{100 * margin:.0f} % of it:\n{textwrap.fill(names, 44)}"


def _throughput_labels(
    planned: PlannedFigure,
    axes: Axes,
    drawn: Sequence[tuple[Panel, ArmRow]],
    texts: Sequence[tuple[Panel, ArmRow, str]],
) -> None:
    """Write each label at a free position, with a leader to its mark."""
    colours = {panel.title: load_style(planned, panel)[0] for panel in planned.panels}
    look: Look = {"xycoords": "figure pixels", "fontsize": 6.5, "va": "bottom", "linespacing": 1.15}
    labels = [
        axes.annotate(
            text, (0, 0), color=INK if arm.arm == BASELINE else colours[panel.title], **look
        )
        for panel, arm, text in texts
    ]
    extents = [extent(label) for label in labels]
    area = axes.get_window_extent()
    points = _pixels(axes, [arm for _, arm, _ in texts])
    boxes = place_labels(
        points,
        [(box.width + 2 * GAP_PX, box.height + 2) for box in extents],
        Box(left=area.x0 + 4, bottom=area.y0 + 4, width=area.width - 8, height=area.height - 8),
        _pixels(axes, [arm for _, arm in drawn]),
        MARK_PX,
    )
    line = {"arrowstyle": "-", "color": "#9a9a9a", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    for label, point, box in zip(labels, points, boxes, strict=True):
        label.set_position((box.left + GAP_PX, box.bottom + 1))
        near = replace(box, left=box.left + GAP_PX, width=box.width - 2 * GAP_PX)
        axes.annotate(
            "",
            point,
            near.nearest(*point),
            xycoords="figure pixels",
            textcoords="figure pixels",
            arrowprops=line,
            zorder=2,
        )


def _pixels(axes: Axes, arms: Sequence[ArmRow]) -> list[tuple[float, float]]:
    places = [_at(arm) for arm in arms]
    return [(x, y) for x, y in axes.transData.transform(places)] if places else []


def _missing(planned: PlannedFigure) -> list[str]:
    """Return lines that list the arms without a mark, each with its status."""
    names = [
        f"{arm_title(arm)} at {load_name(panel.load)} ({arm.status.upper()})"
        for panel in planned.panels
        for arm in panel.arms
        if arm.label == planned.label and not arm.metrics.get(SPEED)
    ]
    return textwrap.wrap("not drawn: " + "; ".join(names), 150) if names else []
