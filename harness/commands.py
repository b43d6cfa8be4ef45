"""What each command does, as a table of contents: read, plan, run, rebuild, show."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from adapters import ENGINES
from adapters.base import EngineAdapter, EngineError
from harness.plan.document import plan_document
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.plan.selection import select
from harness.plan.text import print_plan
from harness.progress import LiveProgress
from harness.quickstart import quickstart
from harness.reporting import rebuild
from harness.spec import SpecError, load_sweep
from harness.sweep import Sweep
from results.store import StoreError
from results.tables import print_summary
from workloads.base import WorkloadError

# What a user can cause: one type a package.
FORESEEN = (SpecError, WorkloadError, EngineError, StoreError)
# Of a run: its numbers are not vouched for.
_WENT_WRONG = {"failed", "void", "invalid"}


def run(arguments: argparse.Namespace) -> int:
    """Do a sweep and report on it; return the exit code."""
    adapters = _adapters()
    plan = _planned(arguments.sweep or quickstart(), adapters)
    if arguments.only is not None:
        plan = select(plan, arguments.only)
    folder = _new_folder(arguments.out, plan.spec.name)
    arguments.folder = folder
    with LiveProgress(Console(stderr=True), len(plan.planned)) as progress:
        Sweep(plan, adapters, folder).run(progress)
    return _show(folder, as_json=arguments.json)


def plan(arguments: argparse.Namespace) -> int:
    """Show what a sweep will do; start nothing."""
    planned = _planned(arguments.sweep, _adapters())
    if arguments.json:
        _print_json(plan_document(planned))
    else:
        print_plan(planned, Console())
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Rebuild the report of a stored sweep and show it; return what its runs came to."""
    return _show(arguments.directory, as_json=arguments.json)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "plan": plan,
    "report": report,
}


def _adapters() -> dict[str, EngineAdapter]:
    return {name: adapter() for name, adapter in ENGINES.items()}


def _planned(path: Path, adapters: Mapping[str, EngineAdapter]) -> Plan:
    return make_plan(load_sweep(path, engines=tuple(adapters)), adapters)


def _new_folder(out: Path | None, name: str) -> Path:
    """Return the folder that the sweep will make. Raises `StoreError` for one that is there."""
    if out is None:
        stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        numbered = (stem.with_name(f"{stem.name}-{number}") for number in range(2, 1000))
        return next(path for path in (stem, *numbered) if not path.exists())
    if out.exists():
        error = StoreError(f"--out {out}: exists already; a sweep never overwrites another")
        error.add_note("name a new folder, or leave --out away")
        raise error
    return out


def _show(folder: Path, *, as_json: bool) -> int:
    summary = rebuild(folder)
    if as_json:
        _print_json(summary)
    else:
        print_summary(summary, Console())
    Console(stderr=as_json).print(Text(f"wrote {folder}"), soft_wrap=True)
    return 1 if _WENT_WRONG & {one["status"] for one in summary["runs"]} else 0


def _print_json(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
