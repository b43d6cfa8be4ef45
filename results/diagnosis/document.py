"""The diagnosis of a whole sweep: run by run, and gathered for each workload at each load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.results.analysis import summarize
from harness.results.diagnosis.limits import LIMITS
from harness.results.diagnosis.run import diagnose_run
from harness.results.panels import Panel, arm_key, arm_title, panels
from harness.results.store import finite, read_runs

Row = dict[str, Any]
SCHEMA_VERSION = 1
_OWN = ("key", "engine", "label", "arm", "block", "workload", "load", "status", "reason")
_FROM_SUMMARY = ("name", "model", "hardware", "simulated", "stand_in")
# What has requests that were asked as planned; of an invalid run it is the client that is named.
_DIAGNOSED = ("ok", "invalid", "interrupted")


def diagnosis(directory: Path) -> Row:
    """Return what `harness diagnose --json` prints. Reads the store only. Raises `StoreError`."""
    summary = summarize(directory)
    kept = {row["key"] for row in summary["runs"] if row["status"] in _DIAGNOSED and row["metrics"]}
    found = {
        stored.manifest["key"]: diagnose_run(stored)
        for stored in read_runs(directory)
        if stored.manifest["key"] in kept
    }
    runs = [_run(row, found.get(row["key"])) for row in summary["runs"]]
    document = {
        "schema_version": SCHEMA_VERSION,
        **{name: summary[name] for name in _FROM_SUMMARY},
        "limits": [_limit(limit) for limit in LIMITS],
        "panels": [_panel(panel, found) for panel in panels(summary)],
        "runs": runs,
    }
    whole: Row = finite(document)
    return whole


def _limit(limit: Any) -> Row:
    names = ("name", "title", "measures", "unit", "above", "reason")
    return {name: getattr(limit, name) for name in names}


def _run(row: Mapping[str, Any], found: Row | None) -> Row:
    nothing: Row = {"bottleneck": None, "findings": [], "measured": {}, "unjudged": {}}
    return {**{name: row[name] for name in _OWN}, **(found or nothing), "judged": found is not None}


def _panel(panel: Panel, found: Mapping[str, Row]) -> Row:
    """Return what the arms of one workload at one load have in common.

    A finding is an arm's when at least half of its judged runs have it; its evidence is that of the
    first arm that it is the bottleneck of, the baseline if that is one.
    """
    arms = [_arm(panel, arm, found) for arm in panel.arms]
    judged = [arm for arm in arms if arm["runs"]]
    return {
        "workload": panel.workload,
        "load": panel.load,
        "title": panel.title,
        "findings": [
            _gathered(limit.name, with_it)
            for limit in LIMITS
            if (with_it := [arm for arm in judged if limit.name in arm["names"]])
        ],
        "clear_arms": [arm["title"] for arm in judged if not arm["names"]],
        "not_judged_arms": [arm["title"] for arm in arms if not arm["runs"]],
    }


def _arm(panel: Panel, arm: Mapping[str, Any], found: Mapping[str, Row]) -> Row:
    runs = [found[run["key"]] for run in panel.runs_of(arm) if run["key"] in found]
    several = len({key for key, _ in (arm_key(one) for one in panel.arms)}) > 1
    title = f"{arm['label']}: {arm_title(arm)}" if several else arm_title(arm)
    names = [limit.name for limit in LIMITS if _in_half(limit.name, runs)]
    return {"title": title, "runs": runs, "names": names}


def _in_half(name: str, runs: Sequence[Row]) -> bool:
    having = sum(any(one["name"] == name for one in run["findings"]) for run in runs)
    return bool(runs) and 2 * having >= len(runs)


def _gathered(name: str, arms: Sequence[Row]) -> Row:
    first = [arm for arm in arms if arm["names"][0] == name]
    shown = (first or list(arms))[0]
    finding = next(one for run in shown["runs"] for one in run["findings"] if one["name"] == name)
    return {
        **finding,
        "evidence_of": shown["title"],
        "bottleneck_of": [arm["title"] for arm in first],
        "also_in": [arm["title"] for arm in arms if arm not in first],
    }
