"""The summary of a sweep: the one document that tables, plots and report are made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.results.client import WORST_FIRST
from harness.results.effects import BASELINE, CONTROL, MARGIN, effects
from harness.results.names import SCALARS, flatten, metric_names, primary_metrics
from harness.results.predictions import predicted_mean
from harness.results.rows import analysed_run, planned_run
from harness.results.statistics import geometric_mean
from harness.results.store import StoredSweep, read_runs, read_sweep, write_json, write_text
from harness.results.summary import (
    SCHEMA_VERSION,
    AnalysedRun,
    ArmRow,
    RunRow,
    RunWarning,
    Summary,
    Values,
)
from harness.results.warnings import NAME as UNLIKE
from harness.results.warnings import cache_notes, find_unlike_runs, other_versions, same_settings

SUMMARY_FILE, CSV_FILE = "summary.json", "summary.csv"
_EXACT = "virtual time: the baseline run again is exactly 1 by construction, and an interval \
shows the spread of the drawn requests only, not the noise of a machine"
_NONE_STANDS = "no run is ok: the figures shown are of runs that may not be believed"


class Analysis(NamedTuple):
    """The results of a sweep for reading, and each request's latencies for drawing."""

    summary: Summary
    requests: dict[str, pd.DataFrame]  # run key → one row a request: latencies, `measured`, `ok`


def summarize(directory: Path) -> Summary:
    """Return the summary of the sweep in `directory`, of the stored runs if it was cut short.

    Reads the store only. Raises `StoreError`.
    """
    return analyse(directory).summary


def write_summary(directory: Path) -> Analysis:
    """Write `summary.json` and `summary.csv` into the sweep's folder and return the analysis."""
    analysis = analyse(directory)
    write_analysis(analysis, directory)
    return analysis


def write_analysis(analysis: Analysis, directory: Path) -> None:
    """Write `summary.json` and `summary.csv` into `directory`. Raises `StoreError`."""
    write_json(directory / SUMMARY_FILE, analysis.summary.document())
    table = csv_table(analysis.summary).to_csv(index=False, lineterminator="\n")
    write_text(directory / CSV_FILE, table)


def analyse(directory: Path) -> Analysis:
    """Return the summary and the latencies of the sweep in `directory`. Raises `StoreError`."""
    sweep = read_sweep(directory)
    stored = {run.manifest.key: analysed_run(run) for run in read_runs(directory)}
    runs = _compared(_in_planned_order(stored, sweep))
    requests = {run.row.key: run.requests for run in runs if run.requests is not None}
    return Analysis(_summary(sweep, runs), requests)


def _summary(sweep: StoredSweep, runs: Sequence[AnalysedRun]) -> Summary:
    by_arm, rows = _in_arm_order(runs, sweep), tuple(run.row for run in runs)
    arms = _arms(by_arm)
    same = [run for run in by_arm if all(one.name != UNLIKE for one in run.row.warnings)]
    found, withheld = effects(same, sweep.design)
    run_notes = _each_once(row.notes for row in rows)
    return Summary(
        schema_version=SCHEMA_VERSION,
        name=sweep.name,
        created=sweep.created,
        model=sweep.model,
        hardware=sweep.hardware,
        seed=sweep.seed,
        file=sweep.file,
        harness_version=sweep.harness_version,
        slo=sweep.slo,
        price_per_gpu_hour=sweep.price_per_gpu_hour,
        cache=sweep.cache,
        history=sweep.history,
        simulated=any(row.engine_kind == "simulated" for row in rows),
        stand_in=any(row.engine_kind == "stand-in" for row in rows),
        margin=MARGIN,
        assumptions=_each_once(run.assumptions for run in runs),
        notes=_each_once([cache_notes(sweep), run_notes, _notes(runs), _gpus(arms), withheld]),
        runs=rows,
        arms=arms,
        effects=tuple(found),
    )


def csv_table(summary: Summary) -> pd.DataFrame:
    """Return one row a run, a column for each metric; an absent value is an empty cell."""
    return pd.DataFrame([_csv_row(run) for run in summary.runs])


def _csv_row(run: RunRow) -> dict[str, Any]:
    own = ("key", "engine", "label", "engine_version", "engine_kind", "arm", "block", "workload")
    window, counts = ("kind", "start_s", "end_s"), ("sent", "measured", "ok", "failed")
    return {
        **{name: getattr(run, name) for name in own},
        **{f"load.{name}": getattr(run.load, name) for name in ("mode", "value", "requests")},
        "gpus": run.gpus,
        "status": run.status,
        "reason": run.reason,
        "certificate": run.certificate.verdict,
        "warnings": " ".join(warning.name for warning in run.warnings),
        **{f"window.{name}": getattr(run.window, name, None) for name in window},
        **{f"counts.{name}": getattr(run.counts, name, None) for name in counts},
        **(dict(flatten(run.metrics)) if run.metrics else dict.fromkeys(metric_names())),
    }


def _in_planned_order(stored: Mapping[str, AnalysedRun], sweep: StoredSweep) -> list[AnalysedRun]:
    """Return all runs as they were planned; a planned run that is not stored has no metrics."""
    runs = [stored.get(plan.key) or planned_run(plan) for plan in sweep.planned]
    keys = {plan.key for plan in sweep.planned}
    return runs + [run for key, run in stored.items() if key not in keys]


