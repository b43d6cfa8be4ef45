"""A summary cut into panels, one workload at one load: what tables, plots and report share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.results.effects import BASELINE
from harness.results.names import is_open_loop, primary_metrics

METRIC_NAMES = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_ms.p50": "TTFT p50",
    "scheduled_ttft_ms.p50": "TTFT p50 from due",
    "tpot_ms.p50": "TPOT p50",
}
VERDICT_MARKS = {"BETTER": "▲", "WORSE": "▼", "NO DIFFERENCE": "=", "INCONCLUSIVE": "?"}


def may_be_none(effect: Mapping[str, Any]) -> bool:
    """Return whether a ratio without a verdict may well be none: its interval holds 1."""
    low, high = effect["low"], effect["high"]
    return not effect["verdict"] and low is not None and low < high and low <= 1 <= high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """What a summary holds of one workload at one load, in the summary's own order."""

    workload: str
    load: Mapping[str, Any]
    arms: tuple[Mapping[str, Any], ...]
    runs: tuple[Mapping[str, Any], ...]
    effects: tuple[Mapping[str, Any], ...]

    @property
    def title(self) -> str:
        """The panel's name, such as "support-bot · concurrency 100, 400 requests"."""
        return f"{self.workload} · {load_title(self.load)}"

    @property
    def primary(self) -> tuple[str, str, str]:
        """The metrics that get verdicts: throughput, then TTFT, then TPOT."""
        return primary_metrics(self.load)

    @property
    def ttft(self) -> str:
        """The metric that is this load's TTFT: in open loop, from when a request was due."""
        return "scheduled_ttft_ms" if is_open_loop(self.load) else "ttft_ms"

    def effect(self, arm: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
        """Return the effect of one arm on one metric; None where there is none."""
        for effect in self.effects:
            if effect["metric"] == metric and arm_key(effect) == arm_key(arm):
                return effect
        return None

    def runs_of(self, arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the runs of one arm, block by block."""
        return [run for run in self.runs if arm_key(run) == arm_key(arm)]


def panels(summary: Mapping[str, Any]) -> list[Panel]:
    """Return one panel for each workload × load: workloads as they come, their loads ascending."""
    parts: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for part in ("arms", "runs", "effects"):
        for row in summary[part]:
            parts.setdefault(panel_key(row), {}).setdefault(part, []).append(row)
    found = [_panel(rows) for rows in parts.values()]
    workloads = list(dict.fromkeys(panel.workload for panel in found))
    return sorted(found, key=lambda panel: (workloads.index(panel.workload), _size(panel.load)))


def _panel(rows: Mapping[str, list[Mapping[str, Any]]]) -> Panel:
    some = next(iter(rows.values()))[0]
    return Panel(
        workload=some["workload"],
        load=some["load"],
        **{part: tuple(rows.get(part, ())) for part in ("arms", "runs", "effects")},
    )


def _size(load: Mapping[str, Any]) -> tuple[str, float, float]:
    return load["mode"], load.get("value") or 0.0, load.get("requests") or 0.0


def panel_key(row: Mapping[str, Any]) -> str:
    """Return what tells the panel of a run, an arm or an effect from all others."""
    return json.dumps([row["workload"], row["load"]], sort_keys=True)


def arm_key(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what tells an arm from the others of its panel: the engine's label and the arm."""
    return row["label"], row["arm"]


def labels(summary: Mapping[str, Any]) -> list[str]:
    """Return the labels of the engines in a summary, each once, in the summary's order."""
    return list(dict.fromkeys(row["label"] for row in [*summary["arms"], *summary["runs"]]))


def arm_lines(arm: Mapping[str, Any]) -> list[str]:
    """Return an arm's name, a line for each toggle it flips and for each that is dragged along."""
    lines: list[str] = []
    flipped = arm.get("flipped") or {}
    for toggle, change in flipped.items():
        lines.append(f"{'+ ' if lines else ''}{toggle} {change['value']}")
        lines += [
            f" ⇒ {name} {value}"
            for name, value in change.get("implied", {}).items()
            if flipped.get(name, {}).get("value") != value  # else it has a line of its own
        ]
    return lines or [arm["arm"].replace("=", " ").replace("+", " + ")]


def arm_title(arm: Mapping[str, Any]) -> str:
    """Return an arm's name in one line, such as "paged_kv off ⇒ prefix_caching off"."""
    return " ".join(line.strip() for line in arm_lines(arm))


def effect_lines(arm: Mapping[str, Any], effect: Mapping[str, Any]) -> list[str]:
    """Return what an effect compares: "kv_cache_dtype fp8/auto", then what is dragged along."""
    flipped = arm.get("flipped") or {}
    if effect.get("others_flipped"):
        return [f"{effect['toggle']} {effect['ratio_of']}", "(all other toggles flipped)"]
    if len(flipped) != 1:
        return [f"{arm_title(arm)} ({effect['ratio_of']})"]
    ((toggle, change),) = flipped.items()
    implied = " ".join(f"⇒ {name} {value}" for name, value in change.get("implied", {}).items())
    title = f"{toggle} {effect['ratio_of']}"
    return [title, f"({change['value']} {implied})"] if implied else [title]


def is_combined(effect: Mapping[str, Any]) -> bool:
    """Return whether an effect is that of several toggles at once: shown after those of one."""
    return "+" in effect["toggle"]


def hardware_title(summary: Mapping[str, Any]) -> str:
    """Return the GPUs that the baseline uses, such as "4 × a100-80gb": of an engine, the most.

    Of a server that somebody else started nothing is known of them.
    """
    used = [arm["gpus"] for arm in summary["arms"] if arm["arm"] == BASELINE and arm["gpus"]]
    gpus = max(used, default=summary["hardware"]["count"])
    return "unknown hardware" if gpus is None else f"{gpus} × {summary['hardware']['gpu']}"


def load_title(load: Mapping[str, Any]) -> str:
    """Return a load in words: how much at once, how much in all."""
    parts = [load_name(load)]
    if load.get("requests") is not None:
        parts.append(f"{load['requests']:,} requests")
    if load.get("duration_s") is not None:
        parts.append(f"{_plain(load['duration_s'])} s")
    if load.get("max_concurrency") is not None:
        parts.append(f"at most {load['max_concurrency']:,} alive")
    return ", ".join(parts)


def load_name(load: Mapping[str, Any]) -> str:
    """Return what the load holds fixed: "concurrency 100", "2 conversations/s poisson"."""
    if load["mode"] == "concurrency":
        return f"concurrency {load['value']:,}"
    if load["mode"] == "rate":
        rate = f"{_plain(load['value'])} conversations/s"
        return f"{rate} {load.get('arrivals') or ''}".rstrip()
    return "trace arrivals"


def _plain(number: float) -> str:
    """Return a number as its author wrote it: 20, 0.5, 1,200."""
    return f"{number:,.6g}"
