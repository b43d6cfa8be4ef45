"""`harness run` and `report`: read, plan, run, rebuild, show."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from rich.text import Text

from harness.commands.plan import all_adapters, planned_sweep, print_json
from harness.experiment import SweepRunner
from harness.machine_lock import measuring
from harness.output import PlainConsole, printing
from harness.plan import select
from harness.progress import LiveProgress
from harness.quickstart import quickstart
from harness.reporting import Rebuilt, rebuild
from harness.results.dialects import DialectReport, dialect_block, dialect_report
from harness.results.report import print_summary
from harness.results.store import StoreError

# Statuses of runs whose numbers are not reliable.
_WENT_WRONG = {"failed", "void", "invalid"}


def run(arguments: argparse.Namespace) -> int:
    """Run a sweep and report on it; return the exit code."""
    adapters = all_adapters()
    plan = planned_sweep(arguments.sweep or quickstart(), adapters)
    if arguments.only is not None:
        plan = select(plan, arguments.only)
    plan.check_programs()
    folder = _new_folder(arguments.out, plan.spec.name)
    arguments.folder = folder
    with (
        measuring(share=arguments.share_machine) if plan.real_time else nullcontext() as others,
        LiveProgress(PlainConsole(stderr=True), len(plan.planned)) as progress,
    ):
        SweepRunner(plan, adapters, folder, disturbed_by=others).run(progress)
    rebuilt = _rebuilt(folder)
    code = _show(rebuilt, arguments)
    if rebuilt.unwritten is not None:
        raise rebuilt.unwritten
    return code


def report(arguments: argparse.Namespace) -> int:
    """Rebuild the report of a stored sweep and show it; return the exit code of its runs.

    A folder that cannot be written is shown all the same; a new one that was named must be written.
    """
    folder = checked_folder(arguments.directory)
    if arguments.out is not None:
        _new_folder(arguments.out, "")
    rebuilt = _rebuilt(folder, arguments.out)
    if rebuilt.unwritten is not None and arguments.out is not None:
        raise rebuilt.unwritten
    dialect = arguments.dialect
    other = None if dialect is None else dialect_report(folder, dialect, rebuilt.summary)
    return _show(rebuilt, arguments, other)


def _rebuilt(folder: Path, out: Path | None = None) -> Rebuilt:
    """Build the report; a terminal shows that this takes a while."""
    with PlainConsole(stderr=True).status("building tables, plots and page"):
        return rebuild(folder, out)


def checked_folder(path: Path) -> Path:
    """Return the folder of a sweep as it was given. Raises `StoreError` for a file."""
    if path.is_file():
        raise StoreError(f"{path}: is a file; expected the folder of a sweep")
    return path


def exit_code(statuses: Iterable[str]) -> int:
    """Return 0 where something was measured and nothing went wrong, else 1."""
    seen = set(statuses)
    return 1 if _WENT_WRONG & seen or "ok" not in seen else 0


def _new_folder(out: Path | None, name: str) -> Path:
    """Return the folder that the sweep will make. Raises `StoreError` for one that is there."""
    if out is None:
        stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        numbered = (stem.with_name(f"{stem.name}-{number}") for number in range(2, 1000))
        return next(path for path in (stem, *numbered) if not path.exists())
    if os.path.lexists(out):  # unlike `Path.exists`, False for a name too long for the disk
        error = StoreError(f"--out {out}: exists already; a sweep never overwrites another")
        error.add_note("name a new folder, or leave --out away")
        raise error
    return out


def _show(
    rebuilt: Rebuilt, arguments: argparse.Namespace, other: DialectReport | None = None
) -> int:
    summary, as_json = rebuilt.summary, arguments.json
    statuses = Counter(run.status for run in summary.runs)
    not_run = sum(run.status == "interrupted" and run.metrics is None for run in summary.runs)
    with printing():
        if as_json:
            print_json({**summary.document(), **({"dialect": other.document()} if other else {})})
        else:
            print_summary(summary, PlainConsole(), verbose=arguments.verbose)
            sys.stdout.write("" if other is None else f"\n{dialect_block(summary, other)}\n")
    with printing() if not as_json else contextlib.suppress(OSError):
        console = PlainConsole(stderr=as_json)
        for line in (*_missing(statuses, not_run), *_written(rebuilt)):
            console.print(Text(line), soft_wrap=True)
    return exit_code(statuses)


def _written(rebuilt: Rebuilt) -> Iterator[str]:
    """Yield where the page is, or why it was not written."""
    if rebuilt.unwritten is None:
        yield f"wrote {rebuilt.folder}"
    else:
        yield f"the page was not written: {rebuilt.unwritten}"
        yield "  harness report --out DIR writes it into another folder"


def _missing(statuses: Counter[str], not_run: int) -> Iterator[str]:
    """Yield how many of the planned runs are stored, where some are not."""
    planned = statuses.total() - statuses["skipped"]
    if not_run:
        yield f"{planned - not_run} of {planned} planned runs are stored; the others did not finish"
