"""`harness plan`, and the plan that other commands begin with."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES, EngineAdapter
from harness.output import PlainConsole, printing
from harness.plan import Plan, make_plan
from harness.plan.printed import plan_document, print_plan
from harness.sweep_file import load_sweep


def plan(arguments: argparse.Namespace) -> int:
    """Show what a sweep will do; start nothing."""
    planned = planned_sweep(arguments.sweep, all_adapters())
    with printing():
        if arguments.json:
            print_json(plan_document(planned))
        else:
            print_plan(planned, PlainConsole())
    return 0


def all_adapters() -> dict[str, EngineAdapter]:
    """Return the adapters of all engines, by their names."""
    return {name: adapter() for name, adapter in ENGINES.items()}


def planned_sweep(path: Path, adapters: Mapping[str, EngineAdapter]) -> Plan:
    """Return the plan of a sweep file. Raises `SpecError`, `EngineError` and `WorkloadError`."""
    return make_plan(load_sweep(path, engines=tuple(adapters)), adapters)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
