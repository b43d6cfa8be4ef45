"""How many sockets this process may have open at once."""

from __future__ import annotations

import resource

_PLENTY = 65_536


def allow_open_files(wanted: int = _PLENTY) -> int:
    """Raise the soft limit of open files towards `wanted`, and return the limit that now holds.

    The hard limit stands: a load that needs more than is returned cannot be played here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    if soft == endless or soft >= wanted:
        return wanted if soft == endless else soft
    raised = wanted if hard == endless else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
