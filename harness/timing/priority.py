"""Real-time priority for the measuring thread, if the system allows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

REALTIME, USUAL = "realtime", "usual"


@contextmanager
def going_first(processes: int = 1) -> Iterator[str]:
    """Run this thread at Linux's lowest real-time priority, and yield the resulting priority.

    At normal priority, other processes and kernel threads may delay a timestamp by several
    milliseconds. `processes` is the number of processes that do this at once; at least one CPU is
    left for others, such as a server on this machine. Requires root or CAP_SYS_NICE; without it,
    and on systems other than Linux, nothing changes. New threads and processes have normal
    priority.
    """
    before = _usual_scheduling() if processes < (os.cpu_count() or 1) else None
    if before is None or not _scheduled(os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1):
        yield USUAL
        return
    try:
        yield REALTIME
    finally:
        _scheduled(before, 0)


def _usual_scheduling() -> int | None:
    """Return the policy of this thread if it is SCHED_OTHER; None for a policy set by others."""
    if not hasattr(os, "sched_getscheduler"):
        return None
    policy = os.sched_getscheduler(0)
    return policy if policy == os.SCHED_OTHER else None


def _scheduled(policy: int, priority: int) -> bool:
    try:
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError:
        return False
    return True
