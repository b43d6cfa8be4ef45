"""The diagnosis of a sweep: for each run, and summarized for each workload and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.results.analysis import summarize
from harness.results.diagnosis.limits import LIMITS, BottleneckLimit
from harness.results.diagnosis.run import Finding, RunDiagnosis, diagnose_run
from harness.results.panels import Panel, arm_key, arm_title, panels
from harness.results.store import LoadFacts, finite, read_runs
from harness.results.summary import ArmRow, RunRow, Summary

SCHEMA_VERSION = 1
_OWN = ("key", "engine", "label", "arm", "block", "workload", "load", "status", "reason")
# Runs that sent the planned requests. In an invalid run the client is the first finding.
_DIAGNOSED = ("ok", "invalid", "interrupted")
_NOTHING = RunDiagnosis(measured={}, unjudged={})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFinding:
    """A finding that several arms of one panel share, with the evidence of one of them."""

    finding: Finding
    evidence_of: str  # the arm that supplies the evidence
    bottleneck_of: tuple[str, ...]  # arms that have it as their first finding
    also_in: tuple[str, ...]  # arms that have it as a later finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelDiagnosis:
    """The findings of all arms of one workload at one load."""

    workload: str
    load: LoadFacts
    title: str
    findings: tuple[SharedFinding, ...]
    clear_arms: tuple[str, ...]
    not_judged_arms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of every run and every panel of a sweep."""

    summary: Summary
    panels: tuple[PanelDiagnosis, ...]
    found: Mapping[str, RunDiagnosis]  # run key → diagnosis; runs without an entry were not judged

    def document(self) -> dict[str, Any]:
        """Return the document that `harness diagnose --json` prints."""
        summary = self.summary
        document = {
            "schema_version": SCHEMA_VERSION,
            "name": summary.name,
            "model": summary.model,
            "hardware": summary.hardware.model_dump(),
            "simulated": summary.simulated,
            "stand_in": summary.stand_in,
            "limits": [asdict(limit) for limit in LIMITS],
            "panels": [_panel_document(panel) for panel in self.panels],
            "runs": [self._run_document(row) for row in summary.runs],
        }
        whole: dict[str, Any] = finite(document)
        return whole

    def _run_document(self, row: RunRow) -> dict[str, Any]:
        own = {name: getattr(row, name) for name in _OWN}
        found = asdict(self.found.get(row.key, _NOTHING))
        return {**own, "load": row.load.model_dump(), **found, "judged": row.key in self.found}


def _panel_document(panel: PanelDiagnosis) -> dict[str, Any]:
    findings = [{**one.pop("finding"), **one} for one in asdict(panel)["findings"]]
    return {**asdict(panel), "load": panel.load.model_dump(), "findings": findings}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    title: str
    runs: list[RunDiagnosis]
    names: list[str]  # findings that at least half of its judged runs have


def diagnosis(directory: Path) -> Diagnosis:
    """Diagnose the runs of a stored sweep without writing to it; raise `StoreError`."""
    summary = summarize(directory)
    kept = {row.key for row in summary.runs if row.status in _DIAGNOSED and row.metrics}
    found = {
        stored.manifest.key: diagnose_run(stored)
        for stored in read_runs(directory)
        if stored.manifest.key in kept
    }
    return Diagnosis(
        summary=summary,
        panels=tuple(_panel(panel, found) for panel in panels(summary)),
        found=found,
    )


def _panel(panel: Panel, found: Mapping[str, RunDiagnosis]) -> PanelDiagnosis:
    """Return the findings of one panel.

    An arm has a finding when at least half of its judged runs have it. The evidence comes from the
    first arm whose bottleneck it is; the baseline is first in that order.
    """
    arms = [_arm(panel, arm, found) for arm in panel.arms]
    judged = [arm for arm in arms if arm.runs]
    return PanelDiagnosis(
        workload=panel.workload,
        load=panel.load,
        title=panel.title,
        findings=tuple(
            _shared(limit, with_it)
            for limit in LIMITS
            if (with_it := [arm for arm in judged if limit.name in arm.names])
        ),
        clear_arms=tuple(arm.title for arm in judged if not arm.names),
        not_judged_arms=tuple(arm.title for arm in arms if not arm.runs),
    )


def _arm(panel: Panel, arm: ArmRow, found: Mapping[str, RunDiagnosis]) -> _Arm:
    runs = [found[run.key] for run in panel.runs_of(arm) if run.key in found]
    several = len({key for key, _ in (arm_key(one) for one in panel.arms)}) > 1
    title = f"{arm.label}: {arm_title(arm)}" if several else arm_title(arm)
    names = [limit.name for limit in LIMITS if _in_half(limit.name, runs)]
    return _Arm(title=title, runs=runs, names=names)


def _in_half(name: str, runs: Sequence[RunDiagnosis]) -> bool:
    having = sum(any(one.name == name for one in run.findings) for run in runs)
    return bool(runs) and 2 * having >= len(runs)


def _shared(limit: BottleneckLimit, arms: Sequence[_Arm]) -> SharedFinding:
    first = [arm for arm in arms if arm.names[0] == limit.name]
    shown = (first or list(arms))[0]
    return SharedFinding(
        finding=next(one for run in shown.runs for one in run.findings if one.name == limit.name),
        evidence_of=shown.title,
        bottleneck_of=tuple(arm.title for arm in first),
        also_in=tuple(arm.title for arm in arms if arm not in first),
    )
