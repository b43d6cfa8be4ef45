"""The commands by their names, and the errors that each may end with."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from adapters.base import EngineError
from harness.commands.calibrate import calibrate
from harness.commands.capacity import capacity
from harness.commands.diagnose import diagnose
from harness.commands.engines import engines
from harness.commands.fit import fit
from harness.commands.load import load
from harness.commands.serve import serve
from harness.commands.sweeps import plan, report, run
from harness.spec import SpecError
from results.store import StoreError
from workloads.base import WorkloadError

# What a user can cause: one type a package.
FORESEEN = (SpecError, WorkloadError, EngineError, StoreError)

COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": run,
    "plan": plan,
    "report": report,
    "diagnose": diagnose,
    "load": load,
    "fit": fit,
    "serve": serve,
    "calibrate": calibrate,
    "engines": engines,
    "capacity": capacity,
}
