"""What a reader must know beside the metrics: windows, counts, failures, warnings, faulty arms."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from harness.results.effects import CONTROL, VERDICT_BLOCKS
from harness.results.panels import (
    CONTROL_LIMIT,
    METRIC_NAMES,
    VERDICT_MARKS,
    Panel,
    arm_key,
    arm_title,
    labels,
    may_be_none,
    panels,
)
from harness.results.report.client_notes import client_notes
from harness.results.rows import CHECKED
from harness.results.statistics import needed_samples
from harness.results.summary import Effect, RunRow, Summary
from harness.results.units import ABSENT, count, ratio_text, span

IDENTICAL = "no verdict: all blocks are identical, since the workload draws nothing at random"
_NAMED = 4  # runs of one fate that are named one by one


def panel_notes(panel: Panel) -> list[str]:
    """Return the lines that belong under one panel's table, the shortest account that is true."""
    measured = [run for run in panel.runs if run.metrics]
    lines = [*_windows(measured), *_counts(measured), *_hits(panel), *_tails(panel, measured)]
    if panel.load.is_open_loop:
        lines.append("TTFT counts from when a request was due, so waiting to be sent is in it")
    if any(effect.others_flipped for effect in panel.effects):
        lines.append(
            "leave-one-out: the ratio of an arm that leaves one flip out is that of this flip, "
            "with all others flipped; only the arm with all flips is compared with the baseline"
        )
    return lines


def panel_faults(panel: Panel) -> list[str]:
    """Return what failed, was void or is invalid in one panel."""
    return [
        *faulty_arms(panel),
        *faulty_runs(panel),
        *failed_requests(panel),
        *client_notes(panel),
    ]


def _windows(runs: list[RunRow]) -> list[str]:
    kinds: dict[str, list[str | None]] = {}
    for window in (run.window for run in runs if run.window):
        kinds.setdefault(window.kind, []).append(window.reason)
    words = [
        kind.replace("-", " ")
        + (f" in {count(len(reasons), 'run')}" if len(kinds) > 1 else "")
        + (f" ({reasons[0]}{'; others alike' if len(set(reasons)) > 1 else ''})" * bool(reasons[0]))
        for kind, reasons in kinds.items()
    ]
    return ["window: " + "; ".join(words)] if words else []


def _counts(runs: list[RunRow]) -> list[str]:
    counts = [run.counts for run in runs if run.counts]
    if not counts:
        return []
    measured, sent, failed = (
        span(getattr(one, name) for one in counts) for name in ("measured", "sent", "failed")
    )
    return [f"requests a run: n = {measured} measured, {sent} sent, {failed} failed"]


def failed_requests(panel: Panel) -> list[str]:
    """Return how many requests failed, by kind, and one sample of each kind."""
    kinds: Counter[str] = Counter()
    samples: dict[str, str] = {}
    for run in panel.runs:
        kinds.update(run.metrics.failures if run.metrics else {})
        samples = {**run.failure_samples, **samples}
    if not kinds:
        return []
    line = "failed requests: " + ", ".join(f"{kind} {n:,}" for kind, n in sorted(kinds.items()))
    return [line, *(f"{kind}, such as: {sample}" for kind, sample in sorted(samples.items()))]


def _hits(panel: Panel) -> list[str]:
    """Return how much of the prompts came from the prefix cache, beside what could have."""
    ceilings = [arm.metrics.get("prefix_hit_ceiling") for arm in panel.arms]
    rates: dict[str, list[str]] = {}
    for arm in panel.arms:
        if (rate := arm.metrics.get("prefix_hit_rate")) is not None:
            rates.setdefault(f"{100 * rate:.1f} %", []).append(arm_title(arm))
    ceiling = max((one for one in ceilings if one is not None), default=None)
    if ceiling is None or not rates:
        return []
    most = max(rates, key=lambda rate: len(rates[rate]))
    others = [f"{rate} ({', '.join(arms)})" for rate, arms in rates.items() if rate != most]
    found = "; ".join([f"{most} of prompt tokens ({_who(rates[most])})", *others])
    return [f"prefix hits: {found}; a cache without limit would find {100 * ceiling:.1f} %"]


def _who(arms: list[str]) -> str:
    return ", ".join(arms) if len(arms) <= 2 else f"{len(arms)} arms"


def _tails(panel: Panel, runs: list[RunRow]) -> list[str]:
    tail = f"{panel.ttft}.p99"
    if all(arm.metrics.get(tail) is None or arm.p99_reliable for arm in panel.arms):
        return []
    latencies = [getattr(run.metrics, panel.ttft) for run in runs]
    missing = max((one.p99_needs for one in latencies if one), default=0)
    more = f": each run needs {missing:,} more" if missing else ""
    return [f"~ P99 of fewer than {needed_samples(0.99)} requests, unreliable{more}"]


