"""What a toggle did: ratios to the baseline over blocks, and whether they may be believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.results.client import error_of_pairs
from harness.results.names import HIGHER, headline_metrics, kind, primary_metrics
from harness.results.predictions import PredictedRatio, is_outside, predicted_ratio
from harness.results.statistics import Ratio, geometric_mean, holm, paired_ratio
from harness.results.store import ToggleFlip
from harness.results.summary import AnalysedRun, Effect, RunRow

BASELINE, CONTROL = "baseline", "baseline-again"
MARGIN = 0.03  # a ratio within 1.03 either way makes no difference to anyone
VERDICT_BLOCKS = 5  # below, an interval says more of the few blocks than of the arms
_SIGNIFICANCE = 0.05

Pairs = Sequence[tuple[AnalysedRun, AnalysedRun]]  # (baseline, treated) of each block
Blocks = Mapping[tuple[int, int | None], AnalysedRun]  # (block, seed) → the run of one arm in it


class ArmMetric(NamedTuple):
    """One arm on one metric."""

    arm: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """One arm against its baseline on one metric, paired by block."""

    arm: str
    metric: str
    name: EffectName
    baseline: float | None  # geometric means over the paired blocks
    treated: float | None
    n_blocks: int
    ratio: Ratio | None  # None: a value is absent or 0, so there is no ratio
    identical: bool  # blocks without any difference: nothing was drawn, they are one
    windows_differ: bool  # a whole run against a steady part: not judged
    client_error: float | None  # that DEGRADED clients may have made, a share; None: not known
    predicted: PredictedRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectName:
    """What an effect is called, and which of its two arms stands above the line."""

    toggle: str
    value: str
    ratio_of: str
    implied: Mapping[str, str]  # what the value drags along
    baseline_above: bool
    others_flipped: bool = False  # what is compared has every other toggle of the sweep flipped


def effects(
    runs: Sequence[AnalysedRun], design: str | None = None
) -> tuple[list[Effect], list[str]]:
    """Return the effects of every engine × workload × load, and notes on what was withheld.

    Only runs of status ok are compared, and only with the baseline's run of the same block and
    seed, which got the very same requests. In the design `leave-one-out`, an arm that leaves out
    one flip is compared with the arm that has all.
    """
    found: list[Effect] = []
    notes: list[str] = []
    for group in _groups(run for run in runs if run.row.status == "ok"):
        some = group[0].row
        comparisons = _comparisons(group, design)
        verdicts, p_values = _verdicts(comparisons, primary_metrics(some.load))
        if alarm := _alarm(comparisons, verdicts):
            notes.append(f"{_place(some)}: no verdicts, since {alarm}")
            verdicts = {place: v for place, v in verdicts.items() if place.arm == CONTROL}
        elif verdicts and all(c.arm != CONTROL for c in comparisons):
            notes.append(f"{_place(some)}: no {CONTROL} to hold the verdicts against")
        notes += _identical_notes(some, comparisons) + _window_notes(some, comparisons)
        notes += _client_notes(some, comparisons, verdicts, p_values)
        found += [_effect(some, c, verdicts, p_values) for c in comparisons]
    return found, notes


def _groups(runs: Iterable[AnalysedRun]) -> list[list[AnalysedRun]]:
    groups: dict[object, list[AnalysedRun]] = {}
    for run in runs:
        row = run.row
        groups.setdefault((row.engine, row.label, row.workload, row.load), []).append(run)
    return list(groups.values())


def _place(run: RunRow) -> str:
    load = run.load
    value = "" if load.value is None else f" {load.value:g}"
    return f"{run.label}, {run.workload}, {load.mode}{value}"


def _comparisons(group: Sequence[AnalysedRun], design: str | None) -> list[ArmComparison]:
    arms: dict[str, dict[tuple[int, int | None], AnalysedRun]] = {}
    for run in group:
        arms.setdefault(run.row.arm, {})[run.row.block, run.row.seed] = run
    base = arms.pop(BASELINE, {})
    everything = _everything(arms) if design == "leave-one-out" else None
    compared: list[ArmComparison] = []
    for arm, blocks in arms.items():
        some = _flips(blocks)
        left_out = _left_out(everything, some)
        if everything is not None and left_out is not None:
            name, pairs = left_out, _pairs(blocks, everything)
        else:
            name, pairs = effect_name(arm, some), _pairs(base, blocks)
        if pairs:
            metrics = headline_metrics(group[0].row.load)
            compared += [_compare(arm, metric, name, pairs) for metric in metrics]
    return compared


def _pairs(base: Blocks, treated: Blocks) -> Pairs:
    return [(base[block], run) for block, run in sorted(treated.items()) if block in base]


def _flips(blocks: Blocks) -> Mapping[str, ToggleFlip]:
    return next(iter(blocks.values())).row.flipped


def _everything(arms: Mapping[str, Blocks]) -> Blocks | None:
    """Return the arm that flips the most; None where no other flips all of that but one."""
    sizes = {arm: len(_flips(blocks)) for arm, blocks in arms.items()}
    most = max(sizes.values(), default=0)
    largest = [arm for arm, size in sizes.items() if size == most]
    return arms[largest[0]] if len(largest) == 1 and most > 1 else None


def _left_out(everything: Blocks | None, flips: Mapping[str, ToggleFlip]) -> EffectName | None:
    """Return the name of the effect of the one flip that is left out; None for other arms."""
    if everything is None:
        return None
    whole = _flips(everything)
    missing = {name: flip for name, flip in whole.items() if name not in flips}
    if len(missing) != 1 or len(flips) != len(whole) - 1:
        return None
    return replace(effect_name("", missing), others_flipped=True)


def _compare(arm: str, metric: str, name: EffectName, pairs: Pairs) -> ArmComparison:
    bases, treated = [base for base, _ in pairs], [run for _, run in pairs]
    above, below = (bases, treated) if name.baseline_above else (treated, bases)
    ratio = _ratio(_values(above, metric), _values(below, metric))
    identical = len(pairs) > 1 and _identical(pairs, metric)
    if identical and ratio is not None:
        ratio = replace(ratio, low=None, high=None, p_value=None)
    rows = [(base.row, run.row) for base, run in pairs]
    return ArmComparison(
        arm=arm,
        metric=metric,
        name=name,
        baseline=_mean(_values(bases, metric)),
        treated=_mean(_values(treated, metric)),
        n_blocks=1 if identical else len(pairs),
        ratio=ratio,
        identical=identical,
        windows_differ=any(_window_kind(base) != _window_kind(run) for base, run in rows),
        client_error=error_of_pairs(rows, metric),
        predicted=predicted_ratio(above, below, metric),
    )


def _values(runs: Sequence[AnalysedRun], metric: str) -> list[float | None]:
    return [run.metrics.get(metric) for run in runs]


def _window_kind(run: RunRow) -> str | None:
    return run.window and run.window.kind


def _window_notes(run: RunRow, comparisons: Sequence[ArmComparison]) -> list[str]:
    """Return a note where ramp and drain are in the metrics of one side only."""
    arms = list(dict.fromkeys(c.arm for c in comparisons if c.windows_differ))
    if not arms:
        return []
    note = (
        f"{_place(run)}: no verdicts for {', '.join(arms)}: some of their blocks set a whole run, "
    )
    return [note + "ramp and drain included, against a steady window; ask for more requests"]


def _client_notes(
    run: RunRow,
    comparisons: Sequence[ArmComparison],
    verdicts: Verdicts,
    p_values: Mapping[ArmMetric, float],
) -> list[str]:
    """Return a note where only the clients' own error keeps an effect from a verdict."""
    arms = [
        c.arm
        for c in comparisons
        if (key := ArmMetric(c.arm, c.metric)) in verdicts
        and verdicts[key] != verdict(c.ratio, p_values[key], better=kind(c.metric).better)
    ]
    if not arms:
        return []
    note = f"{_place(run)}: inconclusive for {', '.join(dict.fromkeys(arms))}: the client of some "
    return [note + "runs is DEGRADED, and its own error may be as large as the effect"]


