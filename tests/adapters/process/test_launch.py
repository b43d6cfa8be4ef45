"""Whatever is started is ended, whoever ends first and however it hides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from repository import ROOT, STAND_INS
from stand_in import gone_within, processes_with

from harness.adapters.base import EngineError
from harness.adapters.process.launch import Launched, free_port

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

# An engine that ignores SIGTERM, with a worker in a session of its own, and one without a parent.
RESTLESS = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60' {0} & (sleep 60 & ); sleep 60"


@pytest.fixture
def word() -> str:
    return f"engine-{uuid.uuid4().hex}"


@contextmanager
def started(folder: Path, *command: str, grace_s: float = 0.05) -> Iterator[Launched]:
    processes = Launched(command, os.environ, folder / "engine.log", folder)
    try:
        yield processes
    finally:
        processes.stop(grace_s)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def test_what_an_engine_writes_and_how_it_ends_is_known(tmp_path: Path) -> None:
    """Both of its outputs lie in the log, and its exit code is its own."""
    with started(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7") as processes:
        while processes.exit_code() is None:
            time.sleep(0.01)

    assert processes.exit_code() == 7
    assert processes.log() == "out\nerr\n"


def test_a_signal_that_killed_an_engine_is_told(tmp_path: Path) -> None:
    """An engine that the system killed has minus the signal as exit code."""
    with started(tmp_path, "sh", "-c", "kill -KILL $$") as processes:
        while processes.exit_code() is None:
            time.sleep(0.01)

    assert processes.exit_code() == -signal.SIGKILL


def test_what_is_no_program_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A wrong path is found at once, not after a time limit."""
    with pytest.raises(EngineError, match="/nowhere/engine cannot be started: No such file"):
        Launched(["/nowhere/engine"], os.environ, tmp_path / "log", tmp_path)


def test_an_engine_may_end_by_itself_within_the_grace(tmp_path: Path) -> None:
    """SIGTERM comes first: an engine that minds it ends in its own way."""
    with started(
        tmp_path, "sh", "-c", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.02; done",
        grace_s=5.0,
    ) as processes:  # fmt: skip
        while "up" not in processes.log():
            time.sleep(0.01)

    assert processes.exit_code() == 4
    assert processes.log().endswith("bye\n")


def test_workers_that_hide_are_ended_with_their_engine(tmp_path: Path, word: str) -> None:
    """Neither another session, nor a lost parent, nor deafness to SIGTERM saves a process."""
    with started(tmp_path, "sh", "-c", RESTLESS.format(word)) as processes:
        while len(pids := processes.pids()) < 5:
            time.sleep(0.01)

    assert not alive(pids)
    assert not processes_with(word)


def test_an_engine_whose_first_thread_has_ended_is_ended(tmp_path: Path) -> None:
    """To the system it is a zombie, and its other threads hold the device all the same."""
    exit_thread = 93 if os.uname().machine == "aarch64" else 60  # number of exit(2)
    engine = (
        "import ctypes, signal, threading, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=lambda: (time.sleep(60))).start()\n"
        f"print('up', flush=True); ctypes.CDLL(None).syscall({exit_thread}, 0)"
    )
    with started(tmp_path, sys.executable, "-c", engine) as processes:
        while "up" not in processes.log():
            time.sleep(0.01)
        pids = processes.pids()
        assert pids

    assert processes.exit_code() == -signal.SIGKILL
    assert not alive(pids)


def test_a_killed_guard_leaves_its_engine_to_harness(tmp_path: Path, word: str) -> None:
    """Should the guard itself be killed, all that was seen of the engine is ended all the same."""
    with started(tmp_path, "sh", "-c", RESTLESS.format(word)) as processes:
        while len(processes.pids()) < 5:
            time.sleep(0.01)
        processes._guard.kill()
        while processes.exit_code() is None:
            time.sleep(0.01)

    assert gone_within(word, 2.0)


def test_shared_memory_of_a_killed_engine_is_given_back(tmp_path: Path) -> None:
    """Python's resource tracker outlives the engine long enough to unlink what it left."""
    engine = (
        "import signal, time; from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(SharedMemory(create=True, size=4096).name, flush=True); time.sleep(60)"
    )
    with started(tmp_path, sys.executable, "-c", engine) as processes:
        while not (name := processes.log().strip()):
            time.sleep(0.01)
        assert Path("/dev/shm", name).exists()  # noqa: S108  where shared memory lies

    assert processes.exit_code() == -signal.SIGKILL
    assert not Path("/dev/shm", name).exists()  # noqa: S108  as above


@pytest.mark.parametrize(
    "kinds",
    [
        (signal.SIGINT,),
        (signal.SIGINT,) * 2,
        (signal.SIGTERM,),
        (signal.SIGHUP,),
        (signal.SIGKILL,),
    ],
)
@pytest.mark.parametrize("faults", ["never-listens,orphan,ignores-sigterm", "orphan"])
def test_nothing_outlives_a_harness_that_is_ended(
    kinds: tuple[signal.Signals, ...], faults: str, word: str, tmp_path: Path
) -> None:
    """Ctrl-C, once or twice, SIGTERM and kill -9: no process and no file is left of an engine."""
    code = (
        f"import sys, time; sys.path[:0] = [{str(ROOT)!r}, {str(STAND_INS)!r}]\n"
        "from dataclasses import replace; from stand_in import settings\n"
        "from harness.adapters.vllm.adapter import VllmAdapter\n"
        f"with VllmAdapter().start(replace(settings({faults!r}), model={word!r})):\n"
        "    print('up', flush=True); time.sleep(60)\n"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert harness.stdout is not None
    if "never-listens" in faults:
        while len(processes_with(word)) < 4:  # harness, guard, engine, worker
            assert harness.poll() is None
            time.sleep(0.02)
    else:
        assert harness.stdout.readline() == b"up\n"

    for kind in kinds:
        harness.send_signal(kind)
        time.sleep(0.05 * (len(kinds) - 1))
    harness.wait(20)
    harness.stdout.close()

    assert harness.returncode != 0
    assert gone_within(word, 10.0)
    assert not list(tmp_path.iterdir())


def test_fifty_starts_leave_nothing(tmp_path: Path, word: str) -> None:
    """Ended at once or later, patiently or not, dying by themselves or deaf: nothing is left."""
    commands = (RESTLESS.format(word), f": {word}; exit 3", f": {word}; sleep 60")
    seen: set[int] = set()
    for number in range(50):
        with started(
            tmp_path, "sh", "-c", commands[number % 3], grace_s=0.02 * (number % 2)
        ) as processes:
            time.sleep(0.01 * (number % 4))
            seen |= processes.pids()

    assert len(seen) > 50
    assert not alive(seen)
    assert not processes_with(word)


def test_an_interrupt_of_the_ending_waits_for_the_end(tmp_path: Path, word: str) -> None:
    """Harness does not go while its engine lives: whoever starts it anew finds the device free."""
    processes = Launched(
        ["sh", "-c", RESTLESS.format(word), word], os.environ, tmp_path / "engine.log", tmp_path
    )
    while len(processes.pids()) < 4:
        time.sleep(0.01)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.stop(0.5)
    finally:
        signal.signal(signal.SIGALRM, previous)

    assert processes_with(word) == []


def test_a_free_port_can_be_listened_on() -> None:
    """Two ports asked for one after the other are free, whatever else runs."""
    assert all(1024 < free_port() < 65536 for _ in range(2))
