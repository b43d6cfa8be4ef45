"""A server that somebody else started: in a sweep, and with a key that goes nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import harness
from keyed_server import MODEL, keyed_server
from raw_server import raw_server

from harness.adapters import ENGINES
from harness.adapters.attached.server import attach
from harness.adapters.base import EngineError
from harness.adapters.endpoint import EngineAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import SpecError, load_sweep
from tests.harness.experiment.test_probe import strict
from tests.harness.experiment.test_sweep import Quiet

KEY = "sk-thisisnotforeveryone"
SWEEP = """
name: theirs
model: llama-3-8b
hardware: {{gpu: h100-80gb, count: 2}}
base: {{max_model_len: 2048}}
engines:
  - {{engine: url, label: prod, url: "{url}", model: their-model{more}}}
toggles: [prefix_caching, {{tensor_parallel: [2, 1]}}]
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 4}}
load: [{{concurrency: 2, requests: 8}}]
blocks: 1
max_failed_share: 0.5
"""


def sweep_file(folder: Path, url: str, more: str = "") -> Path:
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.format(url=url, more=more), encoding="utf-8")
    return path


def plan_of(path: Path) -> Plan:
    adapters: dict[str, EngineAdapter] = {name: kind() for name, kind in ENGINES.items()}
    return make_plan(load_sweep(path, engines=tuple(adapters)), adapters)


def in_a_process(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "harness.cli", *words],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )


def files_with(folder: Path, word: str) -> list[Path]:
    """Return the files below a folder that hold `word`, packed columns included."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if word.encode() in path.read_bytes()]


def test_only_the_baseline_runs_on_a_server_that_is_not_ours(tmp_path: Path) -> None:
    """Each toggle's arm is skipped with the reason; the baseline comes twice, of other texts."""
    plan = plan_of(sweep_file(tmp_path, "http://127.0.0.1:1"))

    reasons = {arm.name: arm.reason for arm in plan.arms}
    seeds = {run.arm.name: run.seed for run in plan.planned}
    assert {name for name, reason in reasons.items() if reason is None} == set(seeds)
    assert set(seeds) == {"baseline", "baseline-again"}
    skipped = [reason for reason in reasons.values() if reason is not None]
    assert len(skipped) == 2
    assert all("cannot be flipped here" in reason for reason in skipped)
    assert seeds["baseline"] != seeds["baseline-again"]
    assert {arm.gpus for arm in plan.arms} == {2}
    assert plan.arms[0].launch_line == ("attach", "http://127.0.0.1:1", "their-model")


def test_a_sweep_loads_it_and_keeps_the_key_to_itself(tmp_path: Path) -> None:
    """No file, no print and no process shows the key, though the server quotes it in its errors."""
    with keyed_server(KEY, fails_each=7) as (url, asked):
        path = sweep_file(tmp_path, url, ", api_key_env: THEIR_KEY")
        done = in_a_process("run", str(path), "--out", "out", cwd=tmp_path, THEIR_KEY=KEY)

    runs = list(read_runs(tmp_path / "out"))
    statuses = {run.manifest.arm: run.manifest.status for run in runs}
    assert statuses == {"baseline": "ok", "baseline-again": "ok"}, done.stderr
    for run in runs:
        assert {one["verdict"] for one in run.manifest.model_dump()["evidence"].values()} == {
            "unverifiable"
        }
        assert run.manifest.model == MODEL
    errors = [error for run in runs for error in run.records.columns["error"].dropna()]
    assert [error for error in errors if "(not shown)" in error]
    assert not any("reset" in line or "shutdown" in line for line in asked)
    assert KEY not in done.stdout + done.stderr
    assert files_with(tmp_path / "out", KEY) == []
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_sweep_leaves_out_what_a_server_refuses(tmp_path: Path) -> None:
    """One field that it does not know would fail every request; the manifest says what is missing.

    What it counted of the prompts stands there too.
    """
    knows_no_seed = strict(lambda asked: "seed" in asked)
    with raw_server(knows_no_seed) as server:
        path = sweep_file(tmp_path, server.url)
        path.write_text(path.read_text(encoding="utf-8").replace("their-model", "m"))
        plan = plan_of(path)
        SweepRunner(plan, {name: kind() for name, kind in ENGINES.items()}, tmp_path / "out").run(
            Quiet()
        )

    runs = list(read_runs(tmp_path / "out"))
    assert {run.manifest.status for run in runs} == {"ok"}
    for run in runs:
        assert any("refuses seed" in note for note in run.manifest.notes)
        assert run.manifest.model_dump()["prompts"]["requests"] == 8