def faulty_arms(panel: Panel) -> list[str]:
    """Return a line for each arm that takes no part in the comparison, with its reason."""
    several = len({arm.label for arm in panel.arms}) > 1
    return [
        f"{arm.status.upper()} {(arm.label + ' ') * several}{arm_title(arm)}: "
        f"{arm.reason or 'no reason was given'}"
        for arm in panel.arms
        if arm.status not in ("ok", "invalid")  # what makes one invalid is told of its client
    ]


def faulty_runs(panel: Panel) -> list[str]:
    """Return the runs that are out although other blocks of their arm are in, by reason."""
    fine = {arm_key(arm): arm for arm in panel.arms if arm.status == "ok"}
    out: dict[str, list[str]] = {}
    for run in panel.runs:
        if run.status not in ("ok", "invalid") and arm_key(run) in fine:
            why = f"{run.status}, left out: {run.reason or 'no reason was given'}"
            named = f"{arm_title(fine[arm_key(run)])}, block {run.block}"
            out.setdefault(why, []).append(named)
    return [
        f"{why} ({'; '.join(named) if len(named) <= _NAMED else count(len(named), 'run')})"
        for why, named in out.items()
    ]


def gathered_warnings(summary: Summary, most: int) -> list[tuple[str, str, str, str]]:
    """Return the warnings as (name, message, remedy, how many runs have it).

    Of one check at most `most` different messages; the last of them counts the runs of all others.
    """
    found: dict[str, Counter[tuple[str, str]]] = {}
    for run in summary.runs:
        for warning in run.warnings:
            message = warning.message, warning.remedy
            found.setdefault(warning.name, Counter())[message] += 1
    return [one for name, counter in found.items() for one in _shortened(name, counter, most)]


def _shortened(
    name: str, messages: Counter[tuple[str, str]], most: int
) -> list[tuple[str, str, str, str]]:
    """Return the messages that most runs have; the last one counts the runs of those left out."""
    ranked = messages.most_common()
    kept = [(name, *texts, count(runs, "run")) for texts, runs in ranked[:most]]
    if len(ranked) > most:
        runs = sum(runs for _, runs in ranked[most - 1 :])
        kept[-1] = (*kept[-1][:3], f"{count(runs, 'run')}, numbers differ")
    return kept


def are_identical(summary: Summary) -> bool:
    """Return whether all blocks repeat one result, as on virtual time where nothing is drawn."""
    most = max((effect.n_blocks for effect in summary.effects), default=0)
    return most == 1 < len({run.block for run in summary.runs if run.status == "ok"})


def verdict_note(summary: Summary) -> str:
    """Return what the effects of this summary may and may not be taken for."""
    blocks = sorted({effect.n_blocks for effect in summary.effects})
    if not blocks:
        return "nothing to compare: no arm ran beside its baseline"
    if are_identical(summary):
        return IDENTICAL
    if blocks[-1] < VERDICT_BLOCKS:
        return (
            f"{count(blocks[-1], 'block')}: ratios without a verdict; "
            f"{VERDICT_BLOCKS} blocks are needed to say BETTER or WORSE"
        )
    return (
        f"{span(blocks)} blocks: 95 % intervals of paired block ratios, Holm over the toggles; "
        f"no difference means inside ±{100 * summary.margin:.0f} %"
    )


def ratio_note(summary: Summary) -> str:
    """Return how to read the ratios, which differ in what stands above the line."""
    text = (
        "ratio of A/B: the figure of A over that of B, so below 1 A has less. A switch is always "
        "on/off: where a flip turns it off, the baseline is A. Any other toggle, and several "
        "at once, is value/base: the arm is A"
    )
    if any(effect.verdict for effect in summary.effects):
        marks = ", ".join(f"{mark} {verdict.lower()}" for verdict, mark in VERDICT_MARKS.items())
        text += f". {marks}: A against B"
    if any(may_be_none(effect) for effect in summary.effects):
        text += ". ~ before a ratio: its 95 % interval over the blocks holds 1, so it may be none"
    return text


def control_note(summary: Summary) -> str | None:
    """Return what the baseline against itself (A/A) says; None when it was not run."""
    ratios = [
        effect.ratio
        for effect in summary.effects
        if effect.arm == CONTROL and effect.ratio is not None
    ]
    if not ratios:
        return None
    low, high = ratio_text(min(ratios)), ratio_text(max(ratios))
    return "A/A: the baseline run again came to × " + (low if low == high else f"{low} to {high}")


