"""A real server's life: a port, its processes, readiness, its end. The same for every engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, Target
from harness.adapters.http_queries import NO_REPLY, HttpReply, query
from harness.adapters.model_folder import model_folder, ordinary_tokens
from harness.adapters.process.containers import (
    TEMPORARY_FOLDER,
    Container,
    container_of,
    new_name,
)
from harness.adapters.process.failures import PortTakenError, ended_error
from harness.adapters.process.launch import Launched, free_port
from harness.adapters.process.programs import engine_env
from harness.adapters.process.readiness import wait_until_ready

_TRIES = 3  # another port each time, where another program took ours before the engine did
_STARTING_GRACE_S = 0.5  # a starting engine may ignore SIGTERM for minutes
_RUNNING_GRACE_S = 12.0
_INTERRUPTED_GRACE_S = 4.0  # whoever closes a terminal, or shuts down, waits no longer than 10 s
_LAST_WORDS_S = 12.0  # a server that lost its engine may answer for six seconds before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """How one server of an engine is started: the plan shows it, a run does it."""

    engine: str
    settings: EngineSettings
    program: tuple[str, ...]
    words: Callable[[int | str], Sequence[str]]  # what follows the program, from the port
    own_env: Callable[[Path], Mapping[str, str]] = lambda _: {}  # from a temporary folder
    model: str | None = None  # the name that requests carry; None: that of the settings
    fields: frozenset[str] = frozenset()  # what requests may contain: see `Target`
    token_ids: bool = False  # prompts may be token ids, where the model's files are here
    files: tuple[Path, ...] = ()  # that the engine must be able to read

    def launch_line(self) -> list[str]:
        """Return the command line, for the plan; the port is chosen when it is started."""
        command = self.command("PORT")
        container = self.container()
        return command if container is None else container.words("NAME", command, self.files)

    def command(self, port: int | str) -> list[str]:
        """Return the command that starts the server on this machine or in its container."""
        return [*self.program, *self.words(port)]

    def container(self) -> Container | None:
        """Return the container in which the command runs; None: on this machine."""
        return container_of(self.settings, self.own_env(TEMPORARY_FOLDER))

    def env(self, folder: Path) -> dict[str, str]:
        """Return the environment of the engine, whose temporary files go into `folder`."""
        return engine_env(self.program, self.own_env(folder), self.settings.env)

    def target(self, port: int) -> Target:
        """Return where the server can be reached once it is started."""
        name = self.settings.model if self.model is None else self.model
        shape = self.settings.shape
        return Target(
            url=f"http://127.0.0.1:{port}",
            model=name,
            api=shape.api,
            fields=shape.fields(self.fields),
            headers=shape.all_headers(),
            body=shape.body,
            lora=shape.lora,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is ready."""

    start: ServerStart
    processes: Launched
    target: Target
    command: tuple[str, ...]
    env: Mapping[str, str]
    startup_s: float

    def query(self, path: str, *, post: bool = False, timeout_s: float = 30.0) -> HttpReply:
        """Return the reply at `path`. Raises `EngineError` where the engine ended, or is silent."""
        try:
            return query(
                self.target.url,
                path,
                post=post,
                timeout_s=timeout_s,
                access=self.target.access,
            )
        except NO_REPLY as error:
            raise self._silence(path, error) from error

    def _silence(self, path: str, cause: BaseException) -> EngineError:
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while self.processes.exit_code() is None and time.monotonic() < deadline_s:
            time.sleep(0.1)
        code = self.processes.exit_code()
        if code is None:
            return EngineError(f"{self.start.engine} does not answer {path}: {cause}")
        error = ended_error(f"{self.start.engine} ended in mid-run", code, self.processes)
        error.add_note(f"the whole log: {self.processes.log_path}")
        return error

    def json(self, path: str) -> Any:
        """Return the document at `path`; None where there is none."""
        reply = self.query(path)
        return reply.json() if reply.status == 200 else None


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
    port, settings, container = free_port(), start.settings, start.container()
    command, target = start.command(port), start.target(port)
    env = start.env(folder if container is None else TEMPORARY_FOLDER)
    log_path = _empty_log(settings.log_path or folder / "engine.log")
    removal: tuple[str, ...] = ()
    if container is not None:
        name = new_name()
        command, removal = _put_into(container, name, command, start.files)
    processes = Launched(command, env, log_path, folder, removal)
    if settings.on_cpu:
        processes.give_way()
    grace_s = _STARTING_GRACE_S
    try:
        startup_s = wait_until_ready(
            processes, target, start.engine, timeout_s=settings.start_timeout_s
        )
        if settings.on_cpu:
            processes.give_way()
        grace_s = _RUNNING_GRACE_S
        yield Server(
            start=start,
            processes=processes,
            # only now: the engine may have loaded the model's files while it started
            target=replace(target, vocabulary=_vocabulary(start, env), engine_pid=processes.pid),
            command=tuple(command),
            env=env,
            startup_s=startup_s,
        )
    except KeyboardInterrupt:
        grace_s = min(grace_s, _INTERRUPTED_GRACE_S)
        raise
    except EngineError as error:
        if settings.log_path is not None:  # a temporary one is removed with its folder
            error.add_note(f"the whole log: {settings.log_path}")
        raise
    finally:
        processes.stop(grace_s)


def _vocabulary(start: ServerStart, env: Mapping[str, str]) -> int | None:
    """Return how many token ids prompts may be drawn from; None: prompts are text."""
    takes_ids = start.token_ids and start.settings.shape.api == "completions"
    folder = model_folder(start.settings.model, env) if takes_ids else None
    return None if folder is None else ordinary_tokens(folder)


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
