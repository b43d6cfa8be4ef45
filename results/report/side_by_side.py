"""Several engines beside each other, one workload at one load: baselines, then each toggle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.results.effects import BASELINE, CONTROL
from harness.results.panels import VERDICT_MARKS, Panel, arm_title, labels, panels
from harness.results.summary import ArmRow, Effect, RunRow, Summary
from harness.results.units import ABSENT, latency_unit, ratio_text, significant
from harness.results.warnings import prompt_tokens_each

_UNLIKE = 0.02  # of prompt tokens a request; engines may count a token or two of their own
# An arm is believed as far as the least believed of its flips.
_WORST_FIRST = ("contradicted", "unverifiable", "not exercised", "verified")
_MARKS = {"simulated": "SIMULATED", "measured": "measured", "real": "real"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """What one toggle does on one engine: three ratios with verdict marks, and the proof."""

    ratios: tuple[str, ...]  # throughput, TTFT, TPOT; empty where the engine has no such arm
    proof: str  # what the counters show of the flip, or why there is no ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The engines of one panel; a column each. Stand-ins are in none."""

    panel: Panel
    engines: tuple[str, ...]  # labels
    heads: tuple[str, ...]  # with the engine's kind where the kinds differ
    values: tuple[tuple[str, tuple[str, ...]], ...]  # name with unit → a value of each baseline
    toggles: tuple[tuple[str, tuple[Ratios, ...]], ...]
    notes: tuple[str, ...]


def compared_engines(summary: Summary) -> list[str]:
    """Return the labels of the engines that may be set side by side; none where one is left.

    A stand-in's times are nobody's: it is beside no other.
    """
    kinds = engine_kinds(summary)
    kept = [label for label in labels(summary) if kinds.get(label) != "stand-in"]
    return kept if len(kept) > 1 else []


def engine_kinds(summary: Summary) -> dict[str, str]:
    """Return label → real, measured, simulated or stand-in; one that never ran is not in it."""
    return {run.label: run.engine_kind for run in summary.runs if run.engine_kind}


def left_out(summary: Summary) -> list[str]:
    """Return what is said of engines that are in no comparison of engines."""
    kinds = engine_kinds(summary)
    out = [label for label in labels(summary) if kinds.get(label) == "stand-in"]
    if not out or len(labels(summary)) < 2:
        return []
    return [f"in no comparison of engines: {', '.join(out)} (STAND-IN: its times are nobody's)"]


def side_by_side(summary: Summary) -> list[SideBySide]:
    """Return each panel with its engines beside each other; nothing for a single engine."""
    engines = compared_engines(summary)
    kinds = engine_kinds(summary)
    found = []
    for panel in panels(summary):
        bases = {a.label: a for a in panel.arms if a.arm == BASELINE}
        present = [label for label in engines if label in bases]
        if len(present) > 1:
            found.append(_beside(panel, present, [bases[label] for label in present], kinds))
    return found


def _beside(
    panel: Panel, engines: Sequence[str], bases: Sequence[ArmRow], kinds: Mapping[str, str]
) -> SideBySide:
    mixed = len({kinds.get(label) for label in engines}) > 1
    heads = tuple(
        f"{label} ({_MARKS.get(kinds.get(label, ''), 'not run')})" if mixed else label
        for label in engines
    )
    return SideBySide(
        panel=panel,
        engines=tuple(engines),
        heads=heads,
        values=tuple(_values(panel, bases)),
        toggles=tuple(_toggles(panel, engines)),
        notes=tuple(_notes(panel, engines, kinds)),
    )


def _values(panel: Panel, bases: Sequence[ArmRow]) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "output tok/s", _cells(bases, "output_tokens_per_s")
    yield "output tok/s per GPU", _cells(bases, "output_tokens_per_s_per_gpu")
    for metric, name in ((panel.ttft, "TTFT"), ("tpot_ms", "TPOT")):
        unit, factor = latency_unit(base.metrics.get(f"{metric}.p99") for base in bases)
        for statistic in ("p50", "p99"):
            cells = _cells(bases, f"{metric}.{statistic}", factor)
            yield f"{name} {statistic}, {unit}", cells
    yield from _optional(bases, "goodput_rps", "goodput req/s")
    yield from _optional(bases, "cost_per_million_output_tokens", "cost per million tokens")
    yield "client", tuple(base.certificate or ABSENT for base in bases)
    if any(base.status != "ok" for base in bases):
        yield "status", tuple(base.status.upper() for base in bases)


