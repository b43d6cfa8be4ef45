"""The command line, and the only place that catches foreseen errors."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import __version__
from harness.commands.arguments import (
    Once,
    add_calibrate,
    add_capacity,
    add_dialect,
    add_engines,
    add_fit,
    add_load,
    add_serve,
)
from harness.interrupts import interruptible
from harness.standard_streams import (
    drop_unwritten_errors,
    is_text,
    open_standard_streams,
    spelled,
)

RUN_WENT_WRONG, WRONG_BEFORE_START, INTERRUPTED = 1, 2, 130  # 0 is good

_LONGEST = 4096  # characters of a name, a number or a path; JSON may have more

_EPILOG = """\
example:
  harness run                 run the quickstart: simulated, no GPU needed
  harness load --help         show the options of a command

exit codes:
  0    success
  1    a run failed, or its numbers cannot be trusted (VOID, INVALID)
  2    something was wrong before anything started: a file, a key, a name, a model that does not fit
  130  interrupted; finished runs are stored
"""
_ONLY = """\
run only the arms, workloads, loads or engines that match GLOB, such as '*caching*' or
'concurrency=1'; with slashes all four: 'embedded/quantization=*/chat/*'. The baseline always
runs"""
_RUN_EXAMPLE = """\
example:
  harness run my-sweep.yaml --only '*caching*'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    open_standard_streams()
    words = sys.argv[1:] if argv is None else argv
    if unreadable := [word for word in words if not is_text(word)]:
        _say(
            f"error: {spelled(unreadable[0])}: the name is not UTF-8", "  rename it, or link to it"
        )
        return WRONG_BEFORE_START
    if long := next((word for word in words if len(word) > _LONGEST and "{" not in word), None):
        _say(f"error: {long[:40]}…: {len(long):,} characters; expected at most {_LONGEST:,}")
        return WRONG_BEFORE_START
    try:
        arguments = _parser().parse_args(words)
    except SystemExit as ended:
        raise SystemExit(_flushed(ended.code)) from None
    if find_spec("fcntl") is None:
        _say("error: harness runs on Linux and macOS only", "  on Windows, use it in WSL 2")
        return WRONG_BEFORE_START
    with interruptible():
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            _tell_interrupted(arguments)
            return INTERRUPTED
        finally:
            drop_unwritten_errors()


def _flushed(code: Any) -> Any:
    """Return the exit code of a help that was printed; 1 where it could not be."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        _say(f"error: the output cannot be written: {error.strerror or error}")
        code = RUN_WENT_WRONG
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
    return code


def _run(arguments: argparse.Namespace) -> int:
    """Return the exit code of one command; foreseen errors are printed."""
    # Everything heavy comes in here, so that `harness --help` answers at once.
    from harness import output  # noqa: PLC0415
    from harness.commands import command, is_foreseen  # noqa: PLC0415

    output.spell_anything()
    try:
        code = command(arguments.command)(arguments)
        with output.printing():  # what the command left in the buffer
            return code
    except output.OutputError as error:
        _tell(error)
        return RUN_WENT_WRONG
    except Exception as error:
        if not is_foreseen(error):
            raise
        _tell(error)
        return RUN_WENT_WRONG if _has_begun(arguments) else WRONG_BEFORE_START


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness",
        description="Benchmark LLM serving engines: change one optimization at a time,\n"
        "prove that it changed, and measure every token.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _add_run(commands)
    plan = commands.add_parser("plan", help="show what a sweep will run; start nothing")
    plan.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    plan.set_defaults(command="plan", folder=None)

    report = _add_report(commands)
    diagnose = commands.add_parser("diagnose", help="name what limits stored runs, with evidence")
    diagnose.add_argument("directory", type=Path, metavar="DIR", help="the folder of a sweep")
    diagnose.set_defaults(command="diagnose", folder=None)

    add_serve(commands)
    add_engines(commands)
    others = (
        add_load(commands),
        add_calibrate(commands),
        add_capacity(commands),
        add_fit(commands),
    )
    for command in (run, report):
        command.add_argument(
            "--verbose",
            action="store_true",
            help="also print windows, request counts, assumptions and notes",
        )
    for command in (run, plan, report, diagnose, *others):
        command.add_argument(
            "--json", action="store_true", help="print one JSON document and nothing else"
        )
    return parser


def _add_run(commands: Any) -> argparse.ArgumentParser:
    run: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a sweep, store it and report",
        description="Run a sweep, store each run and report.",
        epilog=_RUN_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "sweep",
        nargs="?",
        type=Path,
        metavar="SWEEP.yaml",
        help="the sweep file (default: the quickstart, which needs no GPU)",
    )
    run.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        action=Once,
        help="new folder for the results (default: runs/NAME-DATE-TIME)",
    )
    run.add_argument("--only", metavar="GLOB", action=Once, help=_ONLY)
    run.add_argument(
        "--share-machine",
        action="store_true",
        help="run even while another sweep measures on this machine; every run is marked",
    )
    run.set_defaults(command="run", folder=None)
    return run


def _add_report(commands: Any) -> argparse.ArgumentParser:
    report: argparse.ArgumentParser = commands.add_parser(
        "report", help="build tables, plots and page from stored runs"
    )
    report.add_argument("directory", type=Path, metavar="DIR", help="the folder of a sweep")
    report.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        action=Once,
        help="new folder for tables, plots and page (default: the folder of the sweep)",
    )
    add_dialect(report)
    report.set_defaults(command="report", folder=None)
    return report


def _has_begun(arguments: argparse.Namespace) -> bool:
    return arguments.folder is not None and os.path.lexists(arguments.folder)


def _tell(error: Exception) -> None:
    lines = [f"error: {line}" for line in str(error).splitlines()]
    _say(*lines, *(f"  {note}" for note in getattr(error, "__notes__", [])))


def _tell_interrupted(arguments: argparse.Namespace) -> None:
    folder = arguments.folder
    stored = folder is not None and any(folder.glob("*/manifest.json"))
    found = f"  finished runs are stored: harness report {folder}"
    none = "  no run had finished" if _has_begun(arguments) else None
    if arguments.command == "load":
        none = "  no request had ended: nothing is kept"
    _say("interrupted", *filter(None, [found if stored else none]))


def _say(*lines: str) -> None:
    """Tell the user; nothing is worse for nobody listening."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
