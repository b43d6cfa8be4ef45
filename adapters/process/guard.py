"""The small process between harness and engine: it starts the engine and leaves nothing of it.

Run as a script by `launch.py`, so standard library only. As a process of its own it ends the engine
even when harness is interrupted twice or killed outright: the pipe to it then closes. As
the *subreaper* of all that the engine starts it finds workers that renamed themselves, went into a
session of their own or lost their parent; a process group or a name alone would miss those.

    guard.py LOG FOLDER REMOVAL COMMAND…    stdin: `stop SECONDS`, or its end
                                            stdout: `started PID`, `failed REASON`,
                                            `ended CODE [LEFT…]`, then `removed` or `kept REASON`

The engine writes into a pipe, and the guard from there into LOG: of a very long log it keeps the
head and the tail, and goes on reading whatever the disk does, so that no engine waits for its log.

FOLDER has temporary files of harness and engine; the guard removes it when harness cannot. REMOVAL
is a JSON list: the command that removes the engine's container; empty: there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_GRACE_S = 2.0  # for SIGTERM when harness itself is gone
_TRACKER_S = 3.0  # for Python's resource trackers: only they unlink the engine's shared memory
_KILL_S = 15.0  # until a killed process must be gone; one that hangs in a driver never is
_BLINK_S = 0.02
_REMOVAL_S = 20.0  # for one try: docker waits ten for a killed container
_REMOVAL_TRIES = 3
_ON_ITS_WAY_S = 0.5  # until a container exists whose client was killed while it requested one
_NOT_THERE = "no such container"
_LOG_BYTES = 100_000_000  # of a log at most: its head, and of what follows the tail
_HEAD_BYTES = 40_000_000
_TAIL_BYTES = 25_000_000  # that are left when the log is cut: at least so many of the end
_READ_BYTES = 1 << 20
_LAST_LINES_S = 2.0  # to read what is left in the pipe when the engine is gone


def parents() -> dict[int, int]:
    """Return pid → parent's pid of every process that is not dead already."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            found[int(entry.name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    """Return the pids of all living processes below `pid`."""
    above, found, grown = parents(), {pid}, True
    while grown:
        more = {child for child, parent in above.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {pid}


def session_members(session: int) -> set[int]:
    """Return the pids of all living processes of a session."""
    members = set()
    for pid in parents():
        if (fields := _stat(pid)) and int(fields[3]) == session:
            members.add(pid)
    return members


def birth(pid: int) -> str | None:
    """Return when a living process began, which with its pid is its identity; None: it is gone."""
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[str] | None:
    """Return state, parent, group, session … of a process; None when it is gone or dead.

    A process whose first thread has ended counts as a zombie while its other threads go on.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a process's name may hold blanks and brackets
    return None if fields[0] == "Z" and int(fields[17]) <= 1 else fields


def removed(removal: list[str], *, again: bool) -> str | None:
    """Run the command that removes a container; return why it is still there, None: it is gone.

    `again` looks once more: an engine's client that was killed may have requested it just before.
    """
    why: str | None = None
    for _ in range(_REMOVAL_TRIES):
        why = _removal_failed(removal)
        if why is None and not again:
            return None
        again = False
        time.sleep(_ON_ITS_WAY_S)
    return why


def _removal_failed(removal: list[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  the command that started it made it
            removal,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_REMOVAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    stderr = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == 0 or _NOT_THERE in stderr.lower():
        return None
    return " ".join(stderr.split()) or f"exit code {done.returncode}"


class CappedLog:
    """A log of which the middle is left out where it would be longer than `most_bytes`.

    In its place is one line with the number of bytes that are missing. What cannot be written, as
    the disk is full, is left out too.
    """

    def __init__(
        self,
        path: str,
        most_bytes: int = _LOG_BYTES,
        head_bytes: int = _HEAD_BYTES,
        tail_bytes: int = _TAIL_BYTES,
    ) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._file).st_size
        self._most_bytes, self._head_bytes = most_bytes, head_bytes
        self._tail_bytes = tail_bytes
        self._head_end: int | None = None  # None: nothing is cut
        self._tail_begin = 0  # behind the line that gives how much was cut
        self._cut_bytes = 0

    def write(self, data: bytes) -> None:
        """Add `data`; cut the middle where the log is too long now."""
        written = 0
        with contextlib.suppress(OSError):
            while written < len(data):
                written += os.write(self._file, data[written:])
        self._size += written
        if self._size > self._most_bytes:
            with contextlib.suppress(OSError):
                self._cut()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _cut(self) -> None:
        """Keep whole lines: the head, and the tail behind a line that counts what is missing."""
        if self._head_end is None:
            head = os.pread(self._file, self._head_bytes, 0)
            self._head_end = self._tail_begin = head.rfind(b"\n") + 1 or len(head)
        at = self._size - self._tail_bytes
        tail = os.pread(self._file, self._tail_bytes, at)
        skipped = tail.find(b"\n") + 1
        self._cut_bytes += at + skipped - self._tail_begin
        line = f"\n[harness: {self._cut_bytes} bytes of this log are left out here; "
        mark = f"{line}a log has at most {self._most_bytes} bytes]\n".encode()
        os.ftruncate(self._file, self._head_end)
        self._size = self._head_end
        self._tail_begin = self._head_end + len(mark)
        for part in (mark, tail[skipped:]):
            self._size += os.write(self._file, part)


def _pumping(reading: int, log: CappedLog) -> threading.Thread:
    """Start the thread that reads what the engine writes, until all who write are gone."""

    def pump() -> None:
        while data := os.read(reading, _READ_BYTES):
            log.write(data)

    thread = threading.Thread(target=pump, daemon=True)
    thread.start()
    return thread


class _Guard:
    """One engine: started, watched, ended."""

    def __init__(self, log: str, removal: list[str], command: list[str]) -> None:
        self._woken = _wake_on_signals()
        self._removal = removal
        self._code: int | None = None
        self._ordered = False  # to end; otherwise it ended by itself
        capped = CappedLog(log)
        reading, out = os.pipe()
        self._engine = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, out, 2),
            ],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
        os.close(out)  # the engine's copies are left: when they are closed the log has ended
        self._pump = _pumping(reading, capped)
        _report(f"started {self._engine}")

    def watch(self) -> bool:
        """Return, with nothing left of the engine, whether harness went away before it ended."""
        grace_s: float | None = None
        alone = False
        while self._code is None and grace_s is None:
            readable, _, _ = select.select([0, self._woken], [], [])
            if self._woken in readable:
                grace_s = _GRACE_S if _ending(os.read(self._woken, 512)) else None
            if 0 in readable:
                alone = not (order := os.read(0, 64))
                grace_s = _GRACE_S if alone else float(order.split()[1])
            self._reap()
        self._ordered = self._code is None
        if self._ordered:
            self._terminate(grace_s or 0.0)
        left = self._kill()
        self._pump.join(_LAST_LINES_S)
        code = -signal.SIGKILL if self._code is None else self._code
        _report(" ".join(map(str, ["ended", int(code), *sorted(left)])))
        if self._removal:
            kept = removed(self._removal, again=self._ordered)
            _report("removed" if kept is None else f"kept {kept}")
        return alone

    def _terminate(self, grace_s: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._engine, signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while self._code is None and time.monotonic() < deadline_s:
            time.sleep(_BLINK_S)
            self._reap()

    def _kill(self) -> set[int]:
        """Kill all that is left, and return what would not die.

        Dead is what has been reaped: of a killed process threads may go on and hold the device.
        """
        started_s = time.monotonic()
        while self._reap():
            left = descendants(os.getpid())
            waited_s = time.monotonic() - started_s
            if waited_s > _KILL_S:
                return left | ({self._engine} if self._code is None else set())
            for pid in left if waited_s > _TRACKER_S else left - set(_trackers(left)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_BLINK_S)
        return set()

    def _reap(self) -> bool:
        """Take note of children that ended, orphans that became ours among them.

        Return whether any child is left, alive or dying.
        """
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._engine:
                    self._code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True


def _trackers(pids: set[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(OSError):
            if b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def _wake_on_signals() -> int:
    """Return a descriptor that is readable after a signal: waiting costs nothing during a run."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _ending(signals: bytes) -> bool:
    return bool({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(signals))


def _harness_is_gone() -> bool:
    """Return whether the other end of our pipe is closed: harness was killed in the meantime."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def _report(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{line}\n".encode())


def main(log: str, folder: str, removal: str, *command: str) -> None:
    """Guard one engine from its start to its end."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        guard = _Guard(log, json.loads(removal), list(command))
    except OSError as error:
        _report(f"failed {error.strerror}")
        return
    if guard.watch() or _harness_is_gone():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
