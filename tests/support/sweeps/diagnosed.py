"""Small sweeps on the embedded engine, played on virtual time, and what their diagnosis says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import PlannedArm, PlannedRun
from harness.results.diagnosis.document import diagnosis
from harness.sweep_file import load_sweep

SWEEP = """\
name: small
model: {model}
hardware: {hardware}
engines: [embedded]
base: {base}
{toggles}
workloads:
  - {workload}
load:
  - {load}
blocks: 1
"""
USUAL = {
    "model": "llama-3-8b",
    "hardware": "{gpu: a100-40gb, count: 1}",
    "base": "{max_model_len: 8192}",
    "toggles": "",
    "workload": "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 100, "
    "output_tokens: 100}",
    "load": "{concurrency: 1, requests: 6}",
}


class Quiet:
    """Wants to know nothing."""

    def starting(self, arm: PlannedArm) -> None:
        assert arm.reason is None

    def started(self, run: PlannedRun, requests: int) -> None:
        assert requests > 0

    def requests_done(self, requests: int) -> None:
        pass

    def ended(self, run: PlannedRun, status: str) -> None:
        assert status == "ok"


def play(folder: Path, **sections: str) -> Path:
    """Play a sweep of one workload at one load, and return its folder.

    Without the second baseline, which on virtual time is the first.
    """
    file = folder / "sweep.yaml"
    if "toggles" in sections:
        sections["toggles"] = f"toggles: {sections['toggles']}"
    file.write_text(SWEEP.format(**{**USUAL, **sections}), encoding="utf-8")
    adapters = {name: kind() for name, kind in ENGINES.items()}
    plan = make_plan(load_sweep(file), adapters)
    once = tuple(run for run in plan.runs if run.arm.name != "baseline-again")
    SweepRunner(replace(plan, runs=once), adapters, folder / "runs").run(Quiet())
    return folder / "runs"


def diagnosed(folder: Path, **sections: str) -> dict[str, dict[str, Any]]:
    """Return arm → what is found in its run."""
    document = diagnosis(play(folder, **sections)).document()
    return {run["arm"]: run for run in document["runs"]}


def names(run: dict[str, Any]) -> list[str]:
    """Return the findings of a run by their names, the bottleneck first."""
    return [finding["name"] for finding in run["findings"]]


def finding(run: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one finding of a run."""
    [one] = [found for found in run["findings"] if found["name"] == name]
    return dict(one)
