"""Small sweeps of the embedded engine, and settings to check one arm alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES
from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.endpoint import EngineAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import PlannedArm, PlannedRun
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import load_sweep


class _Quiet:
    """Wants to know nothing."""

    def starting(self, arm: PlannedArm) -> None: ...
    def started(self, run: PlannedRun, requests: int) -> None: ...
    def requests_done(self, requests: int) -> None: ...
    def ended(self, run: PlannedRun, status: str) -> None: ...


def settings_of(**toggles: ToggleValue) -> EngineSettings:
    """Return settings of Llama-3-8B on one A100 with these toggles."""
    one = {"tensor_parallel": ToggleValue("1")}
    return EngineSettings(
        model="llama-3-8b",
        gpu="a100-80gb",
        gpu_count=1,
        max_model_len=4096,
        toggles={**BASELINE, **one, **toggles},
    )


def swept(folder: Path, text: str) -> Mapping[str, Mapping[str, Any]]:
    """Run a sweep of one block; return arm → manifest."""
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    adapters: dict[str, EngineAdapter] = {name: kind() for name, kind in ENGINES.items()}
    plan = make_plan(load_sweep(path, engines=adapters), adapters)
    SweepRunner(plan, adapters, folder / "out").run(_Quiet())
    return {run.manifest.arm: run.manifest.model_dump() for run in read_runs(folder / "out")}
