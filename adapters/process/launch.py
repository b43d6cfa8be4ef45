"""Starting an engine's processes and ending them for certain. Knows no engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.adapters.base import EngineError
from harness.adapters.process.guard import birth, descendants, removed, session_members
from harness.adapters.process.oom_kills import oom_kills

_GUARD = Path(__file__).with_name("guard.py")
_NICE = 19  # of an engine that runs on the processors of its client
_GUARD_S = 30.0  # that the guard may take beyond the grace: killing, and waiting for the killed
_REMOVAL_S = 70.0  # that it may take more where a container is to be removed
_LOG_BYTES = 4_000_000  # more of a log than any start or failure writes


class Launched:
    """An engine's processes under their guard, from start to certain end.

    Whoever makes one calls `stop` in a `finally`. Should that not happen, since harness is killed
    or interrupted again, the guard sees its pipe close and ends everything all the same.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        folder: Path,
        removal: Sequence[str] = (),
    ) -> None:
        """Start `command`, its output going to the end of `log_path`.

        `folder` is for temporary files: should harness be killed, the guard removes it. `removal`
        removes the container in which the engine runs, where it does. Raises `EngineError` when
        `command` is no program that can be started.
        """
        if not sys.platform.startswith("linux"):
            raise EngineError("engines can be started on Linux only; elsewhere attach to a URL")
        self.log_path = log_path
        self._oom_kills = oom_kills()
        self._removal = list(removal)
        places = [str(_GUARD), str(log_path), str(folder), json.dumps(self._removal)]
        self._guard = subprocess.Popen(  # noqa: S603  the command is the user's own
            [sys.executable, "-I", "-S", *places, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C reaches harness, and harness alone
        )
        self._code: int | None = None
        self._stopped = False
        self._seen: dict[int, str | None] = {}  # pid → birth, should the guard be killed
        try:
            word, _, rest = self._read_line().partition(" ")
        except BaseException:
            self._close()  # the guard sees its pipe close, and ends what it has started
            raise
        if word != "started":
            self._close()
            raise EngineError(f"{command[0]} cannot be started: {rest or 'its guard died'}")
        self.pid = int(rest)

    def give_way(self) -> None:
        """Let others on this machine's processors go first: the client that measures, above all.

        What the engine starts from now on takes it over, save in sessions of its own: so this is
        done once more when all have started. Where Linux groups sessions (autogroup), a process's
        own priority counts inside of its session only, and that of the session has to be lowered.
        """
        for pid in {self.pid, *self.pids()}:
            with contextlib.suppress(OSError):  # it has ended by itself; there are no groups
                os.setpriority(os.PRIO_PROCESS, pid, _NICE)
                Path(f"/proc/{pid}/autogroup").write_text(str(_NICE), encoding="ascii")

    @property
    def contained(self) -> bool:
        """Whether the engine's processes are a container's, which no list of ours shows."""
        return bool(self._removal)

    def exit_code(self) -> int | None:
        """Return how the engine ended (minus the signal that killed it); None while it runs."""
        if self._code is None and self._guard.poll() is not None:
            words = self._read_line().split()
            self._code = int(words[1]) if words[:1] == ["ended"] else -signal.SIGKILL
        return self._code

    def oom_kills(self) -> int | None:
        """Return how many processes the OOM killer has ended since the start; None: not known."""
        now = oom_kills()
        return None if now is None or self._oom_kills is None else now - self._oom_kills

    def pids(self) -> set[int]:
        """Return the pids of all living processes of the engine."""
        found = descendants(self._guard.pid)
        self._seen |= {pid: birth(pid) for pid in found - set(self._seen)}
        return found

    def log(self) -> str:
        """Return what the engine wrote; of a very long log only the end."""
        return log_end(self.log_path)

    def stop(self, grace_s: float) -> None:
        """End all processes: SIGTERM, `grace_s` seconds of patience, then SIGKILL.

        An engine may wait for its clients: close their connections first. Raises `EngineError`
        with the pids when something will not die. An interrupt in here takes effect when nothing of
        the engine is left; a second one leaves the rest to the guard, which goes on by itself.
        """
        if self._stopped:
            return
        self._stopped = True
        self.pids()
        self._order(f"stop {grace_s:g}\n")
        limit_s = grace_s + _GUARD_S + _REMOVAL_S * self.contained
        interrupt = self._wait_for_guard(limit_s)
        self.exit_code()
        left = self._kill_left()
        kept = self._container_left()
        self._close()
        if left:
            names = ", ".join(f"{pid} ({_name(pid)})" for pid in sorted(left))
            error = EngineError(f"processes of the engine cannot be stopped: {names}")
            error.add_note("they hold the device: end them by hand before the next start")
            raise error
        if kept is not None:
            error = EngineError(f"the container of the engine cannot be removed: {kept}")
            error.add_note(f"it may hold the device: {' '.join(self._removal)}")
            raise error
        if interrupt is not None:
            raise interrupt

    def _container_left(self) -> str | None:
        """Return why the container still exists; None: it is gone. Checks it without a guard."""
        if not self.contained or self._read_line() == "removed":
            return None
        return removed(self._removal, again=False)

    def _wait_for_guard(self, limit_s: float) -> KeyboardInterrupt | None:
        """Return an interrupt that came while waiting; a second one is raised."""
        interrupt = None
        try:
            try:
                self._guard.wait(limit_s)
            except KeyboardInterrupt as first:
                interrupt = first
                self._guard.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        return interrupt

    def _kill_left(self) -> set[int]:
        """Kill what a guard that died left alive, and return what will not die."""
        deadline_s = time.monotonic() + 5.0
        while left := session_members(self._guard.pid) | self._alive():
            if time.monotonic() > deadline_s:
                return left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        return set()

    def _alive(self) -> set[int]:
        """Return which of the processes that were ever seen live: a pid may be another's by now."""
        return {pid for pid, born in self._seen.items() if born and birth(pid) == born}

    def _order(self, line: str) -> None:
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(line)
                self._guard.stdin.flush()

    def _read_line(self) -> str:
        return self._guard.stdout.readline().strip() if self._guard.stdout else ""

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._guard.wait()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def log_end(path: Path) -> str:
    """Return the last 4 MB of a log, whole lines; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "gone"
