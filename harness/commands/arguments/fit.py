"""What `harness fit` takes on the line. Light: the parser needs it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.commands.arguments.load import Once

_FIT = "fit step times to the measured runs of a sweep, and say how far off they are"
_NOTE = """\
the profile that it writes makes predictions for this engine, model and machine: in a sweep file
  engines: [{engine: vllm, …, profile: FILE}]       predicted beside measured
  engines: [{engine: embedded, profile: FILE}]      other loads and workloads, simulated
"""


def add_fit(commands: Any) -> argparse.ArgumentParser:
    """Add the command `fit` and return its parser."""
    command: argparse.ArgumentParser = commands.add_parser(
        "fit",
        help=_FIT,
        description=_FIT,
        epilog=_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.register("action", None, Once)
    command.add_argument("directory", type=Path, metavar="DIR", help="the folder of a sweep")
    command.add_argument(
        "--sweep",
        type=Path,
        metavar="SWEEP.yaml",
        help="the file that it was run from; default: its text as stored. Variables in it are "
        "filled from the environment again",
    )
    command.add_argument(
        "--engine", metavar="LABEL", help="which engine's runs; needed where there are several"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="where the profile goes: DIR/LABEL.profile.json"
    )
    command.set_defaults(command="fit", folder=None)
    return command
