"""Going first: what measures runs before all else on its processor, where the system allows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

REALTIME, USUAL = "realtime", "usual"


@contextmanager
def going_first(processes: int = 1) -> Iterator[str]:
    """Run this thread at Linux's lowest real-time priority; yield whether it does: a priority.

    At the usual one every other process, and the kernel's own threads, may keep a stamp waiting
    for a time slice of some milliseconds. `processes` is how many do so at once: one processor is
    left to others, above all to a server on this machine. Needs root or CAP_SYS_NICE; without it,
    and away from Linux, nothing changes. Threads and processes that it starts do not take it over.
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
    """Return the policy of this thread where it is an ordinary one; someone else's choice stays."""
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
