"""`harness plan`, and the plan that other commands begin with."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES
from harness.adapters.base import EngineAdapter
from harness.output import PlainConsole, printing
from harness.plan.document import plan_document
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.plan.text import print_plan
from harness.spec import load_sweep


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