def _identical(pairs: Pairs, metric: str) -> bool:
    """Return whether blocks on virtual time repeat one value: then they are one, not several.

    Fixed lengths, or a trace, leave nothing to draw, and a computed clock has no noise.
    """
    computed = all(run.clock == "virtual" for pair in pairs for run in pair)
    sides = zip(*pairs, strict=True)
    return computed and all(len(set(_values(side, metric))) == 1 for side in sides)


def _identical_notes(run: RunRow, comparisons: Sequence[ArmComparison]) -> list[str]:
    """Return a note where blocks repeat each other, so that nobody takes them for a sample."""
    primary = set(primary_metrics(run.load))
    shown = [c for c in comparisons if c.ratio is not None and c.metric in primary]
    identical = [c for c in shown if c.identical]
    if not identical:
        return []
    note = "blocks are identical, since nothing was drawn: n = 1, so no interval and no verdict"
    if len(identical) == len(shown):
        return [f"{_place(run)}: {note}"]
    metrics = ", ".join(dict.fromkeys(c.metric for c in identical))
    return [f"{_place(run)}: in {metrics} of some arms, {note}"]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return geometric_mean(present) if len(present) == len(values) else None


def _ratio(above: Sequence[float | None], below: Sequence[float | None]) -> Ratio | None:
    numerators = [value for value in above if value is not None and value > 0]
    denominators = [value for value in below if value is not None and value > 0]
    if len(numerators) < len(above) or len(denominators) < len(below):
        return None
    return paired_ratio(numerators, denominators)


