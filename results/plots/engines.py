"""The figure of engines: one row per baseline, one mark per load."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.results.effects import BASELINE
from harness.results.panels import METRIC_NAMES, Panel
from harness.results.plots.canvas import (
    caption_in,
    head_in,
    load_legend,
    load_style,
    log_axis,
    new_figure,
    three_columns,
)
from harness.results.plots.layout import padded, row_places
from harness.results.report import PlannedFigure, client_mark, compared_engines, engine_kinds
from harness.results.summary import ArmRow, Summary
from harness.results.units import significant

_WIDEST = 24  # characters of a label in one line


def engines_figure(summary: Summary, planned: PlannedFigure) -> Figure:
    """Return throughput, TTFT and TPOT of the baselines, one row per engine, one mark per load."""
    labels = compared_engines(summary)
    names = [_name(summary, label) for label in labels]
    rows = row_places(
        [len(name) for name in names], least_in=max(0.4, 0.2 * len(planned.panels) + 0.1)
    )
    above_in, below_in = head_in(planned) + 0.3, 0.64 + caption_in(planned)
    height_in = above_in + rows.height_in + below_in
    figure = new_figure(summary, planned, height_in)
    load_legend(figure, planned, height_in)
    columns = three_columns(figure, rows, names, (above_in, below_in, height_in))
    tall = rows.height_in / len(labels)
    for i, axes in enumerate(columns):
        _column(planned, labels, rows.middles, axes, i, tall)
    return figure


def _name(summary: Summary, label: str) -> list[str]:
    parts = [label[i : i + _WIDEST] for i in range(0, len(label), _WIDEST)]
    return [*parts, f"({engine_kinds(summary).get(label, 'not run')})"]


def _column(
    planned: PlannedFigure,
    labels: Sequence[str],
    middles: Sequence[float],
    axes: Axes,
    i: int,
    row_in: float,
) -> None:
    """Draw one metric; the marks of one row are stacked, so that they do not overlap."""
    metrics = [panel.primary[i] for panel in planned.panels]
    unit = ", ms" if i else ""
    axes.set_title(METRIC_NAMES[metrics[0]] + unit, fontsize=7.5)
    axes.set_xlabel("less is better" if i else "more is better", fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    found = [
        (panel, row, _baseline(panel, label))
        for panel, metric in zip(planned.panels, metrics, strict=True)
        for row, label in enumerate(labels)
    ]
    drawn = [
        (panel, row, arm, value)
        for panel, row, arm in found
        if arm and (value := arm.metrics.get(panel.primary[i]))
    ]
    tails = [_tail(arm, panel.primary[i]) for panel, _, arm, _ in drawn]
    reach = [value for *_, value in drawn] + [tail for tail in tails if tail]
    limits = padded(min(reach), max(reach), share=0.12, least=1.6) if reach else (1.0, 10.0)
    log_axis(axes, "x", limits, closest=0.16)
    scale = (max(middles) - min(middles)) / max(1, len(middles) - 1) / row_in
    for (panel, row, arm, value), tail in zip(drawn, tails, strict=True):
        place = planned.panels.index(panel) - (len(planned.panels) - 1) / 2
        _mark(axes, planned, panel, arm, (value, middles[row] + 0.18 * place * scale), tail)


def _mark(
    axes: Axes,
    planned: PlannedFigure,
    panel: Panel,
    arm: ArmRow,
    at: tuple[float, float],
    tail: float | None,
) -> None:
    colour, marker = load_style(planned, panel)
    x, y = at
    if tail is not None:
        line = "-" if arm.p99_reliable else ":"
        axes.plot([x, tail], [y, y], color=colour, linewidth=0.9, linestyle=line)
        axes.plot([tail], [y], marker="|", color=colour, markersize=5)
    axes.scatter([x], [y], s=26, marker=marker, color=colour, linewidth=0, zorder=3)
    axes.annotate(
        significant(x) + client_mark(arm),
        (x, y),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=6,
        color=colour,
    )


def _tail(arm: ArmRow, metric: str) -> float | None:
    """Return the P99 of a metric with a p50; None for a metric with a single value."""
    name, _, statistic = metric.partition(".")
    return arm.metrics.get(f"{name}.p99") if statistic else None


def _baseline(panel: Panel, label: str) -> ArmRow | None:
    ours = (a for a in panel.arms if (a.label, a.arm) == (label, BASELINE))
    return next(ours, None)