def _in_arm_order(runs: Sequence[AnalysedRun], sweep: StoredSweep) -> list[AnalysedRun]:
    """Return the runs by arm, the baseline and its control first, then as the sweep names them.

    The plan shuffles the order of server starts; a reader wants the order of the sweep file.
    """
    arms = [BASELINE, CONTROL, *sweep.arms, *(run.row.arm for run in runs)]
    places = {arm: place for place, arm in reversed(list(enumerate(arms)))}
    return sorted(runs, key=lambda run: places[run.row.arm])


def _compared(runs: Sequence[AnalysedRun]) -> list[AnalysedRun]:
    """Return the runs with the warnings that only a comparison with other runs gives.

    That two arms ran the same settings, got other requests, or other versions of the engine.
    """
    cells: defaultdict[object, list[RunRow]] = defaultdict(list)
    labels: defaultdict[str, list[RunRow]] = defaultdict(list)
    for run in runs:
        row = run.row
        cells[row.engine, row.label, row.workload, row.load, row.block].append(row)
        labels[row.label].append(row)
    found: defaultdict[str, list[RunWarning]] = defaultdict(list)
    for check, groups in (
        (same_settings, cells.values()),
        (find_unlike_runs, cells.values()),
        (other_versions, labels.values()),
    ):
        for group in groups:
            for key, warning in check(group).items():
                found[key].append(warning)
    return [
        replace(run, row=replace(run.row, warnings=(*run.row.warnings, *found[run.row.key])))
        for run in runs
    ]


def _arms(runs: Sequence[AnalysedRun]) -> tuple[ArmRow, ...]:
    groups: defaultdict[object, list[AnalysedRun]] = defaultdict(list)
    for run in runs:
        row = run.row
        groups[row.engine, row.label, row.workload, row.load, row.arm].append(run)
    return tuple(_arm(group) for group in groups.values())


def _arm(runs: Sequence[AnalysedRun]) -> ArmRow:
    good = [run for run in runs if run.row.status == "ok"]
    shown = (good or runs)[0].row
    measured = good or [run for run in runs if _ended_early(run.row)]
    predictions = [run.row.prediction for run in measured if run.row.prediction]
    return ArmRow(
        engine=shown.engine,
        label=shown.label,
        arm=shown.arm,
        workload=shown.workload,
        load=shown.load,
        n_blocks=len(good),
        status=shown.status,
        reason=shown.reason,
        certificate=_worst_certificate(good or runs),
        gpus=shown.gpus,
        flipped=shown.flipped,
        metrics={
            name: _over_blocks(name, [run.metrics.get(name) for run in measured])
            for name in metric_names()
        },
        predicted=_predicted(measured),
        roof=next((one.roof for one in predictions if one.roof), None),
        p99_reliable=bool(measured) and all(_p99_reliable(run.row) for run in measured),
    )


def _predicted(runs: Sequence[AnalysedRun]) -> Values | None:
    """Return the primary metrics as predicted, over the blocks; None where nothing is."""
    metrics = primary_metrics(runs[0].row.load) if runs else ()
    found = {metric: predicted_mean(runs, metric) for metric in metrics}
    return found if any(found.values()) else None


def _worst_certificate(runs: Sequence[AnalysedRun]) -> str | None:
    """Return the worst verdict on the clients of these runs; None where none was certified."""
    verdicts = {run.row.certificate.verdict for run in runs}
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), None)


def _over_blocks(name: str, values: Iterable[float | None]) -> float | None:
    """Return the mean over the blocks that have the metric, None when none has.

    Geometric, since blocks are compared by ratios; for counts and shares, which may be 0 in one
    block, arithmetic. `n` is summed.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None
    if name.endswith(".n"):
        return sum(present)
    if name in SCALARS and SCALARS[name].unit in ("share", "count"):
        return float(np.mean(present))
    return geometric_mean(present)


def _p99_reliable(run: RunRow) -> bool:
    ttft = run.metrics and run.metrics.ttft_ms
    return bool(ttft and ttft.p99_reliable)


def _notes(runs: Sequence[AnalysedRun]) -> list[str]:
    rows = [run.row for run in runs]
    notes = [_EXACT] if any(run.clock == "virtual" for run in runs) else []
    cut = sum(row.status == "interrupted" and not _ended_early(row) for row in rows)
    if cut:
        planned = sum(row.status != "skipped" for row in rows)
        notes.append(f"the sweep is not complete: {planned - cut} of {planned} runs are there")
    if not any(row.status == "ok" or _ended_early(row) for row in rows):
        shown = any(row.counts and row.counts.ok for row in rows)
        notes.append(_NONE_STANDS if shown else "nothing could be measured: no run is ok")
    return notes


def _ended_early(row: RunRow) -> bool:
    """Return whether a run was interrupted and has the metrics of what had ended by then."""
    return row.status == "interrupted" and row.metrics is not None


def _gpus(arms: Sequence[ArmRow]) -> list[str]:
    """Return a note for each arm that uses other hardware than its baseline."""
    base = {arm.label: arm.gpus for arm in arms if arm.arm == BASELINE}
    return [
        f"{arm.arm} uses {arm.gpus} GPUs, its baseline {base[arm.label]}: "
        "compare output_tokens_per_s_per_gpu as well"
        for arm in arms
        if arm.gpus and base.get(arm.label) and arm.gpus != base[arm.label]
    ]


def _each_once(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for texts in lists for text in texts))
