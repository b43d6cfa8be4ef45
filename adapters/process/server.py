"""A real server's life: a port, its processes, readiness, its end. The same for every engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, Target
from harness.adapters.http_queries import NO_ANSWER, Answer, ask
from harness.adapters.process.containers import PASSING_FOLDER, Container, new_name
from harness.adapters.process.failures import PortTakenError, ended_error
from harness.adapters.process.launch import Launched, free_port
from harness.adapters.process.readiness import wait_until_ready

_TRIES = 3  # another port each time, where another program took ours before the engine did
_STARTING_GRACE_S = 0.5  # a starting engine may ignore SIGTERM for minutes
_RUNNING_GRACE_S = 12.0
_LAST_WORDS_S = 12.0  # a server that lost its engine may answer for six seconds before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """What it takes to start one server of an engine."""

    engine: str
    command: Callable[[int], Sequence[str]]  # from the port
    env: Callable[[Path], Mapping[str, str]]  # from a folder for passing files
    target: Callable[[int], Target]
    timeout_s: float
    log_path: Path | None
    on_cpu: bool = False  # it computes where the client runs, and gives way to it
    container: Container | None = None  # in which the command runs; None: on this machine
    files: tuple[Path, ...] = ()  # that the engine must be able to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is ready."""

    engine: str
    processes: Launched
    target: Target
    command: tuple[str, ...]
    env: Mapping[str, str]
    startup_s: float

    def ask(self, path: str, *, post: bool = False, timeout_s: float = 30.0) -> Answer:
        """Return the answer to a question. Raises `EngineError`, telling a crash from silence."""
        try:
            return ask(self.target.url, path, post=post, timeout_s=timeout_s)
        except NO_ANSWER as error:
            raise self._silence(path, error) from error

    def _silence(self, path: str, cause: BaseException) -> EngineError:
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while self.processes.exit_code() is None and time.monotonic() < deadline_s:
            time.sleep(0.1)
        code = self.processes.exit_code()
        if code is None:
            return EngineError(f"{self.engine} does not answer {path}: {cause}")
        error = ended_error(f"{self.engine} ended in mid-run", code, self.processes)
        error.add_note(f"the whole log: {self.processes.log_path}")
        return error

    def json(self, path: str) -> Any:
        """Return what `path` tells as data; None when it tells nothing."""
        answer = self.ask(path, timeout_s=60.0)
        return answer.json() if answer.status == 200 else None


@contextmanager
def running_server(start: ServerStart) -> Iterator[Server]:
    """Start a server and wait until it is ready; on leaving, nothing of it is left.

    Raises `EngineError`.
    """
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True)
        yield _first_ready(start, Path(stack.enter_context(folder)), stack)


def _first_ready(start: ServerStart, folder: Path, stack: ExitStack) -> Server:
    for _ in range(_TRIES - 1):
        with suppress(PortTakenError):
            return stack.enter_context(_one_server(start, folder))
    return stack.enter_context(_one_server(start, folder))


@contextmanager
def _one_server(start: ServerStart, folder: Path) -> Iterator[Server]:
    port = free_port()
    command, target = start.command(port), start.target(port)
    env = start.env(folder if start.container is None else PASSING_FOLDER)
    log_path = _empty_log(start.log_path or folder / "engine.log")
    removal: tuple[str, ...] = ()
    if start.container is not None:
        name = new_name()
        command, removal = _put_into(start.container, name, command, start.files)
    processes = Launched(command, env, log_path, folder, removal)
    if start.on_cpu:
        processes.give_way()
    grace_s = _STARTING_GRACE_S
    try:
        startup_s = wait_until_ready(processes, target, start.engine, timeout_s=start.timeout_s)
        if start.on_cpu:
            processes.give_way()
        grace_s = _RUNNING_GRACE_S
        yield Server(
            engine=start.engine,
            processes=processes,
            target=target,
            command=tuple(command),
            env=env,
            startup_s=startup_s,
        )
    except EngineError as error:
        if start.log_path is not None:  # a passing one is gone with its folder
            error.add_note(f"the whole log: {start.log_path}")
        raise
    finally:
        processes.stop(grace_s)


def _put_into(
    container: Container, name: str, command: Sequence[str], files: Sequence[Path]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the command of a container, and the one that removes it."""
    with suppress(OSError):  # docker would make it, as root
        container.cache.mkdir(parents=True, exist_ok=True)
    return container.words(name, command, files), container.removal(name)


def _empty_log(path: Path) -> Path:
    """Return `path`, empty: what an earlier start wrote must not explain this one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise EngineError(f"the engine's log cannot be written: {error}") from error
    return path
