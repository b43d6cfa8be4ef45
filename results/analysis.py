"""What follows from a sweep: the one document that tables, plots and report are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.results.client import WORST_FIRST
from harness.results.effects import BASELINE, CONTROL, MARGIN, effects
from harness.results.names import SCALARS, flatten, primary_metrics
from harness.results.predictions import predicted_mean
from harness.results.rows import Row, check, planned_row, public, stored_row
from harness.results.statistics import geometric_mean
from harness.results.store import finite, read_runs, read_sweep, write_json, write_text
from harness.results.warnings import NAME as UNLIKE
from harness.results.warnings import cache_notes, other_versions, same_settings, unlike_runs

SCHEMA_VERSION = 1
_FROM_SWEEP = ("file", "harness_version", "slo", "price_per_gpu_hour", "cache", "history")
SUMMARY_FILE, CSV_FILE = "summary.json", "summary.csv"
_ALIKE = "virtual time: the baseline run again is exactly 1 by construction, and an interval \
shows the spread of the drawn requests only, not the noise of a machine"
_NONE_STANDS = "no run is ok: the figures shown are of runs that may not be believed"


class Analysis(NamedTuple):
    """What a sweep came to: figures for reading, and each request's latencies for drawing."""

    summary: dict[str, Any]  # as in `summary.json`
    requests: dict[str, pd.DataFrame]  # run key → one row a request: latencies, `measured`, `ok`


def summarize(directory: Path) -> dict[str, Any]:
    """Return the summary of the sweep in `directory`, of what is there if it was cut short.

    Reads the store only. Raises `StoreError`.
    """
    return analyse(directory).summary


def write_summary(directory: Path) -> Analysis:
    """Write `summary.json` and `summary.csv` into the sweep's folder and return the analysis."""
    analysis = analyse(directory)
    write_json(directory / SUMMARY_FILE, analysis.summary)
    table = csv_table(analysis.summary).to_csv(index=False, lineterminator="\n")
    write_text(directory / CSV_FILE, table)
    return analysis


def analyse(directory: Path) -> Analysis:
    """Return the summary and the latencies of the sweep in `directory`. Raises `StoreError`."""
    sweep = read_sweep(directory)
    stored = {run.manifest["key"]: stored_row(run) for run in read_runs(directory)}
    rows = _in_planned_order(stored, sweep["planned"])
    _doubt_same_settings(rows)
    _doubt_other_versions(rows)
    requests = {row["key"]: row["requests"] for row in rows if row["requests"] is not None}
    return Analysis(finite(_summary(sweep, rows)), requests)


def _summary(sweep: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    by_arm = _in_arm_order(rows, sweep)
    arms = _arms(by_arm)
    alike = [row for row in by_arm if all(one["name"] != UNLIKE for one in row["checks"])]
    found, withheld = effects(alike, sweep.get("design"))
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: sweep[name] for name in ("name", "created", "model", "hardware", "seed")},
        **{name: sweep.get(name) for name in _FROM_SWEEP},
        "simulated": any(row["engine_kind"] == "simulated" for row in rows),
        "stand_in": any(row["engine_kind"] == "stand-in" for row in rows),
        "margin": MARGIN,
        "assumptions": _each_once(row["assumptions"] for row in rows),
        "notes": _each_once(
            [
                cache_notes(sweep),
                *(row["notes"] for row in rows),
                _notes(rows),
                _gpus(arms),
                withheld,
            ]
        ),
        "runs": [public(row) for row in rows],
        "arms": arms,
        "effects": found,
    }


