"""One measuring sweep per machine and user: two at once would measure each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK_VARIABLE = "HARNESS_LOCK"  # names another lock file


class MachineBusyError(Exception):
    """Another sweep measures on this machine; its message names the process."""


def lock_path() -> Path:
    """Return the lock file: the one that `HARNESS_LOCK` names, else one for each user."""
    named = os.environ.get(LOCK_VARIABLE)
    if named:
        return Path(named)
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(folder) / f"harness-{os.getuid()}.lock"


@contextlib.contextmanager
def measuring(*, share: bool = False) -> Iterator[str | None]:
    """Hold the lock of this machine while a sweep measures on the real clock.

    Yields None, or which process holds the lock already where `share` allows both to go on.
    Raises `MachineBusyError` where it does not. The system frees the lock when the process ends,
    however it ends; a folder that cannot be written leaves nothing to lock, and nothing is locked.
    """
    path = lock_path()
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            if not share:
                raise _busy(holder, path) from None
            yield holder
            return
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield None
    finally:
        os.close(file)


def _holder(file: int) -> str:
    """Return who wrote the lock file, such as `process 4711`."""
    written = os.pread(file, 32, 0).decode(errors="replace").strip()
    return f"process {written}" if written.isdecimal() else "another process"


def _busy(holder: str, path: Path) -> MachineBusyError:
    error = MachineBusyError(
        f"another sweep measures on this machine ({holder}); both would be disturbed"
    )
    error.add_note("wait until it has ended, or run with --share-machine, which marks every run")
    error.add_note(f"lock file: {path}; {LOCK_VARIABLE} names another one")
    return error
