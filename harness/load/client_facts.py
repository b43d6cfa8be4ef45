"""What is known of a run's client, for its certificate: facts only, judged from the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.calibration import latest_calibration
from harness.load.shard import OWN_FILES, Shard, ShardResult

_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def client_facts(results: Sequence[ShardResult], whole: Shard, wall_step_ns: int) -> dict[str, Any]:
    """Return `client` of a manifest: the processes, the clock, and the limits of the machine."""
    return {
        "kind": results[0].kind,
        "workers": [one.facts for one in results],
        "wall_clock_step_ns": wall_step_ns,
        "open_files": {
            "limit": min(one.open_files_limit for one in results),
            "most": -(-whole.most_at_once // len(results)) + OWN_FILES,
        },
        "ports": {
            "available": _ports_available(),
            "used": sum(one.opened_connections for one in results),
        },
        "calibration": latest_calibration(),
    }


def _ports_available() -> int | None:
    """Return how many connections to one address this machine can have; None: not known."""
    try:
        low, high = map(int, _PORT_RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return high - low + 1
