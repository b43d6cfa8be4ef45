"""A sweep whose engine freezes or dies in a run: the run fails, the next has a new engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from stand_in import SCRIPT, processes_with

from harness.adapters.process import server
from harness.adapters.vllm.adapter import VllmAdapter
from harness.experiment.sweep import SweepRunner
from harness.load import server_watch
from harness.load.server_watch import Patience
from harness.plan.make import make_plan
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import load_sweep
from tests.harness.experiment.test_sweep import Quiet

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

SWEEP = """
name: stand-in
model: {model}
hardware: {{gpu: h200, count: 1}}
engines:
  - engine: vllm
    runtime: {{command: ["{python}", "{script}", "{fault}"]}}
    start_timeout: 60 s
base: {{max_model_len: 2048, max_num_seqs: 8}}
workloads:
  - {{kind: shared-prefix, prefix_tokens: 65, suffix_tokens: 40, output_tokens: 12}}
load: [{{concurrency: 2, requests: 300}}, {{concurrency: 4, requests: 300}}]
blocks: 1
"""


class Starts(Quiet):
    """Counts the starts of engines."""

    count = 0

    def starting(self, arm: object) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("freezes-at=60", "/health did not answer within 0.3 s"),
        ("freezes-at=110", "the server is frozen"),
        ("crashes-at=90", "vllm ended in mid-run, with exit code 139"),
    ],
)
def test_a_run_fails_with_its_engine_and_the_next_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    """What was answered is stored; nothing of the frozen engine is left."""
    patience = Patience(unanswered_s=0.5, silent_s=1.0, health_s=0.3)
    monkeypatch.setattr(server_watch, "PATIENCE", patience)
    monkeypatch.setattr(server, "_RUNNING_GRACE_S", 0.2)
    path, model = tmp_path / "sweep.yaml", f"model-{tmp_path.name}-{os.getpid()}"
    text = SWEEP.format(model=model, python=sys.executable, script=SCRIPT, fault=fault)
    path.write_text(text, encoding="utf-8")
    engines, starts = {"vllm": VllmAdapter()}, Starts()
    plan = make_plan(load_sweep(path, engines=engines), engines)

    assert SweepRunner(plan, engines, tmp_path / "out").run(starts) is False

    runs = [run.manifest for run in read_runs(tmp_path / "out")]
    assert {run.status for run in runs} == {"failed"}
    assert all(reason in (run.reason or "") for run in runs)
    assert starts.count == len(runs) >= 2
    assert not processes_with(model)
