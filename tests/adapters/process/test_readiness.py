"""An engine is ready when it, and no other server, has generated a token for the right model."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in import SCRIPT, processes_with, settings

from harness.adapters.base import EngineError, EngineSettings
from harness.adapters.process import readiness, server
from harness.adapters.process.launch import Launched, free_port
from harness.adapters.process.readiness import listeners
from harness.adapters.vllm.adapter import VllmAdapter
from harness.adapters.vllm.flags import serve_words

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)


def start_error(asked: EngineSettings) -> str:
    """Return the error of a start that must fail, with its notes, once nothing is left of it."""
    with pytest.raises(EngineError) as caught, VllmAdapter().start(asked):
        pass
    assert not processes_with(asked.model)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@contextmanager
def decoy(port: int, *faults: str) -> Iterator[int]:
    """Yield the pid of another server of the same kind, which was there first."""
    other = settings()
    words = serve_words(other, port)
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), ",".join(faults) or "-", *words], stdout=subprocess.DEVNULL
    ) as process:
        while not listeners(port):
            time.sleep(0.01)
        yield process.pid
        process.kill()


def test_the_time_to_the_first_token_is_waited_for_and_told() -> None:
    """An engine that listens late is ready late; its start is no part of any measured time."""
    with VllmAdapter().start(settings("start=0.5")) as endpoint:
        assert 0.5 < endpoint.facts()["startup_s"] < 5
        assert endpoint.counters().output_tokens == 1


@pytest.mark.parametrize(
    ("fault", "missing"),
    [
        ("never-listens", "nothing listens on its port"),
        ("never-healthy", "/health answers 503"),
        ("never-generates", "asked for one token it answers 500: .*the engine is stuck"),
    ],
)
def test_an_engine_that_never_gets_ready_is_given_up(fault: str, missing: str) -> None:
    """The error says what was still missing, the end of the log, and what to change."""
    said = start_error(replace(settings(fault), start_timeout_s=0.7))

    assert said.startswith("vllm was not ready after 0.7 s: ")
    assert "its log ends: non-default args: model-" in said
    assert "raise start_timeout" in said
    assert re.search(missing, said)


def test_another_server_on_the_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoy that answers everything well is named, and not one request of a load reaches it."""
    port = free_port()
    monkeypatch.setattr(server, "free_port", lambda: port)

    with decoy(port) as pid:
        said = start_error(settings("start=5"))

    assert f"process {pid} (" in said
    assert f"listens on port {port}, not the engine that was started" in said


def test_a_stranger_that_comes_in_between_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the look and before the question: its word is not taken for the engine's."""
    port = free_port()
    real, looks = readiness.refuse_strangers, []
    monkeypatch.setattr(server, "free_port", lambda: port)

    def late(processes: Launched, url: str) -> None:
        looks.append(url)
        if len(looks) % 2 == 0:
            real(processes, url)

    monkeypatch.setattr(readiness, "refuse_strangers", late)

    with decoy(port, "serves=old-model") as pid:
        said = start_error(settings("start=5"))

    assert f"process {pid} (" in said
    assert len(looks) == 6  # each of three tries


def test_a_server_that_shares_the_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SO_REUSEPORT two servers listen on one port, and each gets some of the requests."""
    port = free_port()
    monkeypatch.setattr(server, "free_port", lambda: port)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()

        said = start_error(settings("start=5"))

    assert f"process {os.getpid()} (" in said


def test_another_model_is_refused() -> None:
    """The engine's own word on what it serves is held against what was asked."""
    said = start_error(settings("serves=old-model"))

    assert "serves old-model, not model-" in said


@pytest.mark.parametrize(
    ("death", "told"),
    [
        ("oom", "with exit code 1: out of memory\nits log says: torch.OutOfMemoryError: CUDA out"),
        ("model", "with exit code 1: model not found\nits log says: OSError: nowhere is not a"),
        ("worker", "with exit code 1: worker died\nits log says: Worker proc VllmWorker-0 died"),
        ("nothing", "with exit code 1\nits log says: INFO: thinking"),
    ],
)
def test_an_engine_that_dies_while_starting_says_why(death: str, told: str, tmp_path: Path) -> None:
    """Exit code, kind and the line of the log that matters, at once and not at the time limit."""
    asked = replace(settings(f"dies-of={death}"), log_path=tmp_path / "deep" / "engine.log")

    said = start_error(asked)

    assert f"vllm ended while starting, {told}" in said
    assert said.endswith(f"the whole log: {asked.log_path}")
    assert "non-default args" in (tmp_path / "deep" / "engine.log").read_text(encoding="utf-8")


def test_a_bad_flag_is_told_apart() -> None:
    """The parser's own line is shown, without its hundreds of lines of usage."""
    said = start_error(replace(settings(), extra_args=("--bogus-flag", "1")))

    assert "with exit code 2: bad flag" in said
    assert "error: unrecognized arguments: --bogus-flag" in said


def test_a_port_that_was_taken_meanwhile_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losing the race for a port costs another try, not the run; not for ever."""
    ports: list[int] = []

    def next_port() -> int:
        ports.append(free_port())
        return ports[-1]

    monkeypatch.setattr(server, "free_port", next_port)

    said = start_error(settings("dies-of=port"))

    assert len(set(ports)) == 3
    assert "with exit code 1: port taken" in said
