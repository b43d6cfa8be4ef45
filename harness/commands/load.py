"""`harness load`: the order given, and the result in print."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from harness.commands.load_order import order_of
from harness.commands.loading import LoadOrder, load_server
from harness.output import printing
from harness.progress import RequestCount
from harness.results.dialects import dialect_block
from harness.results.report import serving_block
from harness.sweep_file import Load

_INTERRUPTED = 130
_MANY_REQUESTS = 20_000  # to make so many takes a while


def load(arguments: argparse.Namespace) -> int:
    """Load a server that runs, print what came of it; return 0 where all is good.

    1 when a request failed or the client is INVALID, 130 when it was interrupted.
    """
    order = order_of(arguments)
    arguments.folder = order.out
    if (requests := _expected_requests(order.load)) > _MANY_REQUESTS:
        _say(f"making {requests:,} requests")
    with RequestCount(sys.stderr) as count:
        summary = load_server(order, count.answered)
    with printing():
        sys.stdout.write(_text(summary, order, as_json=arguments.json) + "\n")
    (run,) = summary["runs"]
    if run["status"] == "interrupted":
        _say(f"interrupted: {run['reason']}")
    if order.out is not None:
        _say(f"wrote {order.out}")
    return {"ok": 0, "interrupted": _INTERRUPTED}.get(run["status"], 1)


def _expected_requests(load: Load) -> int:
    """Return about how many requests will be made; 0 where only a trace tells."""
    return load.requests or round((load.rate_rps or 0) * (load.duration_ns or 0) / 1e9)


def _text(summary: dict[str, Any], order: LoadOrder, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(summary, indent=1, allow_nan=False)
    blocks = [serving_block(summary)]
    if order.dialect is not None:
        blocks.append(dialect_block(summary, summary["dialect"]))
    return "\n\n".join(blocks)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens: the result is written all the same
        sys.stderr.write(line + "\n")
