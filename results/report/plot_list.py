"""Which figures a summary has: what each shows, its file name, title and caption."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.results.effects import BASELINE, VERDICT_BLOCKS
from harness.results.panels import Panel, labels, load_title, panels
from harness.results.report.client_notes import MARK, is_degraded
from harness.results.report.side_by_side import compared_engines, engine_kinds
from harness.results.summary import ArmRow, Summary

Kind = Literal["engines", "effects", "throughput", "latency"]
LOADS_A_FIGURE = 4  # loads whose marks still lie apart in one row of a figure of effects
SPEED = "output_tokens_per_s_per_user"  # what the figure of throughput sets it against
_TITLES: dict[Kind, str] = {
    "engines": "Engines beside each other",
    "effects": "What each toggle changes",
    "throughput": "Throughput against speed per user",
    "latency": "Latency of requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigure:
    """One figure: its kind and the panels of one engine and one workload that it draws."""

    kind: Kind
    file: str
    title: str
    caption: str
    label: str  # of the engine; empty where all that may be compared are in it
    panels: tuple[Panel, ...]  # one a load, in the order of the loads' colours
    first_load: int  # place of the first panel among the workload's loads

    @property
    def arms(self) -> list[ArmRow]:
        """The engine's arms over all panels; one that recurs stands for itself once."""
        rows = [arm for panel in self.panels for arm in panel.arms if arm.label == self.label]
        return list({arm.arm: arm for arm in reversed(rows)}.values())[::-1]

    def arm_of(self, panel: Panel, name: str) -> ArmRow | None:
        """Return this figure's arm of that name in one panel; None where it is not in it."""
        for row in panel.arms:
            if (row.label, row.arm) == (self.label, name):
                return row
        return None


def planned_figures(summary: Summary) -> list[PlannedFigure]:
    """Return the figures that have something to show: engines, effects, throughput, latency."""
    by_workload: dict[str, list[Panel]] = {}
    for panel in panels(summary):
        by_workload.setdefault(panel.workload, []).append(panel)
    groups = [(label, group) for group in by_workload.values() for label in labels(summary)]
    engines = compared_engines(summary)
    drafts: list[tuple[Kind, str, Sequence[Panel], int]] = [
        ("engines", "", group[i : i + LOADS_A_FIGURE], i)
        for group in by_workload.values()
        for i in range(0, len(group), LOADS_A_FIGURE)
        if sum(_has_baseline(group[i : i + LOADS_A_FIGURE], label) for label in engines) > 1
    ]
    for label, group in groups:
        drafts += [
            ("effects", label, group[i : i + LOADS_A_FIGURE], i)
            for i in range(0, len(group), LOADS_A_FIGURE)
            if any(_compares(panel, label) for panel in group[i : i + LOADS_A_FIGURE])
        ]
    drafts += [
        ("throughput", label, group, 0)
        for label, group in groups
        if any(_has(panel, label, SPEED) for panel in group)
    ]
    drafts += [
        ("latency", label, [panel], i)
        for label, group in groups
        for i, panel in enumerate(group)
        if _has(panel, label, f"{panel.ttft}.p50")
    ]
    return _named(summary, drafts)


def _has(panel: Panel, label: str, metric: str) -> bool:
    return any(arm.metrics.get(metric) for arm in panel.arms if arm.label == label)


def _has_baseline(group: Sequence[Panel], label: str) -> bool:
    return any(
        arm.metrics.get("output_tokens_per_s")
        for panel in group
        for arm in panel.arms
        if (arm.label, arm.arm) == (label, BASELINE)
    )


def _compares(panel: Panel, label: str) -> bool:
    return any(effect.ratio for effect in panel.effects if effect.label == label)


def _named(
    summary: Summary, drafts: Sequence[tuple[Kind, str, Sequence[Panel], int]]
) -> list[PlannedFigure]:
    several = len(labels(summary)) > 1
    figures: list[PlannedFigure] = []
    for kind, label, group, first in drafts:
        parts = [label] * (several and bool(label)) + [group[0].workload]
        if kind == "latency" or first:
            parts.append(load_title(group[0].load))
        title = f"{_TITLES[kind]}: {' · '.join(parts)}"
        stem = _slug([kind, *parts])
        taken = {figure.file for figure in figures}
        file = f"{stem}.png" if f"{stem}.png" not in taken else f"{stem}-{len(figures)}.png"
        figures.append(
            PlannedFigure(
                kind=kind,
                file=file,
                title=title,
                caption=_caption(summary, kind) + _client_caption(group),
                label=label,
                panels=tuple(group),
                first_load=first,
            )
        )
    return figures


def _slug(parts: Sequence[str]) -> str:
    """A file name of plain letters: what a user names a workload may hold anything."""
    words = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    return words[:80].strip("-")


def _caption(summary: Summary, kind: Kind) -> str:
    if kind == "engines":
        kinds = engine_kinds(summary)
        mixed = len({kinds.get(label) for label in compared_engines(summary)}) > 1
        return (
            "Baselines, geometric means over blocks. Latencies: the mark is p50, the tick p99; "
            "dotted: too few requests for a P99."
            + " Not of one kind: what was computed is no measurement; do not rank them."
            * mixed
        )
    if kind == "effects":
        blocks = max((effect.n_blocks for effect in summary.effects), default=0)
        verdicts = "▲ better, ▼ worse, hollow: no difference (=) or inconclusive (?)"
        if blocks < VERDICT_BLOCKS:
            verdicts = f"no verdict below {VERDICT_BLOCKS} blocks"
        return (
            f"Ratio of the pair at the left, 95 % interval over blocks; {verdicts}; "
            f"grey: within ±{100 * summary.margin:.0f} %."
            + " Upright stroke: predicted (simulated), its bar what the known error leaves open."
            * any(effect.predicted for effect in summary.effects)
        )
    if kind == "throughput":
        return (
            "Up is more output tokens per second and GPU, right is faster for each user. "
            "Geometric means over blocks."
        )
    return (
        "Shapes: measured requests of all blocks. Ticks: p50 and p99, means over blocks; "
        "~ and dotted: too few requests for a P99. Dashed: p50 of the baseline."
    )


def _client_caption(group: Sequence[Panel]) -> str:
    degraded = any(is_degraded(arm) for panel in group for arm in panel.arms)
    return f" {MARK}: the client is DEGRADED." if degraded else ""