def csv_table(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a run, a column for each metric; an absent value is an empty cell."""
    return pd.DataFrame([_csv_row(run) for run in summary["runs"]])


def _csv_row(run: Row) -> Row:
    own = ("key", "engine", "label", "engine_version", "engine_kind", "arm", "block", "workload")
    load = {f"load.{name}": run["load"].get(name) for name in ("mode", "value", "requests")}
    window, counts = run["window"] or {}, run["counts"] or {}
    return {
        **{name: run[name] for name in own},
        **load,
        "gpus": run["gpus"],
        "status": run["status"],
        "reason": run["reason"],
        "certificate": run["certificate"]["verdict"],
        "checks": " ".join(check["name"] for check in run["checks"]),
        **{f"window.{name}": window.get(name) for name in ("kind", "start_s", "end_s")},
        **{f"counts.{name}": counts.get(name) for name in ("sent", "measured", "ok", "failed")},
        **dict(flatten(run["metrics"] or {})),
    }


def _in_planned_order(stored: Mapping[str, Row], planned: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return all rows as they were planned; a planned run that is not stored has no figures."""
    rows = [stored.get(plan["key"]) or planned_row(plan) for plan in planned]
    keys = {plan["key"] for plan in planned}
    return rows + [row for key, row in stored.items() if key not in keys]


def _in_arm_order(rows: Sequence[Row], sweep: Mapping[str, Any]) -> list[Row]:
    """Return the rows by arm, the baseline and its control first, then as the sweep names them.

    The plan shuffles the order of server starts; a reader wants the order of the sweep file.
    """
    arms = [BASELINE, CONTROL, *(sweep.get("arms") or ()), *(row["arm"] for row in rows)]
    places = {arm: place for place, arm in reversed(list(enumerate(arms)))}
    return sorted(rows, key=lambda row: places[row["arm"]])


def _doubt_same_settings(rows: Sequence[Row]) -> None:
    """Add a check to runs whose engine says that two arms are one, or that were asked otherwise."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        place = [row["engine"], row["label"], row["workload"], row["load"], row["block"]]
        groups.setdefault(json.dumps(place, sort_keys=True), []).append(row)
    for group in groups.values():
        found = same_settings(group)
        unlike = unlike_runs(group)
        for row in group:
            doubts = (told[row["key"]] for told in (found, unlike) if row["key"] in told)
            row["checks"] += [check(doubt) for doubt in doubts]


def _doubt_other_versions(rows: Sequence[Row]) -> None:
    """Add a check to runs of an engine that was not the same in all of them."""
    for label in {row["label"] for row in rows}:
        group = [row for row in rows if row["label"] == label]
        found = other_versions(group)
        for row in group:
            row["checks"] += [check(found[row["key"]])] if row["key"] in found else []


def _arms(rows: Sequence[Row]) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        place = [row["engine"], row["label"], row["workload"], row["load"], row["arm"]]
        groups.setdefault(json.dumps(place, sort_keys=True), []).append(row)
    return [_arm(group) for group in groups.values()]


def _arm(runs: Sequence[Row]) -> Row:
    good = [run for run in runs if run["status"] == "ok"]
    shown = (good or runs)[0]
    measured = good or [run for run in runs if _ended_early(run)]
    return {
        **{name: shown[name] for name in ("engine", "label", "arm", "workload", "load")},
        "n_blocks": len(good),
        "status": shown["status"],
        "reason": shown["reason"],
        "certificate": _worst_certificate(good or runs),
        "gpus": shown["gpus"],
        "flipped": shown["flipped"],
        "metrics": {
            name: _over_blocks(name, [run["values"].get(name) for run in measured])
            for name, _ in flatten({})
        },
        "predicted": _predicted(measured),
        "roof": next((found for run in measured if (found := _roof(run))), None),
        "p99_reliable": bool(measured) and all(_p99_reliable(run["metrics"]) for run in measured),
    }


def _predicted(runs: Sequence[Row]) -> dict[str, float | None] | None:
    """Return the primary metrics as predicted, over the blocks; None where nothing is."""
    metrics = primary_metrics(runs[0]["load"]) if runs else ()
    found = {metric: predicted_mean(runs, metric) for metric in metrics}
    return found if any(found.values()) else None


def _roof(run: Row) -> dict[str, Any] | None:
    roof: dict[str, Any] | None = (run.get("prediction") or {}).get("roof")
    return roof


def _worst_certificate(runs: Sequence[Row]) -> str | None:
    """Return the worst verdict on the clients of these runs; None where none was certified."""
    verdicts = {run["certificate"]["verdict"] for run in runs}
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


def _p99_reliable(metrics: Mapping[str, Any] | None) -> bool:
    return bool(((metrics or {}).get("ttft_ms") or {}).get("p99_reliable"))


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = [_ALIKE] if any(row["clock"] == "virtual" for row in rows) else []
    cut = sum(row["status"] == "interrupted" and not _ended_early(row) for row in rows)
    if cut:
        planned = sum(row["status"] != "skipped" for row in rows)
        notes.append(f"the sweep is not complete: {planned - cut} of {planned} runs are there")
    if not any(row["status"] == "ok" or _ended_early(row) for row in rows):
        shown = any((row["counts"] or {}).get("ok") for row in rows)
        notes.append(_NONE_STANDS if shown else "nothing could be measured: no run is ok")
    return notes


def _ended_early(row: Row) -> bool:
    """Return whether a run was interrupted and has the figures of what had ended by then."""
    return row["status"] == "interrupted" and row["metrics"] is not None


def _gpus(arms: Sequence[Row]) -> list[str]:
    """Return what a reader must know of arms that use other hardware than their baseline."""
    base = {arm["label"]: arm["gpus"] for arm in arms if arm["arm"] == BASELINE}
    return [
        f"{arm['arm']} uses {arm['gpus']} GPUs, its baseline {base[arm['label']]}: "
        "compare output_tokens_per_s_per_gpu as well"
        for arm in arms
        if arm["gpus"] and base.get(arm["label"]) and arm["gpus"] != base[arm["label"]]
    ]


def _each_once(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(text for texts in lists for text in texts))
