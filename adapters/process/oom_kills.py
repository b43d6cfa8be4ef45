"""How often the kernel's OOM killer has ended a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Return a count that rises when the OOM killer ends a process; None where none can be read.

    The counts of this process's control group, to which an engine belongs as well, and of the
    machine, on which an engine in a container runs: one of them may be hidden.
    """
    files = {*_group_files(proc, cgroups), proc / "vmstat"}
    counts = [count for file in files if (count := _count(file)) is not None]
    return sum(counts) if counts else None


def _count(file: Path) -> int | None:
    try:
        found = _COUNT.search(file.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else int(found[1])


def _group_files(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the files with the counter of this process's group, in either version of cgroups."""
    try:
        groups = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in groups.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        group = path.lstrip("/")
        if controllers == "":
            yield cgroups / group / "memory.events"
            yield cgroups / "memory.events"  # a container sees its own group as the root
        elif "memory" in controllers.split(","):
            yield cgroups / "memory" / group / "memory.oom_control"
            yield cgroups / "memory" / "memory.oom_control"