def test_load_sends_the_key_and_keeps_it_to_itself(tmp_path: Path) -> None:
    """Also with several processes: it is on no command line."""
    words = ["--model", MODEL, "--requests", "40", "--output-tokens", "4", "--workers", "2"]
    with keyed_server(KEY, fails_each=9) as (url, asked):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.cli", "load", url, *words, "--concurrency", "2",
             "--out", str(tmp_path / "out"), "--json", "--api-key-env"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": KEY},
        )  # fmt: skip
        seen = []
        while process.poll() is None:
            seen += [line for line in command_lines() if KEY.encode() in line]
            time.sleep(0.02)
        assert process.stdout is not None
        told = process.stdout.read()
        process.stdout.close()

    assert seen == []
    assert sum(line.startswith("POST") for line in asked) >= 40
    assert "(not shown)" in told
    assert KEY not in told
    assert files_with(tmp_path / "out", KEY) == []


def command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (None, "", "answers 401: no such key:\\nif it needs an API key"),
        (
            "THEIR_KEY",
            "wrong",
            r"answers 401: no such key: \(not shown\)\nit may not take the key in THEIR_KEY",
        ),
        ("THEIR_KEY", "", "the variable THEIR_KEY is not set"),
        ("THEIR_KEY", "a\nb", "holds signs that no API key has"),
    ],
)
def test_a_key_that_does_not_fit_is_told_at_once(
    variable: str | None, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of its variable, never by itself."""
    monkeypatch.setenv("THEIR_KEY", value)
    with keyed_server(KEY) as (url, _), pytest.raises(EngineError, match=message) as caught:
        attach(url, MODEL, api_key_env=variable)

    if value:
        assert value not in str(caught.value)


def test_the_usual_variable_is_not_read_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key for one server is not sent to another that happens to be loaded."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with keyed_server(None) as (url, _):
        assert attach(url, MODEL).transport.headers == {}
        assert KEY in str(attach(url, MODEL, api_key_env="OPENAI_API_KEY").transport.headers)


def test_a_request_longer_than_the_server_takes_is_found_before_the_first(tmp_path: Path) -> None:
    """All runs fail with that reason, not with a wall of refused requests."""
    with keyed_server(None) as (url, asked):
        path = sweep_file(tmp_path, url)
        path.write_text(path.read_text().replace("2048", "8192"))
        done = harness("run", str(path), "--out", str(tmp_path / "out"))

    assert done.returncode == 1
    reasons = {run.manifest.reason for run in read_runs(tmp_path / "out")}
    assert any("more than the 4096 tokens" in str(reason) for reason in reasons)
    assert not any(line.startswith("POST") for line in asked)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{engine: url}", "the key 'url' is missing"),
        ('{engine: url, url: "http://a", env: {A: "1"}}', "leave out env"),
        ('{engine: url, url: "http://a", runtime: {venv: a}}', "leave out runtime"),
        ("{engine: vllm, api_key_env: A}", "vllm is started here; leave out api_key_env"),
        ('{engine: url, url: "http://a", api_key_env: "sk-a"}', "api_key_env"),
        ("{engine: vllm, runtime: {docker: a, venv: b}}", "found venv and docker"),
        ('{engine: vllm, runtime: {docker: "--privileged"}}', "engines[0].runtime.docker"),
        ('{engine: vllm, runtime: {version: "../../x"}}', "engines[0].runtime.version"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    """With the key that is wrong."""
    path = sweep_file(tmp_path, "http://a")
    lines = path.read_text().splitlines()
    text = "\n".join(f"  - {entry}" if line.startswith("  - {engine") else line for line in lines)
    path.write_text(text)

    with pytest.raises(SpecError) as caught:
        load_sweep(path, engines=tuple(ENGINES))

    assert message in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_the_key_of_a_sweep_may_be_the_usual_one(tmp_path: Path) -> None:
    """`api_key_env: on` names it."""
    spec = load_sweep(sweep_file(tmp_path, "http://a", ", api_key_env: on"), engines=tuple(ENGINES))

    assert spec.engines[0].api_key_env == "OPENAI_API_KEY"
    assert spec.engines[0].start_timeout_s == 30.0


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("trusted", [False, True])
def test_code_of_a_model_runs_only_where_the_author_says_so(
    tmp_path: Path, engine: str, trusted: bool
) -> None:
    """The flag of each engine is there then, and only then."""
    path = sweep_file(tmp_path, "http://a")
    text = path.read_text().replace(
        '{engine: url, label: prod, url: "http://a", model: their-model}',
        f'{{engine: {engine}, runtime: {{docker: "image:1.1.0"}}}}',
    )
    if trusted:
        text = text.replace("2048", "2048, trust_remote_code: true")
    path.write_text(text)

    line = " ".join(plan_of(path).arms[0].launch_line).replace("_", "-")

    assert ("--trust-remote-code" in line) == trusted


def test_the_plan_of_it_is_one_document(tmp_path: Path) -> None:
    """`harness plan --json` with a server that is not there: nothing is asked yet."""
    done = harness("plan", str(sweep_file(tmp_path, "http://127.0.0.1:1")), "--json")

    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0
    assert any("the harness did not start this server" in note for note in document["notes"])