def _optional(
    bases: Sequence[ArmRow], metric: str, name: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    if any(base.metrics.get(metric) is not None for base in bases):
        yield name, _cells(bases, metric)


def _cells(bases: Sequence[ArmRow], metric: str, factor: float = 1.0) -> tuple[str, ...]:
    return tuple(_metric_cell(base, metric, factor) for base in bases)


def _metric_cell(base: ArmRow, metric: str, factor: float) -> str:
    value = base.metrics.get(metric)
    if value is None:
        return ABSENT
    unreliable = metric.endswith(".p99") and not base.p99_reliable
    return "~" * unreliable + significant(value * factor)


def _toggles(panel: Panel, engines: Sequence[str]) -> Iterator[tuple[str, tuple[Ratios, ...]]]:
    """Yield what each flip does on each engine, those that are named alike in one row."""
    by_name: dict[str, dict[str, ArmRow]] = {}
    for arm in panel.arms:
        if arm.arm not in (BASELINE, CONTROL):
            by_name.setdefault(arm.arm, {})[arm.label] = arm
    for arms in by_name.values():
        shown = next((arms[label] for label in engines if label in arms), None)
        if shown is not None:
            effect = next((one for arm in arms.values() if (one := _any(panel, arm))), None)
            of = f" ({effect.ratio_of})" if effect else ""
            flips = " + ".join(f"{n} {c.value}" for n, c in shown.flipped.items())
            yield (
                (flips or arm_title(shown)) + of,
                tuple(_ratios(panel, arms.get(label)) for label in engines),
            )


def _any(panel: Panel, arm: ArmRow) -> Effect | None:
    return panel.effect(arm, panel.primary[0])


def _ratios(panel: Panel, arm: ArmRow | None) -> Ratios:
    if arm is None:
        return Ratios(ratios=(), proof=ABSENT)
    if arm.status != "ok":
        return Ratios(ratios=(), proof=arm.status.upper())
    effects = [panel.effect(arm, metric) for metric in panel.primary]
    if not any(effects):
        return Ratios(ratios=(), proof="not compared")
    dragged = [name for flip in arm.flipped.values() for name in flip.implied]
    proof = _proof(panel.runs_of(arm))
    return Ratios(
        ratios=tuple(_ratio(effect) for effect in effects),
        proof=proof + (f"; drags {', '.join(dragged)}" if dragged else ""),
    )


def _ratio(effect: Effect | None) -> str:
    if effect is None:
        return ABSENT
    return ratio_text(effect.ratio) + VERDICT_MARKS.get(effect.verdict or "", "")


def _proof(runs: Sequence[RunRow]) -> str:
    """Return the least that is known of the flips of an arm, over its runs."""
    verdicts = {
        run.evidence[toggle].verdict
        for run in runs
        if run.status == "ok"
        for toggle in run.flipped
        if toggle in run.evidence
    }
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), "no proof")


def _notes(panel: Panel, engines: Sequence[str], kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield what keeps these engines from being compared as they stand."""
    if len({kinds.get(label) for label in engines}) > 1:
        named = ", ".join(f"{label} {kinds.get(label, 'not run')}" for label in engines)
        yield f"not of one kind ({named}): what was computed is no measurement; do not rank them"
    runs = [run for run in panel.runs if run.arm == BASELINE and run.status == "ok"]
    of = {label: [run for run in runs if run.label == label] for label in engines}
    of = {label: found for label, found in of.items() if found}
    yield from _unlike("seeds", of, lambda found: str(sorted({run.seed for run in found})))
    yield from _unlike_prompts(of)
    for toggle in dict.fromkeys(name for run in runs for name in run.toggles):
        yield from _unlike(f"baseline {toggle}", of, lambda found, t=toggle: _value(found[0], t))


def _value(run: RunRow, toggle: str) -> str:
    proof = run.evidence.get(toggle)
    return (proof and proof.effective) or run.toggles.get(toggle, ABSENT)


def _unlike(
    name: str, of: Mapping[str, Sequence[RunRow]], value: Callable[..., str]
) -> Iterator[str]:
    values = {label: value(found) for label, found in of.items()}
    if len(set(values.values())) > 1:
        named = ", ".join(f"{text} ({label})" for label, text in values.items())
        yield f"unlike: {name}: {named}"


def _unlike_prompts(of: Mapping[str, Sequence[RunRow]]) -> Iterator[str]:
    sizes = {label: prompt_tokens_each(found) for label, found in of.items()}
    known = {label: size for label, size in sizes.items() if size}
    if known and max(known.values()) > (1 + _UNLIKE) * min(known.values()):
        named = ", ".join(f"{size:,.0f} ({label})" for label, size in known.items())
        yield f"unlike: prompt tokens a request: {named}; these were not asked the same"