def effect_name(arm: str, flipped: Mapping[str, ToggleFlip]) -> EffectName:
    """Return the name of the effect of an arm's flips.

    A toggle of on and off gives on/off, whichever was the base; any other gives value/base.
    """
    if not flipped:
        again = "again" if arm == CONTROL else arm
        return EffectName(
            toggle=arm,
            value=again,
            ratio_of=f"{again}/{BASELINE}",
            implied={},
            baseline_above=False,
        )
    value = "+".join(flip.value for flip in flipped.values())
    base = "+".join(flip.base for flip in flipped.values())
    baseline_above = (value, base) == ("off", "on")
    return EffectName(
        toggle="+".join(flipped),
        value=value,
        ratio_of=f"{base}/{value}" if baseline_above else f"{value}/{base}",
        implied={
            toggle: label for flip in flipped.values() for toggle, label in flip.implied.items()
        },
        baseline_above=baseline_above,
    )


Verdicts = dict[ArmMetric, str]


def _verdicts(
    comparisons: Sequence[ArmComparison], primary: Sequence[str]
) -> tuple[Verdicts, dict[ArmMetric, float]]:
    """Return verdicts and Holm-adjusted p values of the primary metrics.

    For each metric the toggles of a group are one family. The control's metrics are a family of
    their own: among dozens of toggles its alarm would hardly ever ring.
    """
    judged = {
        ArmMetric(c.arm, c.metric): c
        for c in comparisons
        if c.metric in primary and c.n_blocks >= VERDICT_BLOCKS and not c.windows_differ
    }
    raw = {key: c.ratio.p_value for key, c in judged.items() if c.ratio is not None}
    known = {key: p_value for key, p_value in raw.items() if p_value is not None}
    adjusted = holm({key: p for key, p in known.items() if key.arm == CONTROL})
    for metric in primary:
        adjusted |= holm(
            {key: p for key, p in known.items() if key.arm != CONTROL and key.metric == metric}
        )
    verdicts = {
        key: verdict(
            judged[key].ratio,
            adjusted[key],
            better=kind(key.metric).better,
            client_error=judged[key].client_error,
        )
        for key in adjusted
    }
    return {key: found for key, found in verdicts.items() if found is not None}, adjusted


def verdict(
    ratio: Ratio | None, p_value: float, *, better: str | None, client_error: float | None = 0.0
) -> str | None:
    """Judge a ratio: NO DIFFERENCE, BETTER, WORSE or INCONCLUSIVE; None where it has no interval.

    Of the numerator against the denominator. No difference: the whole interval
    lies within the margin, a factor, so that n/d and d/n get one answer. `p_value` is adjusted for
    the comparisons made at once, so a wide family can leave an interval beside 1 inconclusive.
    `client_error`, a share, widens the interval: what a DEGRADED client may have made of it.
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    if client_error is None:
        return "INCONCLUSIVE"
    wider = math.log1p(client_error)
    low, high = math.log(ratio.low) - wider, math.log(ratio.high) + wider
    if max(abs(low), abs(high)) <= math.log1p(MARGIN):
        return "NO DIFFERENCE"
    if p_value > _SIGNIFICANCE or (wider and low <= 0 <= high):
        return "INCONCLUSIVE"
    return "BETTER" if (ratio.ratio > 1) == (better == HIGHER) else "WORSE"


def _alarm(comparisons: Sequence[ArmComparison], verdicts: Verdicts) -> str | None:
    """Return why the baseline differs from itself; None when it does not, or was not run again."""
    differing = [
        f"{c.metric} × {c.ratio.ratio:.3f}"
        for c in comparisons
        if c.ratio
        and verdicts.get(ArmMetric(c.arm, c.metric)) in ("BETTER", "WORSE")
        and c.arm == CONTROL
    ]
    if not differing:
        return None
    return f"the baseline run again differs from the baseline ({', '.join(differing)})"


def _effect(
    run: RunRow,
    comparison: ArmComparison,
    verdicts: Verdicts,
    p_values: Mapping[ArmMetric, float],
) -> Effect:
    name, ratio, predicted = comparison.name, comparison.ratio, comparison.predicted
    place = ArmMetric(comparison.arm, comparison.metric)
    return Effect(
        engine=run.engine,
        label=run.label,
        arm=comparison.arm,
        toggle=name.toggle,
        value=name.value,
        implied=name.implied,
        ratio_of=name.ratio_of,
        workload=run.workload,
        load=run.load,
        metric=comparison.metric,
        unit=kind(comparison.metric).unit,
        others_flipped=name.others_flipped,
        baseline=comparison.baseline,
        treated=comparison.treated,
        ratio=ratio.ratio if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        p_adjusted=p_values.get(place),
        n_blocks=comparison.n_blocks,
        verdict=verdicts.get(place),
        predicted=predicted.ratio,
        predicted_low=predicted.low,
        predicted_high=predicted.high,
        outside=is_outside(ratio, predicted),
    )
