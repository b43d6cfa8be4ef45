"""The report: one HTML page that needs nothing beside it, no network and no script."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from harness.results.effects import BASELINE, CONTROL, VERDICT_BLOCKS
from harness.results.names import HIGHER, kind
from harness.results.panels import (
    METRIC_NAMES,
    VERDICT_MARKS,
    Panel,
    arm_lines,
    effect_lines,
    hardware_title,
    is_combined,
    labels,
    load_title,
    panels,
    unmeasured,
)
from harness.results.report.client_notes import client_counts, client_reasons, client_table
from harness.results.report.notes import (
    control_alarms,
    control_note,
    engines,
    evidence,
    gathered_warnings,
    panel_faults,
    panel_notes,
    ratio_note,
    simulated_notes,
    skipped_rows,
    verdict_note,
)
from harness.results.report.plot_list import planned_figures
from harness.results.report.predicted import absent_predictions, predicted_panels
from harness.results.report.side_by_side import left_out, side_by_side
from harness.results.statistics import needed_samples
from harness.results.store import write_text
from harness.results.summary import ArmRow, Effect, Summary
from harness.results.units import ABSENT, interval_text, latency_unit, ratio_text, significant

_MESSAGES = 20  # of one check
_BAR_END = math.log(4)  # a ratio of 4 or 1/4 fills its half of the bar

# (metric, heading); those that no arm of a panel has are left out of its tables. Two tables, since
# one would be wider than a page.
_SPEEDS = (
    ("output_tokens_per_s", "output tok/s"),
    ("output_tokens_per_s_per_user", "output tok/s per user"),
    ("output_tokens_per_s_per_gpu", "output tok/s per GPU"),
    ("total_tokens_per_s", "prompt and output tok/s"),
    ("scheduled_ttft_ms.p50", "TTFT from due p50"),
    ("scheduled_ttft_ms.p99", "TTFT from due p99"),
    ("ttft_ms.p50", "TTFT p50"),
    ("ttft_ms.p99", "TTFT p99"),
    ("tpot_ms.p50", "TPOT p50"),
    ("tpot_ms.p99", "TPOT p99"),
    ("itl_ms.p99", "ITL p99"),
    ("e2e_ms.p50", "E2E p50"),
    ("e2e_ms.p99", "E2E p99"),
)
_COUNTS = (
    ("requests_per_s", "requests/s"),
    ("goodput_rps", "goodput req/s"),
    ("goodput_share", "goodput share"),
    ("prefix_hit_rate", "prefix hit rate"),
    ("prefix_hit_ceiling", "its ceiling"),
    ("acceptance_rate", "acceptance rate"),
    ("mean_accepted_length", "accepted tokens a step"),
    ("preemptions", "preemptions"),
    ("cost_per_million_output_tokens", "cost per million output tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One ratio of the table of findings, ready to be set."""

    ratio: str
    interval: str  # empty where there is none
    verdict: str  # empty where there is none
    mark: str
    tone: str  # good | bad | none, by the verdict only
    bar_left: float  # percent of the bar's box
    bar_width: float
    over: str  # left | right: the bar would go on there; empty: it does not


def write_report(summary: Summary, plots: Sequence[Path], path: Path) -> Path:
    """Write the report of a summary, with the figures inside it; return `path`.

    `plots`: the PNG files that `draw_all` returned. Every text of the summary is escaped.
    """
    template = files("harness.results.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = environment.from_string(template).render(
        summary=summary,
        facts=_facts(summary),
        hardware=hardware_title(summary),
        verdicts=verdict_note(summary),
        ratios=ratio_note(summary),
        control=control_note(summary),
        alarms=control_alarms(summary),
        findings=[_finding(panel) for panel in panels(summary) if panel.effects],
        tables=[_table(panel) for panel in panels(summary)],
        beside=side_by_side(summary),
        left_out=left_out(summary),
        predicted=predicted_panels(summary),
        not_predicted=absent_predictions(summary),
        figures=_figures(summary, plots),
        warnings=gathered_warnings(summary, _MESSAGES),
        client_counts=client_counts(summary),
        client_reasons=client_reasons(summary.runs),
        client_table=client_table(summary),
        evidence=evidence(summary),
        skipped_rows=skipped_rows(summary),
        baseline=BASELINE,
        verdict_blocks=VERDICT_BLOCKS,
        p99_needs=needed_samples(0.99),
        simulated=simulated_notes(summary),
        mark=f" ({found.lower()})" if (found := unmeasured(summary)) else "",
        several_engines=len(labels(summary)) > 1,
    )
    return write_text(path, page)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    limits = [
        f"{name.removesuffix('_ms').upper()} ≤ {significant(limit)} ms"
        for name, limit in (summary.slo.limits() if summary.slo else {}).items()
    ]
    price = summary.price_per_gpu_hour
    found, statuses = panels(summary), Counter(run.status for run in summary.runs)
    return [
        ("model", summary.model),
        ("hardware", hardware_title(summary)),
        ("engine", "; ".join(engines(summary).values())),
        ("workloads", ", ".join(dict.fromkeys(panel.workload for panel in found))),
        ("loads", "; ".join(dict.fromkeys(load_title(panel.load) for panel in found))),
        ("blocks", f"{len({run.block for run in summary.runs})}"),
        ("runs", ", ".join(f"{n:,} {status}" for status, n in statuses.most_common())),
        ("seed", f"{summary.seed}"),
        ("limits for goodput", ", ".join(limits) or "none set"),
        *([("price", f"{significant(price)} per GPU and hour")] if price is not None else []),
        ("harness", f"{summary.harness_version}, {summary.created}"),
    ]


