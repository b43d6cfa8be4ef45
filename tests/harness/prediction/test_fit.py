"""Tests of the fit: it finds the costs of simulated runs, and its profile predicts other runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_runs import late_client

from harness.adapters import ENGINES
from harness.adapters.base import EngineError, UnsupportedToggleError
from harness.adapters.embedded.adapter import EmbeddedAdapter, step_profile
from harness.adapters.embedded.step_time.fitted import (
    FittedStepTime,
    StepCosts,
    StepProfile,
    profile_text,
    read_profile,
)
from harness.cli import main
from harness.commands import fit as fit_command
from harness.experiment.prediction import predict
from harness.experiment.request_sets import RequestSets
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.prediction.fit import HeldOutMetric, fitted_costs, held_out_metrics, measured_run
from harness.prediction.observations import Equations
from harness.results.analysis import summarize
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import SpecError, load_sweep
from tests.harness.experiment.test_sweep import Quiet

Once = tuple[Plan, Path]
COSTS = StepCosts(
    step_s=4e-3,
    sequence_s=0.5e-3,
    context_token_s=1e-6,
    prompt_s=2e-3,
    prompt_token_s=60e-6,
    request_s=3e-3,
)
PROFILE = StepProfile(
    engine="vllm",
    engine_version="0.32.0",
    model="my-model",
    gpu="cpu",
    gpu_count=1,
    costs=COSTS,
    kv_tokens=40_000,
    block_tokens=16,
    fixed={"cuda_graphs": "on", "quantization": "none"},
    runs=12,
    errors={"ttft_ms.p50": 0.08, "tpot_ms.p50": 0.02},
)
SWEEP = """
name: fitted
model: my-model
hardware: {{gpu: cpu, count: 1}}
base: {{max_model_len: 2048, max_num_seqs: 16, max_batched_tokens: 512}}
engines: [{{engine: embedded, profile: {profile}}}]
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, name: bot, prefix_tokens: 640, suffix_tokens: 64, output_tokens: 48}}
  - {{kind: multi-turn, name: chat, turns: 3, first_tokens: 300, turn_tokens: 40,
     output_tokens: 32}}
load: [{{concurrency: 1, requests: 12}}, {{concurrency: 8, requests: 48}}]
blocks: 1
"""


def sweep_file(folder: Path, **changes: str) -> Path:
    (folder / "vllm.profile.json").write_text(profile_text(PROFILE), encoding="utf-8")
    text = SWEEP.format(profile="vllm.profile.json")
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def played(folder: Path) -> tuple[Plan, Path]:
    """Run a sweep with known costs, and return it with its folder."""
    engines = {name: kind() for name, kind in ENGINES.items()}
    plan = make_plan(load_sweep(sweep_file(folder), engines=tuple(engines)), engines)
    SweepRunner(plan, engines, folder / "out").run(Quiet())
    return plan, folder / "out"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A sweep with known costs and its folder, run once for all tests."""
    folder = tmp_path_factory.mktemp("fitted")
    plan, _ = played(folder)
    return plan, folder


def copied(once: Once, folder: Path) -> tuple[Plan, Path]:
    """Return the sweep with a copy of its folder, which may be changed."""
    plan, original = once
    shutil.copytree(original, folder, dirs_exist_ok=True)
    return plan, folder / "out"


