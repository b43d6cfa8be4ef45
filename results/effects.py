"""What a toggle did: ratios to the baseline over blocks, and whether they may be believed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.results.client import error_of_pairs
from harness.results.names import HIGHER, headline_metrics, kind, primary_metrics
from harness.results.predictions import is_outside, predicted_ratio
from harness.results.statistics import Ratio, geometric_mean, holm, paired_ratio

BASELINE, CONTROL = "baseline", "baseline-again"
MARGIN = 0.03  # a ratio within 1.03 either way makes no difference to anyone
VERDICT_BLOCKS = 5  # below, an interval says more of the few blocks than of the arms
_SIGNIFICANCE = 0.05

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against its baseline on one metric, paired by block."""

    arm: str
    metric: str
    name: EffectName
    baseline: float | None  # geometric means over the paired blocks
    treated: float | None
    n_blocks: int
    ratio: Ratio | None  # None: a value is absent or 0, so there is no ratio
    alike: bool  # blocks without any difference: nothing was drawn, they are one
    windows_differ: bool  # a whole run against a steady part: not judged
    client_error: float | None  # that DEGRADED clients may have made, a share; None: not known
    foreseen: Mapping[str, float | None]  # the predicted ratio and its band


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
    runs: Sequence[Row], design: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the effects of every engine × workload × load, and notes on what was withheld.

    `runs` are rows with `engine`, `label`, `arm`, `block`, `seed`, `workload`, `load`, `status`,
    `flipped`, `clock`, `window`, and `values`: metric name → value. Only runs of status ok are
    compared, and only with the baseline's run of the same block and seed: those were asked the very
    same. In the design `leave-one-out`, an arm that leaves out one flip is compared with the arm
    that has all.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for group in _groups(run for run in runs if run["status"] == "ok"):
        comparisons = _comparisons(group, design)
        verdicts, p_values = _verdicts(comparisons, primary_metrics(group[0]["load"]))
        if alarm := _alarm(comparisons, verdicts):
            notes.append(f"{_place(group[0])}: no verdicts, since {alarm}")
            verdicts = {key: v for key, v in verdicts.items() if key[0] == CONTROL}
        elif verdicts and all(c.arm != CONTROL for c in comparisons):
            notes.append(f"{_place(group[0])}: no {CONTROL} to hold the verdicts against")
        notes += _alike_notes(group[0], comparisons) + _window_notes(group[0], comparisons)
        notes += _client_notes(group[0], comparisons, verdicts, p_values)
        rows += [_row(group[0], c, verdicts, p_values) for c in comparisons]
    return rows, notes