def control_alarms(summary: Summary) -> list[str]:
    """Return a line for each panel and engine whose control differs by more than 10 %."""
    return [
        f"UNRELIABLE RATIOS: {label}, {panel.title}: the baseline run again differs from the "
        f"baseline by more than {CONTROL_LIMIT:.0%} ({_ratios(effects)}), so the "
        "ratios beside it may come from the machine; measure again on a quiet machine, with "
        f"{VERDICT_BLOCKS} blocks or more"
        for panel in panels(summary)
        for label, effects in panel.control_off.items()
    ]


def _ratios(effects: list[Effect]) -> str:
    return ", ".join(f"{METRIC_NAMES[one.metric]} × {ratio_text(one.ratio)}" for one in effects)


def assumptions(summary: Summary, panel: Panel | None) -> list[str]:
    """Return what was assumed of a panel's own arms; without a panel, what holds for all arms.

    An assumption on one value of a toggle begins with it, such as "eagle: each draft token …".
    With them stands how far off they are known to be.
    """
    arms = summary.arms if panel is None else panel.arms
    kinds = {change.value.partition("(")[0] for arm in arms for change in arm.flipped.values()}
    return [
        text if text.startswith(CHECKED) else f"assumed: {text.removeprefix('assumed ')}"
        for text in summary.assumptions
        if (text.partition(":")[0] in kinds) == (panel is not None)
    ]


def simulated_notes(summary: Summary) -> list[str]:
    """Return what stands in for a measurement, a line a kind; nothing if all was measured."""
    kinds = {run.engine_kind for run in summary.runs if run.engine_kind}
    lines = []
    if summary.simulated:
        line = "SIMULATED: times were computed from a model of the hardware; no GPU ran"
        names = _of_kind(summary, "simulated")
        other = f"SIMULATED: the times of {names} were computed from a model; the rest was measured"
        lines.append(line if kinds <= {"simulated"} else other)
    if summary.stand_in:
        names = _of_kind(summary, "stand-in")
        lines.append(f"STAND-IN: {names} is a program that speaks like the engine; no time is its")
    return lines


def _of_kind(summary: Summary, kind: str) -> str:
    return ", ".join(sorted({r.label for r in summary.runs if r.engine_kind == kind}))


def engines(summary: Summary) -> dict[str, str]:
    """Return label → "vllm 0.32.0 (real)", with the label before it where that says more."""
    named = dict.fromkeys(labels(summary), "")
    for run in summary.runs:
        prefix = "" if run.label == run.engine else f"{run.label}: "
        version = (run.engine_version or "").removeprefix(f"{run.engine}-")
        kind = f"({run.engine_kind})" if run.engine_kind else ""
        text = " ".join(part for part in (f"{prefix}{run.engine}", version, kind) if part)
        named[run.label] = max(named[run.label], text, key=len)  # one that never ran knows less
    return named


class EvidenceRow(NamedTuple):
    """What became of one value of a toggle on one engine, in words."""

    toggle: str
    label: str
    requested: str
    effective: str
    observed: str  # the range over the runs
    verdict: str
    runs: int


def evidence(summary: Summary) -> list[EvidenceRow]:
    """Return what became of each requested value; runs that differ in `observed` share a row."""
    groups: dict[tuple[str, str, str, str | None, str], list[float | None]] = {}
    for run in summary.runs:
        for toggle, proof in run.evidence.items():
            key = toggle, run.label, proof.requested, proof.effective, proof.verdict
            groups.setdefault(key, []).append(proof.observed)
    rows = [
        EvidenceRow(
            toggle=toggle,
            label=label,
            requested=requested,
            effective=ABSENT if effective is None else effective,
            observed=span(value for value in observed if value is not None),
            verdict=verdict,
            runs=len(observed),
        )
        for (toggle, label, requested, effective, verdict), observed in groups.items()
    ]
    return sorted(rows, key=lambda row: (row.toggle, row.label, row.requested))


def unreported_settings(summary: Summary) -> list[str]:
    """Return a line for each engine that does not report some of its base settings."""
    silent: dict[str, dict[str, None]] = {}
    for run in summary.runs:
        for name, proof in run.evidence.items():
            if proof.effective is None and name not in run.toggles:
                silent.setdefault(run.label, {})[name] = None
    return [
        f"unverifiable, since {label} does not report it: {', '.join(names)}"
        for label, names in silent.items()
    ]


def skipped_rows(summary: Summary) -> list[tuple[str, str, int]]:
    """Return (workload, reason, rows) of what a trace held and no run asked."""
    found: dict[tuple[str, str], int] = {}
    for run in summary.runs:
        for reason, rows in run.skipped_rows.items():
            key = run.workload, reason
            found[key] = max(found.get(key, 0), rows)
    return [(workload, reason, rows) for (workload, reason), rows in found.items() if rows]