def test_the_fit_finds_the_costs_of_simulated_runs(once: Once, tmp_path: Path) -> None:
    """The fitted costs also predict held-out loads, workloads and arms."""
    plan, out = copied(once, tmp_path)
    by_key = {run.key: run for run in plan.planned}
    seen = [measured_run(by_key[run.manifest.key], run) for run in read_runs(out)]

    costs = fitted_costs([run.equations for run in seen])
    unseen = held_out_metrics(
        seen, PROFILE, lambda run, outcome: predict(run, RequestSets(), outcome)
    )

    timer, known = FittedStepTime(costs), FittedStepTime(COSTS)
    for sequences, context in ((1, 700), (8, 6000)):
        ours, theirs = (
            fixed + slope * context
            for fixed, slope in (one.decode_line(sequences) for one in (timer, known))
        )
        assert ours == pytest.approx(theirs, rel=0.1)
    assert costs.prompt_token_s == pytest.approx(COSTS.prompt_token_s, rel=0.35)
    assert len(unseen) == 3 * len(seen)
    errors = sorted(abs(one.error) for one in unseen)
    assert errors[len(errors) // 2] < 0.06
    assert errors[-1] < 0.3


def test_the_command_fits_runs_of_a_real_engine(
    once: Once,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The profile that it writes can be named in a sweep file; it is never overwritten.

    That is found before anything is fitted.
    """
    _, out = copied(once, tmp_path)
    for path in out.glob("*/manifest.json"):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**manifest, "engine_kind": "real"}), encoding="utf-8")
    words = ["fit", str(out), "--sweep", str(tmp_path / "sweep.yaml")]
    found: list[list[HeldOutMetric]] = []

    def once_only(*given: Any) -> list[HeldOutMetric]:
        """Return what the first fit found: the second is of the same runs, and prints it anew."""
        found.append(found[0] if found else held_out_metrics(*given))
        return found[-1]

    monkeypatch.setattr(fit_command, "held_out_metrics", once_only)

    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "median error on unseen runs: output tok/s" in printed
    assert max(map(len, printed.splitlines())) <= 100 + len(str(out))
    profile = read_profile(out / "embedded.profile.json")
    assert profile.runs == 12
    assert set(profile.errors) == {"output_tokens_per_s", "ttft_ms.p50", "tpot_ms.p50"}
    assert main(words) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert len(found) == 1
    assert main([*words, "--out", str(tmp_path / "other.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["kv_tokens"] == 40_000


def test_simulated_runs_are_nothing_to_fit_to(
    once: Once, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fitting to simulated runs is an error, because the result would look exact."""
    _, out = copied(once, tmp_path)

    assert main(["fit", str(out), "--sweep", str(tmp_path / "sweep.yaml")]) == 2
    assert "no run of a real engine" in capsys.readouterr().err


def test_invalid_runs_are_left_out(
    once: Once,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs with a late client and failed runs are left out, with a note."""
    _, out = copied(once, tmp_path)
    paths = sorted(out.glob("*/manifest.json"))
    for number, path in enumerate(paths):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        late = {"client": late_client(400.0)} if number == 0 else {}
        status = {"status": "failed", "reason": "lost"} if number == 1 else {}
        changed = {**manifest, "engine_kind": "real", **late, **status}
        path.write_text(json.dumps(changed), encoding="utf-8")
    monkeypatch.setattr(
        fit_command, "held_out_metrics", lambda *_: []
    )  # the slow part, and not the point

    assert main(["fit", str(out), "--sweep", str(tmp_path / "sweep.yaml")]) == 0
    printed = capsys.readouterr().out
    assert f"fitted to {len(paths) - 2} runs" in printed
    assert "INVALID: the client's event loop" in " ".join(printed.split())
    assert "FAILED: lost" in printed


def test_too_few_requests_are_an_error() -> None:
    """A fit to a few time spans raises an error."""
    few = Equations(np.ones((3, 6)), np.ones(3))

    with pytest.raises(EngineError, match="too few answered requests to fit"):
        fitted_costs([few])


def test_a_stall_of_the_machine_does_not_change_the_costs(once: Once, tmp_path: Path) -> None:
    """A few time spans that are ten times as long change no cost."""
    plan, out = copied(once, tmp_path)
    by_key = {run.key: run for run in plan.planned}
    parts = [measured_run(by_key[run.manifest.key], run).equations for run in read_runs(out)]
    clean = fitted_costs(parts)
    for part in parts:
        part.seconds[::15] *= 10

    stalled = fitted_costs(parts)

    assert stalled.step_s == pytest.approx(clean.step_s, rel=0.15)


def test_a_profile_simulates_its_machine(once: Once, tmp_path: Path) -> None:
    """A single request takes the time of its costs, and the report names their source."""
    _, out = copied(once, tmp_path)

    summary = summarize(out).document()

    [alone] = [
        one
        for one in summary["runs"]
        if one["load"]["value"] == 1 and one["workload"] == "bot" and one["arm"] == "baseline"
    ]
    tpot_ms = 1e3 * (COSTS.step_s + COSTS.sequence_s + COSTS.context_token_s * (704 + 24))
    assert alone["metrics"]["tpot_ms"]["p50"] == pytest.approx(tpot_ms, rel=0.02)
    assert any("fitted to 12 runs of vllm 0.32.0" in text for text in summary["assumptions"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu: cpu", "gpu: h200", "the step profile is for my-model on 1 × cpu"),
        ("model: my-model", "model: another", "the step profile is for my-model on 1 × cpu"),
        ("vllm.profile.json", "missing.json", "there is no file missing.json"),
        ("vllm.profile.json", "sweep.yaml", "cannot be read"),
        ("engine: embedded", "engine: sglang", "the profile is one of vllm, not of sglang"),
    ],
)
def test_a_profile_of_something_else_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """A profile of another model or machine is an error before anything starts."""
    path = sweep_file(tmp_path, **{old: new})
    engines = {name: kind() for name, kind in ENGINES.items()}

    with pytest.raises((SpecError, EngineError), match=message):
        make_plan(load_sweep(path, engines=tuple(engines)), engines)


def test_toggles_that_change_step_times_cannot_be_flipped(tmp_path: Path) -> None:
    """A profile has one value of each toggle that changes step times."""
    engines = {"embedded": EmbeddedAdapter()}
    path = sweep_file(tmp_path, **{"[prefix_caching]": "[cuda_graphs]"})
    plan = make_plan(load_sweep(path, engines=tuple(engines)), engines)

    [off] = [arm for arm in plan.arms if arm.name == "cuda_graphs=off"]
    assert off.reason is not None
    assert "not in the step profile" in off.reason
    with pytest.raises(UnsupportedToggleError):
        step_profile(off.settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("costs", {"step_s": -1}, "costs.step_s: expected seconds of at least 0, got -1"),
        ("kv_tokens", 0, "kv_tokens: expected a whole number of at least 1, got 0"),
        ("fixed", [], "fixed: expected an object"),
        ("format", 7, "is not a step profile of format 1"),
    ],
)
def test_an_invalid_profile_is_an_error(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    """The error names the field, its value and the expected value."""
    path = tmp_path / "odd.json"
    facts = json.loads(profile_text(PROFILE))
    path.write_text(json.dumps({**facts, name: value}), encoding="utf-8")

    with pytest.raises(ValueError, match=message):
        read_profile(path)


def test_a_profile_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Every field is equal after writing and reading."""
    path = tmp_path / "profile.json"
    path.write_text(profile_text(PROFILE), encoding="utf-8")

    assert read_profile(path) == PROFILE