def _groups(runs: Iterable[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = {}
    for run in runs:
        place = [run["engine"], run["label"], run["workload"], run["load"]]
        groups.setdefault(json.dumps(place, sort_keys=True), []).append(run)
    return list(groups.values())


def _place(run: Row) -> str:
    load = run["load"]
    value = "" if load.get("value") is None else f" {load['value']:g}"
    return f"{run['label']}, {run['workload']}, {load['mode']}{value}"


Blocks = Mapping[tuple[Any, Any], Row]  # (block, seed) → the run of one arm in it


def _comparisons(group: Sequence[Row], design: str | None) -> list[Comparison]:
    arms: dict[str, dict[tuple[Any, Any], Row]] = {}
    for run in group:
        arms.setdefault(run["arm"], {})[run["block"], run.get("seed")] = run
    base = arms.pop(BASELINE, {})
    everything = _everything(arms) if design == "leave-one-out" else None
    compared: list[Comparison] = []
    for arm, blocks in arms.items():
        some = next(iter(blocks.values()))
        left_out = _left_out(everything, some)
        if everything is not None and left_out is not None:
            name, pairs = left_out, _pairs(blocks, everything)
        else:
            name, pairs = effect_name(some), _pairs(base, blocks)
        if pairs:
            metrics = headline_metrics(group[0]["load"])
            compared += [_compare(arm, metric, name, pairs) for metric in metrics]
    return compared


def _pairs(base: Blocks, treated: Blocks) -> list[tuple[Row, Row]]:
    return [(base[block], run) for block, run in sorted(treated.items()) if block in base]


def _everything(arms: Mapping[str, Blocks]) -> Blocks | None:
    """Return the arm that flips the most; None where no other flips all of that but one."""
    sizes = {arm: len(next(iter(blocks.values()))["flipped"]) for arm, blocks in arms.items()}
    most = max(sizes.values(), default=0)
    largest = [arm for arm, size in sizes.items() if size == most]
    return arms[largest[0]] if len(largest) == 1 and most > 1 else None


def _left_out(everything: Blocks | None, run: Row) -> EffectName | None:
    """Return what the effect of the one flip that `run` leaves out is called; None for others."""
    if everything is None:
        return None
    whole = next(iter(everything.values()))
    missing = {name: flip for name, flip in whole["flipped"].items() if name not in run["flipped"]}
    if len(missing) != 1 or len(run["flipped"]) != len(whole["flipped"]) - 1:
        return None
    return replace(effect_name({**whole, "flipped": missing}), others_flipped=True)


def _compare(
    arm: str, metric: str, name: EffectName, pairs: Sequence[tuple[Row, Row]]
) -> Comparison:
    baseline = [base["values"].get(metric) for base, _ in pairs]
    treated = [run["values"].get(metric) for _, run in pairs]
    above, below = (baseline, treated) if name.baseline_above else (treated, baseline)
    alike = len(pairs) > 1 and _alike(pairs, baseline, treated)
    ratio = _ratio(above, below)
    if alike and ratio is not None:
        ratio = replace(ratio, low=None, high=None, p_value=None)
    return Comparison(
        arm=arm,
        metric=metric,
        name=name,
        baseline=_mean(baseline),
        treated=_mean(treated),
        n_blocks=1 if alike else len(pairs),
        ratio=ratio,
        alike=alike,
        windows_differ=any(_window_kind(base) != _window_kind(run) for base, run in pairs),
        client_error=error_of_pairs(pairs, metric),
        foreseen=_foreseen(pairs, metric, name),
    )


def _foreseen(
    pairs: Sequence[tuple[Row, Row]], metric: str, name: EffectName
) -> dict[str, float | None]:
    bases, treated = [base for base, _ in pairs], [run for _, run in pairs]
    above, below = (bases, treated) if name.baseline_above else (treated, bases)
    return predicted_ratio(above, below, metric)


def _window_kind(run: Row) -> str | None:
    return (run.get("window") or {}).get("kind")


def _window_notes(run: Row, comparisons: Sequence[Comparison]) -> list[str]:
    """Return a note where ramp and drain are in the figures of one side only."""
    arms = list(dict.fromkeys(c.arm for c in comparisons if c.windows_differ))
    if not arms:
        return []
    note = (
        f"{_place(run)}: no verdicts for {', '.join(arms)}: some of their blocks set a whole run, "
    )
    return [note + "ramp and drain included, against a steady window; ask for more requests"]


def _client_notes(
    run: Row,
    comparisons: Sequence[Comparison],
    verdicts: Verdicts,
    p_values: Mapping[tuple[str, str], float],
) -> list[str]:
    """Return a note where only the clients' own error keeps an effect from a verdict."""
    arms = [
        c.arm
        for c in comparisons
        if (key := (c.arm, c.metric)) in verdicts
        and verdicts[key] != verdict(c.ratio, p_values[key], better=kind(c.metric).better)
    ]
    if not arms:
        return []
    note = f"{_place(run)}: inconclusive for {', '.join(dict.fromkeys(arms))}: the client of some "
    return [note + "runs is DEGRADED, and its own error may be as large as the effect"]


def _alike(
    pairs: Sequence[tuple[Row, Row]],
    baseline: Sequence[float | None],
    treated: Sequence[float | None],
) -> bool:
    """Return whether blocks on virtual time repeat one figure: then they are one, not several.

    Fixed lengths, or a trace, leave nothing to draw, and a computed clock has no noise.
    """
    computed = all(run.get("clock") == "virtual" for pair in pairs for run in pair)
    return computed and len(set(baseline)) == len(set(treated)) == 1


def _alike_notes(run: Row, comparisons: Sequence[Comparison]) -> list[str]:
    """Return a note where blocks repeat each other, so that nobody takes them for a sample."""
    primary = set(primary_metrics(run["load"]))
    told = [c for c in comparisons if c.ratio is not None and c.metric in primary]
    alike = [c for c in told if c.alike]
    if not alike:
        return []
    said = "blocks are identical, since nothing was drawn: n = 1, so no interval and no verdict"
    if len(alike) == len(told):
        return [f"{_place(run)}: {said}"]
    metrics = ", ".join(dict.fromkeys(c.metric for c in alike))
    return [f"{_place(run)}: in {metrics} of some arms, {said}"]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return geometric_mean(present) if len(present) == len(values) else None


def _ratio(above: Sequence[float | None], below: Sequence[float | None]) -> Ratio | None:
    numerators = [value for value in above if value is not None and value > 0]
    denominators = [value for value in below if value is not None and value > 0]
    if len(numerators) < len(above) or len(denominators) < len(below):
        return None
    return paired_ratio(numerators, denominators)


def effect_name(run: Row) -> EffectName:
    """Return what the effect of a run's flips is called.

    A toggle of on and off gives on/off, whichever was the base; any other gives value/base.
    """
    flipped: Mapping[str, Mapping[str, Any]] = run["flipped"]
    if not flipped:
        again = "again" if run["arm"] == CONTROL else str(run["arm"])
        return EffectName(
            toggle=str(run["arm"]),
            value=again,
            ratio_of=f"{again}/{BASELINE}",
            implied={},
            baseline_above=False,
        )
    value, base = (
        "+".join(str(flip[key]) for flip in flipped.values()) for key in ("value", "base")
    )
    baseline_above = (value, base) == ("off", "on")
    implied = {
        toggle: label
        for flip in flipped.values()
        for toggle, label in (flip.get("implied") or {}).items()
    }
    return EffectName(
        toggle="+".join(flipped),
        value=value,
        ratio_of=f"{base}/{value}" if baseline_above else f"{value}/{base}",
        implied=implied,
        baseline_above=baseline_above,
    )


Verdicts = dict[tuple[str, str], str]  # (arm, metric) → verdict


def _verdicts(
    comparisons: Sequence[Comparison], primary: Sequence[str]
) -> tuple[Verdicts, dict[tuple[str, str], float]]:
    """Return verdicts and Holm-adjusted p values of the primary metrics.

    For each metric the toggles of a group are one family. The control's metrics are a family of
    their own: among dozens of toggles its alarm would hardly ever ring.
    """
    judged = {
        (c.arm, c.metric): c
        for c in comparisons
        if c.metric in primary and c.n_blocks >= VERDICT_BLOCKS and not c.windows_differ
    }
    raw = {key: c.ratio.p_value for key, c in judged.items() if c.ratio is not None}
    told = {key: p_value for key, p_value in raw.items() if p_value is not None}
    adjusted = holm({key: p for key, p in told.items() if key[0] == CONTROL})
    for metric in primary:
        adjusted |= holm({key: p for key, p in told.items() if _is_toggle_on(metric, key)})
    verdicts = {
        key: verdict(
            judged[key].ratio,
            adjusted[key],
            better=kind(key[1]).better,
            client_error=judged[key].client_error,
        )
        for key in adjusted
    }
    return {key: found for key, found in verdicts.items() if found is not None}, adjusted


def _is_toggle_on(metric: str, key: tuple[str, str]) -> bool:
    return key[0] != CONTROL and key[1] == metric


def verdict(
    ratio: Ratio | None, p_value: float, *, better: str | None, client_error: float | None = 0.0
) -> str | None:
    """Return what may be said of a ratio: NO DIFFERENCE, BETTER, WORSE or INCONCLUSIVE.

    Of what stands above the line, against what stands below it. No difference: the whole interval
    lies within the margin, a factor, so that n/d and d/n get one answer. `p_value` is adjusted for
    the request_sets asked at once, so a wide family can leave an interval beside 1 inconclusive.
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


def _alarm(comparisons: Sequence[Comparison], verdicts: Verdicts) -> str | None:
    """Return why the baseline differs from itself; None when it does not, or was not run again."""
    differing = [
        f"{c.metric} × {c.ratio.ratio:.3f}"
        for c in comparisons
        if c.ratio and verdicts.get((c.arm, c.metric)) in ("BETTER", "WORSE") and c.arm == CONTROL
    ]
    if not differing:
        return None
    return f"the baseline run again differs from the baseline ({', '.join(differing)})"


def _row(
    run: Row,
    comparison: Comparison,
    verdicts: Verdicts,
    p_values: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    key, name, ratio = (comparison.arm, comparison.metric), comparison.name, comparison.ratio
    effect: dict[str, Any] = {
        "engine": run["engine"],
        "label": run["label"],
        "arm": comparison.arm,
        "toggle": name.toggle,
        "value": name.value,
        "implied": dict(name.implied),
        "ratio_of": name.ratio_of,
        "workload": run["workload"],
        "load": run["load"],
        "metric": comparison.metric,
        "unit": kind(comparison.metric).unit,
        "others_flipped": name.others_flipped,
        "baseline": comparison.baseline,
        "treated": comparison.treated,
        "ratio": ratio.ratio if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "p_adjusted": p_values.get(key),
        "n_blocks": comparison.n_blocks,
        "verdict": verdicts.get(key),
        **comparison.foreseen,
    }
    return {**effect, "outside": is_outside(effect)}
