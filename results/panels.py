"""A summary cut into panels, one workload at one load: what tables, plots and report share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from harness.results.effects import BASELINE, CONTROL
from harness.results.names import primary_metrics
from harness.results.store import LoadFacts
from harness.results.summary import ArmRow, Effect, RunRow, Summary

METRIC_NAMES = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_ms.p50": "TTFT p50",
    "scheduled_ttft_ms.p50": "TTFT p50 from due",
    "tpot_ms.p50": "TPOT p50",
}
CONTROL_LIMIT = 0.1  # the baseline run again may differ from the baseline by so much
VERDICT_MARKS = {"BETTER": "▲", "WORSE": "▼", "NO DIFFERENCE": "=", "INCONCLUSIVE": "?"}


def may_be_none(effect: Effect) -> bool:
    """Return whether a ratio without a verdict shows no effect: its interval includes 1."""
    low, high = effect.low, effect.high
    if effect.verdict or low is None or high is None:
        return False
    return low < high and low <= 1 <= high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """What a summary holds of one workload at one load, in the summary's own order."""

    workload: str
    load: LoadFacts
    arms: tuple[ArmRow, ...]
    runs: tuple[RunRow, ...]
    effects: tuple[Effect, ...]

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
        return "scheduled_ttft_ms" if self.load.is_open_loop else "ttft_ms"

    @property
    def control_off(self) -> dict[str, list[Effect]]:
        """The primary effects of a control that differs by more than 10 %, by engine label.

        With any number of blocks: what the machine did between two equal arms, it may have done to
        every other arm.
        """
        found: dict[str, list[Effect]] = {}
        for effect in self.effects:
            if effect.arm != CONTROL or effect.metric not in self.primary or not effect.ratio:
                continue
            if abs(math.log(effect.ratio)) > math.log1p(CONTROL_LIMIT):
                found.setdefault(effect.label, []).append(effect)
        return found

    def effect(self, arm: ArmRow, metric: str) -> Effect | None:
        """Return the effect of one arm on one metric; None where there is none."""
        for effect in self.effects:
            if effect.metric == metric and arm_key(effect) == arm_key(arm):
                return effect
        return None

    def runs_of(self, arm: ArmRow) -> list[RunRow]:
        """Return the runs of one arm, block by block."""
        return [run for run in self.runs if arm_key(run) == arm_key(arm)]


def panels(summary: Summary) -> list[Panel]:
    """Return one panel for each workload × load: workloads as they come, their loads ascending."""
    rows: list[ArmRow | RunRow | Effect] = [*summary.arms, *summary.runs, *summary.effects]
    places = dict.fromkeys((row.workload, row.load) for row in rows)
    found = [
        Panel(
            workload=workload,
            load=load,
            arms=tuple(one for one in summary.arms if (one.workload, one.load) == place),
            runs=tuple(one for one in summary.runs if (one.workload, one.load) == place),
            effects=tuple(one for one in summary.effects if (one.workload, one.load) == place),
        )
        for place in places
        for workload, load in [place]
    ]
    workloads = list(dict.fromkeys(panel.workload for panel in found))
    return sorted(found, key=lambda panel: (workloads.index(panel.workload), _size(panel.load)))


def _size(load: LoadFacts) -> tuple[str, float, float]:
    return load.mode, load.value or 0.0, load.requests or 0.0


def arm_key(row: ArmRow | RunRow | Effect) -> tuple[str, str]:
    """Return the key of an arm within its panel: the engine's label and the arm's name."""
    return row.label, row.arm


def labels(summary: Summary) -> list[str]:
    """Return the labels of the engines in a summary, each once, in the summary's order."""
    every = (*(arm.label for arm in summary.arms), *(run.label for run in summary.runs))
    return list(dict.fromkeys(every))


def arm_lines(arm: ArmRow) -> list[str]:
    """Return an arm's name, a line for each toggle it flips and for each that is dragged along."""
    lines: list[str] = []
    flipped = arm.flipped
    for toggle, change in flipped.items():
        lines.append(f"{'+ ' if lines else ''}{toggle} {change.value}")
        lines += [
            f" ⇒ {name} {value}"
            for name, value in change.implied.items()
            if name not in flipped or flipped[name].value != value  # else it has its own line
        ]
    return lines or [arm.arm.replace("=", " ").replace("+", " + ")]


def arm_title(arm: ArmRow) -> str:
    """Return an arm's name in one line, such as "paged_kv off ⇒ prefix_caching off"."""
    return " ".join(line.strip() for line in arm_lines(arm))


def effect_lines(arm: ArmRow, effect: Effect) -> list[str]:
    """Return what an effect compares: "kv_cache_dtype fp8/auto", then what is dragged along."""
    flipped = arm.flipped
    if effect.others_flipped:
        return [f"{effect.toggle} {effect.ratio_of}", "(all other toggles flipped)"]
    if len(flipped) != 1:
        return [f"{arm_title(arm)} ({effect.ratio_of})"]
    ((toggle, change),) = flipped.items()
    implied = " ".join(f"⇒ {name} {value}" for name, value in change.implied.items())
    title = f"{toggle} {effect.ratio_of}"
    return [title, f"({change.value} {implied})"] if implied else [title]


def is_combined(effect: Effect) -> bool:
    """Return whether an effect is that of several toggles at once: shown after those of one."""
    return "+" in effect.toggle


def hardware_title(summary: Summary) -> str:
    """Return the GPUs that the baseline uses, such as "4 × a100-80gb": of an engine, the most.

    Of a server that somebody else started nothing is known of them.
    """
    used = [arm.gpus for arm in summary.arms if arm.arm == BASELINE and arm.gpus]
    gpus = max(used, default=summary.hardware.count)
    return "unknown hardware" if gpus is None else f"{gpus} × {summary.hardware.gpu}"


def load_title(load: LoadFacts) -> str:
    """Return a load in words: how much at once, how much in all."""
    parts = [load_name(load)]
    if load.requests is not None:
        parts.append(f"{load.requests:,} requests")
    if load.duration_s is not None:
        parts.append(f"{_plain(load.duration_s)} s")
    if load.max_concurrency is not None:
        parts.append(f"at most {load.max_concurrency:,} alive")
    return ", ".join(parts)


def load_name(load: LoadFacts) -> str:
    """Return what the load holds fixed: "concurrency 100", "2 conversations/s poisson"."""
    if load.mode == "concurrency":
        return f"concurrency {load.concurrency:,}"
    if load.mode == "rate":
        rate = f"{_plain(load.value or 0.0)} conversations/s"
        return f"{rate} {load.arrivals or ''}".rstrip()
    return "trace arrivals"


def _plain(number: float) -> str:
    """Return a number as its author wrote it: 20, 0.5, 1,200."""
    return f"{number:,.6g}"


class Marked(Protocol):
    """What may show values that no engine gave."""

    @property
    def simulated(self) -> bool:
        """Whether some times come from a model of the hardware."""
        ...

    @property
    def stand_in(self) -> bool:
        """Whether some times are those of a program that imitates an engine."""
        ...


def unmeasured(document: Marked) -> str:
    """Return "SIMULATED", "STAND-IN", both, or nothing where all was measured on real engines.

    A stand-in imitates an engine to test how it is started and asked; its timings mean nothing.
    """
    marks = ["SIMULATED"] * document.simulated + ["STAND-IN"] * document.stand_in
    return " · ".join(marks)
