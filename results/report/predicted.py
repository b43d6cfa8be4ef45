"""Predicted beside measured, one workload at one load: each arm, then what each toggle does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.results.effects import CONTROL
from harness.results.panels import METRIC_NAMES, Panel, arm_title, labels, panels
from harness.results.summary import ArmRow, Effect, RunRow, Summary
from harness.results.units import ABSENT, interval_text, ratio_text, significant

_HEADS = {
    "output_tokens_per_s": "output\ntok/s",
    "ttft_ms.p50": "TTFT\np50 ms",
    "scheduled_ttft_ms.p50": "TTFT from\ndue ms",
    "tpot_ms.p50": "TPOT\np50 ms",
}
_BOUNDS = {"memory": "mem", "compute": "comp"}
OUTSIDE = "outside"  # the mark of a measured effect that the prediction does not allow


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPanel:
    """What a reader sees of one panel: two tables as texts, and what must be known of them."""

    title: str
    arm_heads: tuple[str, ...]
    arms: tuple[tuple[str, ...], ...]
    effect_heads: tuple[str, ...]
    effects: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def predicted_panels(summary: Summary) -> list[PredictedPanel]:
    """Return the panels in which something was predicted of a real engine; none where nothing."""
    return [
        _panel(summary, panel)
        for panel in panels(summary)
        if any(arm.predicted for arm in panel.arms)
    ]


def absent_predictions(summary: Summary) -> list[str]:
    """Return why some arms have no prediction, each reason once."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for run in summary.runs:
        if run.prediction is not None and run.prediction.absent:
            arms = found.setdefault(run.prediction.absent, {}).setdefault(run.label, {})
            arms[run.arm] = None
    return [
        f"not predicted: {'; '.join(_of(label, arms, summary) for label, arms in of.items())}: "
        f"{reason}"
        for reason, of in found.items()
    ]


def _of(label: str, arms: Mapping[str, None], summary: Summary) -> str:
    """Return the arms of an engine by name, or the engine alone where they are all of them."""
    every = {run.arm for run in summary.runs if run.label == label}
    return label if set(arms) == every else f"{label} {', '.join(arms)}"


def _panel(summary: Summary, panel: Panel) -> PredictedPanel:
    several = len(labels(summary)) > 1
    shown = [arm for arm in panel.arms if arm.predicted]
    roofs = any(arm.roof and arm.roof.decode for arm in shown)
    return PredictedPanel(
        title=panel.title,
        arm_heads=_arm_heads(panel, roofs=roofs),
        arms=tuple((_name(arm, several), *_arm_cells(arm, panel, roofs=roofs)) for arm in shown),
        effect_heads=("toggle", "ratio of", "measured ×", "predicted ×", "its band", ""),
        effects=tuple(
            row for arm in shown if arm.arm != CONTROL for row in _effect_rows(panel, arm, several)
        ),
        notes=tuple(_notes(panel)),
    )


def _name(arm: ArmRow, several: bool) -> str:
    return f"{arm.label}: {arm_title(arm)}" if several else arm_title(arm)


def _arm_heads(panel: Panel, *, roofs: bool) -> tuple[str, ...]:
    names = [name for metric in panel.primary for name in (_HEADS[metric], "\npredicted")]
    return ("\narm", *names, *(("of roof\ndecode", "\nprefill") if roofs else ()))


def _arm_cells(arm: ArmRow, panel: Panel, *, roofs: bool) -> Iterator[str]:
    for metric in panel.primary:
        yield significant(arm.metrics.get(metric))
        yield significant((arm.predicted or {}).get(metric))
    if roofs:
        roof = arm.roof
        yield _roof_cell(roof and roof.decode, roof and roof.decode_bound)
        yield _roof_cell(roof and roof.prefill, roof and roof.prefill_bound)


def _roof_cell(share: float | None, bound: str | None) -> str:
    return ABSENT if share is None else f"{share:.0%} {_BOUNDS.get(bound or '', '')}"


def _effect_rows(panel: Panel, arm: ArmRow, several: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each metric; the toggle's name stands in the first."""
    effects = [panel.effect(arm, metric) for metric in panel.primary]
    predicted = [effect for effect in effects if effect and effect.predicted]
    for number, effect in enumerate(predicted):
        yield (
            "" if number else _name(arm, several),
            METRIC_NAMES[effect.metric],
            _measured(effect),
            ratio_text(effect.predicted),
            interval_text(effect.predicted_low, effect.predicted_high),
            OUTSIDE if effect.outside else "",
        )


def _measured(effect: Effect) -> str:
    if effect.ratio is None:
        return ABSENT
    interval = f" [{interval_text(effect.low, effect.high)}]" if effect.low else ""
    return ratio_text(effect.ratio) + interval


def _notes(panel: Panel) -> Iterator[str]:
    yield (
        "predicted: the same requests on the embedded engine, simulated, not measured; brackets: "
        "95 % interval of a measured ratio, the band that the known error leaves a predicted one"
    )
    yield from _bases(panel.runs)
    for effect in panel.effects:
        again = effect.arm == CONTROL and effect.metric in panel.primary
        if again and effect.outside:
            yield (
                f"{OUTSIDE}, though nothing was flipped: {effect.label} {effect.arm}, "
                f"{METRIC_NAMES[effect.metric]} × {ratio_text(effect.ratio)}"
            )
    if any(arm.roof and arm.roof.decode for arm in panel.arms):
        yield (
            "of roof: the least time that bandwidth and arithmetic of the hardware allow, over the "
            "measured: a decode step's over TPOT p50, a prompt's over TTFT p50, waiting included; "
            "then which side binds, memory or compute"
        )


def _bases(runs: Sequence[RunRow]) -> list[str]:
    bases: dict[str, None] = {}
    for run in runs:
        prediction = run.prediction
        if prediction is not None and prediction.values:
            errors = "; ".join(map(_in_words, prediction.errors)) or "its error is not known"
            bases[f"{run.label}: {prediction.basis}; {errors}"] = None
    return list(bases)


def _in_words(sentence: str) -> str:
    """Return what is said of an error with the metric's name as tables write it."""
    metric, colon, rest = sentence.partition(":")
    return METRIC_NAMES.get(metric, metric) + colon + rest
