"""`harness load`: a plan of one run, measured, and the result in print."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.commands.load_plan import checked_load, planned_load
from harness.experiment import RequestSets, run_alone
from harness.output import printing
from harness.progress import RequestCount
from harness.results import Summary
from harness.results.dialects import DialectReport, dialect_block, dialect_report
from harness.results.report import serving_table
from harness.sweep_file import Load

_INTERRUPTED = 130
_MANY_REQUESTS = 20_000  # to make so many takes a while


def load(arguments: argparse.Namespace) -> int:
    """Load a server that runs, print the result; return 0 where all is good.

    1 when a request failed or the client is INVALID, 130 when it was interrupted.
    """
    run, endpoint = planned_load(arguments)
    arguments.folder = arguments.out
    if (requests := _expected_requests(run.load)) > _MANY_REQUESTS:
        _say(f"making {requests:,} requests")
    with ExitStack() as stack:
        folder = arguments.out or Path(stack.enter_context(TemporaryDirectory())) / run.key
        request_sets = RequestSets()
        run = checked_load(run, request_sets)
        with RequestCount(sys.stderr) as count:
            summary = run_alone(
                run, request_sets, endpoint, folder, count.requests_done, endpoint.until_ready
            )
        name = arguments.dialect
        dialect = None if name is None else dialect_report(folder, name, summary)
    with printing():
        sys.stdout.write(_text(summary, dialect, as_json=arguments.json) + "\n")
    (result,) = summary.runs
    if result.status == "interrupted":
        _say(f"interrupted: {result.reason}")
    if result.status == "failed":
        _say(f"failed: {result.reason}")
    if arguments.out is not None:
        _say(f"wrote {arguments.out}")
    return {"ok": 0, "interrupted": _INTERRUPTED}.get(result.status, 1)


def _expected_requests(load: Load) -> int:
    """Return about how many requests will be made; 0 where only a trace knows."""
    return load.requests or round((load.rate_rps or 0) * (load.duration_ns or 0) / 1e9)


def _text(summary: Summary, dialect: DialectReport | None, *, as_json: bool) -> str:
    if as_json:
        document = summary.document()
        if dialect is not None:
            document["dialect"] = dialect.document()
        return json.dumps(document, indent=1, allow_nan=False)
    blocks = [serving_table(summary)]
    if dialect is not None:
        blocks.append(dialect_block(summary, dialect))
    return "\n\n".join(blocks)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens: the result is written all the same
        sys.stderr.write(line + "\n")
