"""Engines in containers: the line that starts one, and that nothing is left of it, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from repository import ROOT, STAND_INS
from stand_in import gone_within, processes_with, settings
from stand_in_docker import ask
from trtllm_settings import PATIENCE
from trtllm_settings import settings as trtllm_settings

from harness.adapters.base import EngineError, EngineSettings, ToggleValue
from harness.adapters.endpoint import EngineAdapter
from harness.adapters.process.containers import image_version
from harness.adapters.process.launch import Launched
from harness.adapters.process.programs import MissingProgramError
from harness.adapters.runtime import Runtime
from harness.adapters.sglang.adapter import SglangAdapter
from harness.adapters.tensorrt_llm.adapter import TensorRtLlmAdapter
from harness.adapters.vllm.adapter import VllmAdapter

SECRET = "hf_thisisnotforeveryone"  # noqa: S105  of nobody
VLLM = "vllm/vllm-openai:v0.32.0"
TRTLLM = "nvcr.io/nvidia/tensorrt-llm/release:1.1.0"
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a docker on PATH, and yield its daemon's socket; no container outlives the test."""
    script, door = STAND_INS / "stand_in_docker.py", tmp_path / "docker.sock"
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "{door}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    daemon = subprocess.Popen([sys.executable, str(script), "daemon", str(door)])
    while not door.exists():
        time.sleep(0.01)
    yield door
    for name in ask(str(door), {"do": "ps"}):
        ask(str(door), {"do": "rm", "name": name})
    daemon.kill()
    daemon.wait()


def containers(door: Path) -> list[str]:
    names: list[str] = ask(str(door), {"do": "ps"})
    return names


def in_image(image: str, asked: EngineSettings | None = None, **env: str) -> EngineSettings:
    return replace(asked or settings(), gpu="h200", runtime=Runtime(docker=image), env=env)


@pytest.mark.parametrize(
    ("adapter", "image", "ending"),
    [
        (VllmAdapter(), VLLM, ["--entrypoint", "vllm", VLLM, "serve"]),
        (
            SglangAdapter(),
            "lmsysorg/sglang:v0.5.23-cu129",
            ["lmsysorg/sglang:v0.5.23-cu129", "python3", "-m", "sglang.launch_server"],
        ),
        (TensorRtLlmAdapter(), TRTLLM, [TRTLLM, "trtllm-serve", "serve"]),
    ],
)
def test_the_plan_shows_the_line(
    docker: Path, adapter: EngineAdapter, image: str, ending: list[str]
) -> None:
    """The engine's words follow its image, GPUs and folders stand before; no secret does."""
    asked = in_image(image, HF_TOKEN=SECRET)

    line = adapter.launch_line(asked)

    assert line[0].endswith("/bin/docker")
    assert line[1:5] == ["run", "--rm", "--init", "--pull"]
    where = line.index(image) - ending.index(image)
    assert line[where : where + len(ending)] == ending
    assert line[line.index("--gpus") + 1] == "all"
    assert line[line.index("--host") + 1] == "127.0.0.1"
    assert "HF_TOKEN" in line
    assert SECRET not in " ".join(line)
    assert line == adapter.launch_line(asked)  # or the run would have another key each time
    assert adapter.version_of(asked) in ("0.32.0", "0.5.23", "1.1.0")