# Findings ---------------------------------------------------------------------------------------


def _finding(panel: Panel) -> dict[str, Any]:
    """The effects of one panel: of single toggles, of several, each by size; then the control."""
    rows = []
    for arm in panel.arms:
        effects = [panel.effect(arm, metric) for metric in panel.primary]
        named = next((effect for effect in effects if effect), None)
        if named is not None:
            size = max(_size(effect) for effect in effects)
            rows.append((size, arm, effect_lines(arm, named), effects))
    rows.sort(key=lambda row: (row[1].arm == CONTROL, _combined(row[3]), -row[0]))
    several = len({arm.label for arm in panel.arms}) > 1
    names = [
        (f"{arm.label}: " * several + " ".join(lines), effects)
        for _, arm, lines, effects in rows
        if arm.arm != CONTROL
    ]
    return {
        "title": panel.title,
        "metrics": [(METRIC_NAMES[metric], _better(metric)) for metric in panel.primary],
        "extremes": _extremes(panel, names),
        "unreliable": sorted(panel.control_off),
        "rows": [
            (arm.label, lines, [_cell(effect) for effect in effects])
            for _, arm, lines, effects in rows
        ],
    }


def _combined(effects: Sequence[Effect | None]) -> bool:
    return any(effect and is_combined(effect) for effect in effects)


def _extremes(panel: Panel, names: Sequence[tuple[str, Sequence[Effect | None]]]) -> list[str]:
    """For each primary metric, the effect furthest from 1, with its verdict if there is one.

    Of effects within 1 % the plainest is named: paged_kv off, which drags prefix_caching off along,
    is no news beside prefix_caching off.
    """
    found = []
    for i, metric in enumerate(panel.primary):
        named = [(name, effects[i]) for name, effects in names]
        largest = max((_size(effect) for _, effect in named), default=0.0)
        close = [(name, one) for name, one in named if one and _size(one) >= largest - 0.01]
        name, effect = min(close, key=lambda pair: _flips(pair[1]), default=("", None))
        if effect is not None and effect.ratio:
            verdict = f" ({effect.verdict.lower()})" if effect.verdict else ""
            found.append(f"{METRIC_NAMES[metric]} × {ratio_text(effect.ratio)}, {name}{verdict}")
    return found


def _flips(effect: Effect) -> int:
    """How many toggles differ between the two arms of an effect."""
    return len(effect.toggle.split("+")) + len(effect.implied)


def _size(effect: Effect | None) -> float:
    return abs(math.log(effect.ratio)) if effect and effect.ratio else 0.0


def _better(metric: str) -> str:
    return "more is better" if kind(metric).better == HIGHER else "less is better"


def _cell(effect: Effect | None) -> Cell | None:
    if effect is None or not effect.ratio:
        return None
    verdict = effect.verdict or ""
    share = math.log(effect.ratio) / _BAR_END
    over = ("left" if share < 0 else "right") if abs(share) > 1 else ""
    share = max(-1.0, min(1.0, share))
    return Cell(
        ratio=ratio_text(effect.ratio),
        interval=interval_text(effect.low, effect.high) if effect.low else "",
        verdict=verdict.lower(),
        mark=VERDICT_MARKS.get(verdict, ""),
        tone={"BETTER": "good", "WORSE": "bad"}.get(verdict, "none"),
        bar_left=round(50 + 50 * min(share, 0.0), 1),
        bar_width=round(50 * abs(share), 1),
        over=over,
    )


# Tables -----------------------------------------------------------------------------------------


def _table(panel: Panel) -> dict[str, Any]:
    parts = [_part(panel, columns) for columns in (_SPEEDS, _COUNTS)]
    return {
        "title": panel.title,
        "parts": [part for part in parts if part["heads"]] or parts[:1],
        "notes": panel_notes(panel) + panel_faults(panel),
    }


def _part(panel: Panel, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    shown = [
        (metric, heading)
        for metric, heading in columns
        if any(arm.metrics.get(metric) is not None for arm in panel.arms)
    ]
    units = {metric: _unit(metric, panel.arms) for metric, _ in shown}
    return {
        "heads": [(heading, units[metric][0]) for metric, heading in shown],
        "rows": [
            (arm, arm_lines(arm), [_metric_cell(arm, metric, units[metric]) for metric, _ in shown])
            for arm in panel.arms
        ],
    }


def _unit(metric: str, arms: Iterable[ArmRow]) -> tuple[str, float]:
    """The unit below a heading, and the factor that turns a stored value into it.

    One unit for p50 and p99 of a latency, so that they can be read against each other.
    """
    unit = kind(metric).unit
    if unit == "ms":
        tail = metric.partition(".")[0] + ".p99"
        return latency_unit(arm.metrics.get(tail) for arm in arms)
    return ("%", 100.0) if unit == "share" else ("", 1.0)


def _metric_cell(arm: ArmRow, metric: str, unit: tuple[str, float]) -> str:
    value = arm.metrics.get(metric)
    if value is None:
        return ABSENT
    unreliable = metric.endswith(".p99") and not arm.p99_reliable
    return "~" * unreliable + significant(value * unit[1])


# Figures ----------------------------------------------------------------------------------------


def _figures(summary: Summary, plots: Sequence[Path]) -> list[dict[str, str]]:
    planned = {figure.file: figure for figure in planned_figures(summary)}
    found = []
    for plot in plots:
        figure = planned.get(plot.name)
        data = base64.b64encode(plot.read_bytes()).decode("ascii")
        found.append(
            {
                "source": f"data:image/png;base64,{data}",
                "title": figure.title if figure else plot.stem,
                "caption": figure.caption if figure else "",
            }
        )
    return found
