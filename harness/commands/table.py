"""The commands by their names, and the errors that each may end with.

A command brings in what it needs and no more: Python takes seconds to read pandas, scipy and
matplotlib, and `harness capacity` wants none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module

# Name → the module that holds a function of that name.
_MODULES: Mapping[str, str] = {
    "run": "sweeps",
    "plan": "plan",
    "report": "sweeps",
    "diagnose": "diagnose",
    "load": "load",
    "fit": "fit",
    "serve": "serve",
    "calibrate": "calibrate",
    "engines": "engines",
    "capacity": "capacity",
}
# What a user can cause: one type a package.
_FORESEEN: Mapping[str, str] = {
    "harness.sweep_file": "SpecError",
    "harness.workloads.base": "WorkloadError",
    "harness.adapters.base": "EngineError",
    "harness.results.store.sweep_folder": "StoreError",
    "harness.machine_lock": "MachineBusyError",
}


def command(name: str) -> Callable[[argparse.Namespace], int]:
    """Return what a command does: arguments in, exit code out."""
    found: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"harness.commands.{_MODULES[name]}"), name
    )
    return found


def is_foreseen(error: Exception) -> bool:
    """Return whether a user caused this error, so that its words are enough."""
    kinds = tuple(getattr(import_module(module), name) for module, name in _FORESEEN.items())
    return isinstance(error, kinds)
