"""A server whose token times are known, and the client measured against it.

Names are loaded when they are first used: the server process imports nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.reference.rungs import ITL_MS, STREAMS, cores, fits, rung

__all__ = [
    "ITL_MS",
    "STREAMS",
    "cores",
    "fits",
    "rung",
]

_MODULES = {
    "ITL_MS": "rungs",
    "STREAMS": "rungs",
    "cores": "rungs",
    "fits": "rungs",
    "rung": "rungs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