def test_an_engine_in_a_container_is_started_asked_and_removed(docker: Path) -> None:
    """It gets the adapter's variables, is known by the words that started it, and is gone after."""
    asked = in_image(VLLM, HF_TOKEN=SECRET)

    with VllmAdapter().start(asked) as endpoint:
        (name,) = containers(docker)
        endpoint.reset()
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_with(asked.model)]
        facts = endpoint.facts()

    assert name in facts["command"]
    assert facts["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert len(lines) >= 2  # the client and the engine
    assert not [line for line in lines if SECRET.encode() in line]
    assert SECRET not in str(facts)
    assert containers(docker) == []
    assert gone_within(asked.model, 5.0)


def test_the_options_file_of_tensorrt_llm_is_readable_inside(docker: Path, tmp_path: Path) -> None:
    """It lies at the same path there, read-only."""
    asked = in_image(TRTLLM, trtllm_settings(), STAND_IN_FAULTS=PATIENCE)
    log = tmp_path / "logs" / "a.log"

    with TensorRtLlmAdapter().start(replace(asked, log_path=log)) as endpoint:
        command = endpoint.facts()["command"]

    options = log.with_suffix(".options.yaml")
    assert f"{options}:{options}:ro" in command
    assert containers(docker) == []


def test_an_engine_that_ignores_sigterm_is_removed(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is killed after the grace, which ends nothing; removing the container does."""
    monkeypatch.setattr("harness.adapters.process.server._RUNNING_GRACE_S", 0.3)
    asked = in_image(VLLM, STAND_IN_FAULTS="ignores-sigterm")

    with VllmAdapter().start(asked):
        assert len(containers(docker)) == 1

    assert containers(docker) == []
    assert gone_within(asked.model, 5.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_harness_leaves_no_container(docker: Path, number: signal.Signals) -> None:
    """The guard removes it."""
    asked = in_image(VLLM, STAND_IN_FAULTS="ignores-sigterm")
    code = (
        f"import sys, time; sys.path.insert(0, {str(STAND_INS)!r})\n"
        "from harness.adapters.base import *; from harness.adapters.runtime import Runtime\n"
        "from harness.adapters.vllm.adapter import VllmAdapter\n"
        f"asked = {asked!r}\n"
        "with VllmAdapter().start(asked): print('up', flush=True); time.sleep(60)\n"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    assert harness.stdout.readline() == "up\n"
    assert len(containers(docker)) == 1

    harness.send_signal(number)
    harness.wait()
    harness.stdout.close()

    assert gone_within(asked.model, 15.0)
    assert containers(docker) == []


def test_a_killed_guard_leaves_no_container(docker: Path) -> None:
    """Harness removes it in the guard's place."""
    with VllmAdapter().start(in_image(VLLM)) as endpoint:
        launched = endpoint._server.processes
        os.kill(launched._guard.pid, signal.SIGKILL)

    assert containers(docker) == []


def test_a_container_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    """With docker's reason, and what to type."""
    removal = ("sh", "-c", "echo the daemon is away >&2; exit 1")
    processes = Launched(["true"], os.environ, tmp_path / "log", tmp_path, removal)

    with pytest.raises(EngineError, match="cannot be removed: the daemon is away") as caught:
        processes.stop(0.0)

    assert "sh -c" in caught.value.__notes__[0]


def test_an_image_that_is_not_here_ends_the_start_at_once(docker: Path) -> None:
    """Docker's own words are in the error."""
    asked = replace(in_image(VLLM), start_timeout_s=20.0)
    (docker.parent / "bin" / "docker").write_text(
        '#!/bin/sh\n[ "$1" = rm ] && exit 0\necho "No such image: vllm" >&2; exit 125\n'
    )

    with pytest.raises(EngineError) as caught, VllmAdapter().start(asked):
        pass

    assert "No such image" in "\n".join([str(caught.value), *caught.value.__notes__])


def test_without_docker_the_version_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is refused; a plan, which needs no docker, shows the line all the same."""
    monkeypatch.setenv("PATH", "/nowhere")
    asked = in_image(VLLM)

    with pytest.raises(MissingProgramError, match="no program docker on PATH"):
        VllmAdapter().version_of(asked)

    elsewhere = replace(asked, runtime=Runtime(docker=VLLM, here=False))
    assert VllmAdapter().launch_line(elsewhere)[:2] == ["docker", "run"]


@pytest.mark.parametrize(
    ("model", "options"), [("~/m", ()), ("./m", ()), ("m", (("draft", "../d"),))]
)
def test_a_path_that_a_container_does_not_know_is_refused(
    docker: Path, model: str, options: tuple[tuple[str, str], ...]
) -> None:
    """Relative to what, and whose home?"""
    speculative = ToggleValue("draft", options) if options else ToggleValue("off")
    asked = replace(in_image(VLLM, settings(speculative=speculative)), model=model)

    with pytest.raises(EngineError, match="a container does not know"):
        VllmAdapter().launch_line(asked)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32.0"),
        ("lmsysorg/sglang:v0.5.23.post1-cu129", "0.5.23.post1"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc3", "1.3.0rc3"),
        ("host:5000/vllm", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai@sha256:0123", None),
        ("vllm/vllm-openai", None),
    ],
)
def test_a_version_is_read_from_the_tag(image: str, version: str | None) -> None:
    """A tag that says none gives none; a port is no tag."""
    assert image_version(image) == version
