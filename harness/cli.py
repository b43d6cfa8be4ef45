"""The command line, and the only place that catches foreseen errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import __version__

RUN_WENT_WRONG, WRONG_BEFORE_START, INTERRUPTED = 1, 2, 130  # 0 is good

_EPILOG = """\
exit codes:
  0    good
  1    a run failed, or its numbers cannot be vouched for (void, invalid)
  2    found wrong before anything started: a file, a key, a name, a model that does not fit
  130  interrupted; what was finished is stored
"""
_ONLY = """\
run only what GLOB names: an arm, a workload, a load or an engine, as in '*caching*' or
'concurrency=1'; with slashes all four, as in 'embedded/quantization=*/chat/*'. The baseline is
kept beside what is left, so that there are ratios"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    arguments = _parser().parse_args(argv)
    try:
        # Everything heavy comes in here, so that `harness --help` answers at once.
        from harness import commands  # noqa: PLC0415

        code = commands.COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _tell_interrupted(arguments)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains
        return RUN_WENT_WRONG
    except commands.FORESEEN as error:
        _tell(error)
        return RUN_WENT_WRONG if _has_begun(arguments) else WRONG_BEFORE_START
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness",
        description="Benchmark LLM serving engines: flip one optimization, prove it flipped, "
        "measure every token.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="do a sweep, store it and report on it")
    run.add_argument(
        "sweep",
        nargs="?",
        type=Path,
        metavar="SWEEP.yaml",
        help="default: a sweep that needs no GPU",
    )
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder; default: runs/NAME-DATE-TIME"
    )
    run.add_argument("--only", metavar="GLOB", help=_ONLY)
    run.set_defaults(command="run", folder=None)

    plan = commands.add_parser("plan", help="show what a sweep will do; starts nothing")
    plan.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    plan.set_defaults(command="plan", folder=None)

    report = commands.add_parser("report", help="rebuild tables, plots and page from stored runs")
    report.add_argument("directory", type=Path, metavar="DIR", help="the folder of a sweep")
    report.set_defaults(command="report", folder=None)

    for command in (run, plan, report):
        command.add_argument(
            "--json", action="store_true", help="print one JSON document and nothing else"
        )
    return parser


def _has_begun(arguments: argparse.Namespace) -> bool:
    return arguments.folder is not None and arguments.folder.exists()


def _tell(error: Exception) -> None:
    for line in str(error).splitlines():
        sys.stderr.write(f"error: {line}\n")
    for note in getattr(error, "__notes__", []):
        sys.stderr.write(f"  {note}\n")


def _tell_interrupted(arguments: argparse.Namespace) -> None:
    sys.stderr.write("interrupted\n")
    if _has_begun(arguments):
        sys.stderr.write(f"  finished runs are stored: harness report {arguments.folder}\n")


if __name__ == "__main__":
    sys.exit(main())
