"""The answer of a sweep: the best arm of each workload × load, and whether its effect is proven."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.results.effects import BASELINE, CONTROL, VERDICT_BLOCKS
from harness.results.names import HIGHER, kind
from harness.results.panels import Panel, arm_lines, labels, load_name, panels
from harness.results.report.notes import IDENTICAL, are_identical
from harness.results.summary import ArmRow, Effect, Summary
from harness.results.units import (
    ABSENT,
    count,
    interval_text,
    latency_unit,
    ratio_text,
    significant,
)

_HEADS = ("workload · load", "best arm", "", "÷ baseline", "95 % interval", "verdict")
_ARM_COLUMNS = 28  # enough for "speculative eagle(tokens=5)"
_VALUE = 2  # the column whose head is the metric, where all rows have the same one
_PER_GPU = "output_tokens_per_s_per_gpu"
_VERDICTS = {
    "BETTER": "better",
    "WORSE": "better",  # of baseline ÷ arm
    "NO DIFFERENCE": "no difference",
    "INCONCLUSIVE": "inconclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BestArm:
    """The arm of one engine with the best value of a metric, for one workload × load."""

    panel: Panel
    arm: ArmRow
    metric: str
    value: float
    ratio: float | None  # arm ÷ baseline; None for the baseline itself
    low: float | None  # of its 95 % interval
    high: float | None
    verdict: str | None  # of the effect, whichever way its ratio is written
    n_blocks: int

    @property
    def is_baseline(self) -> bool:
        """Whether no arm is better than the baseline."""
        return self.arm.arm == BASELINE

    @property
    def proven(self) -> bool:
        """Whether the blocks showed that it is better than the baseline."""
        return self.verdict in ("BETTER", "WORSE")


def best_arms(summary: Summary) -> list[BestArm]:
    """Return the best arm of each workload × load and engine, where anything was measured."""
    found = (
        _best(panel, [arm for arm in panel.arms if arm.label == label and arm.status == "ok"])
        for panel in panels(summary)
        for label in labels(summary)
    )
    return [best for best in found if best is not None]


def answer_table(summary: Summary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and a row for each best arm; verdicts where the sweep has any."""
    found = best_arms(summary)
    several = len(labels(summary)) > 1
    columns = len(_HEADS) if any(best.verdict for best in found) else -1
    rows: list[tuple[str, ...]] = [
        (
            f"{best.arm.label} · " * several
            + f"{best.panel.workload} · {load_name(best.panel.load)}",
            _arm_text(best.arm),
            _value_text(best),
            *_effect_texts(best),
        )
        for best in found
    ]
    heads = list(_HEADS[:columns])
    if len(units := {row[_VALUE].partition(" ")[2] for row in rows}) == 1:
        heads[_VALUE] = units.pop()
        rows = [(*row[:_VALUE], row[_VALUE].partition(" ")[0], *row[_VALUE + 1 :]) for row in rows]
    return tuple(heads), [row[:columns] for row in rows]


def answer_lines(summary: Summary) -> Iterator[str]:
    """Yield what the table of best arms leaves open, and what would settle it."""
    found = best_arms(summary)
    if not found:
        yield "no arm has a result: the reasons are below"
    unproven = [best for best in found if not best.is_baseline and not best.proven]
    if not unproven:
        return
    blocks = max(best.n_blocks for best in unproven)
    if are_identical(summary):
        yield IDENTICAL
    elif blocks < VERDICT_BLOCKS:
        yield (
            f"not proven: {count(blocks, 'block')}, a verdict needs {VERDICT_BLOCKS}; set "
            f"`blocks: {VERDICT_BLOCKS}`"
        )
    else:
        yield f"without a verdict: more than {blocks} blocks make the intervals narrower"


def _best(panel: Panel, arms: Sequence[ArmRow]) -> BestArm | None:
    metric = _metric(panel, arms)
    measured = [(arm.metrics.get(metric), arm) for arm in arms if arm.arm != CONTROL]
    known = [(value, arm) for value, arm in measured if value is not None]
    if not known:
        return None
    best = max if kind(metric).better == HIGHER else min
    value, arm = best(known, key=lambda pair: pair[0])
    effect = _effect(panel, arm, metric, arms)
    low, ratio, high = _oriented(effect)
    return BestArm(
        panel=panel,
        arm=arm,
        metric=metric,
        value=value,
        ratio=ratio,
        low=low,
        high=high,
        verdict=effect.verdict if effect else None,
        n_blocks=effect.n_blocks if effect else 0,
    )


def _effect(panel: Panel, arm: ArmRow, metric: str, arms: Sequence[ArmRow]) -> Effect | None:
    """Return the effect of `arm` against the baseline.

    On as many GPUs as the baseline uses, throughput per GPU has the ratio of throughput, which
    alone gets a verdict.
    """
    used = {one.gpus for one in arms if one.arm in (BASELINE, arm.arm)}
    effect = panel.effect(
        arm, panel.primary[0] if metric == _PER_GPU and len(used) == 1 else metric
    )
    return None if effect is None or effect.others_flipped else effect


def _metric(panel: Panel, arms: Sequence[ArmRow]) -> str:
    """Return the metric that decides: throughput, for each GPU where arms use different numbers.

    An open loop sends at one rate whatever the engine does, so there the time to the first token,
    from when a request was due, decides.
    """
    if panel.load.is_open_loop:
        return panel.primary[1]
    several = len({arm.gpus for arm in arms}) > 1
    return _PER_GPU if several else panel.primary[0]


def _oriented(effect: Effect | None) -> tuple[float | None, float | None, float | None]:
    """Return low, ratio and high of arm ÷ baseline, also where the effect is on ÷ off."""
    if effect is None or effect.ratio is None:
        return None, None, None
    if not effect.ratio_of.endswith(f"/{effect.value}"):
        return effect.low, effect.ratio, effect.high
    low, high = effect.high, effect.low
    return low and 1 / low, 1 / effect.ratio, high and 1 / high


def _arm_text(arm: ArmRow) -> str:
    """Return an arm's name without what its values imply, in lines that leave space for numbers."""
    own = [line for line in arm_lines(arm) if not line.startswith(" ⇒")]
    return "\n".join(textwrap.wrap(" ".join(own), _ARM_COLUMNS, break_on_hyphens=False))


def _value_text(best: BestArm) -> str:
    if best.metric.startswith("output_tokens_per_s"):
        per_gpu = "/GPU" if best.metric == _PER_GPU else ""
        return f"{significant(best.value)} tok/s{per_gpu}"
    unit, factor = latency_unit([best.value])
    return f"{significant(best.value * factor)} {unit} TTFT p50"


def _effect_texts(best: BestArm) -> tuple[str, str, str]:
    if best.is_baseline or best.ratio is None:
        return (ABSENT, ABSENT, ABSENT)
    verdict = _VERDICTS.get(best.verdict or "", "not proven")
    return f"× {ratio_text(best.ratio)}", interval_text(best.low, best.high), verdict
