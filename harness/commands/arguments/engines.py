"""What `harness engines` takes on the line. Light: the parser needs it."""

from __future__ import annotations

import argparse
from typing import Any

_ENGINES = "list the engines and where each was found, or install one"
_INSTALL = "make an environment of its own for one version of an engine, in the user's cache folder"
INSTALLABLE = ("vllm", "sglang", "tensorrt-llm")


def add_engines(commands: Any) -> None:
    """Add the command `engines`, and `engines install` below it."""
    engines = commands.add_parser("engines", help=_ENGINES, description=_ENGINES)
    _add_json(engines)
    engines.set_defaults(command="engines", action="list", folder=None)
    actions = engines.add_subparsers(title="more", metavar="[install]")
    install = actions.add_parser("install", help=_INSTALL, description=_INSTALL)
    install.add_argument("engine", choices=INSTALLABLE)
    install.add_argument("--version", required=True, metavar="V", help="such as 0.32.0")
    install.add_argument("--cpu", action="store_true", help="the build that needs no GPU (vllm)")
    install.add_argument("--yes", action="store_true", help="do not ask")
    _add_json(install)
    install.set_defaults(action="install")


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
