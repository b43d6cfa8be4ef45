"""Clocks, timers, and what keeps them exact.

Names are loaded when they are first used: a process that sends at exact times needs no event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.timing.clock import (
        NS_PER_S,
        Clock,
        MonotonicClock,
        VirtualClock,
        VirtualLoop,
        run_virtual,
        virtual_loop,
    )
    from harness.timing.garbage import (
        no_garbage_collection,
        no_search_for_garbage,
        only_new_garbage,
    )
    from harness.timing.kernel_timer import Alarm
    from harness.timing.loop_lag import LoopLag
    from harness.timing.priority import going_first

__all__ = [
    "NS_PER_S",
    "Alarm",
    "Clock",
    "LoopLag",
    "MonotonicClock",
    "VirtualClock",
    "VirtualLoop",
    "going_first",
    "no_garbage_collection",
    "no_search_for_garbage",
    "only_new_garbage",
    "run_virtual",
    "virtual_loop",
]

_MODULES = {
    "Alarm": "kernel_timer",
    "Clock": "clock",
    "LoopLag": "loop_lag",
    "MonotonicClock": "clock",
    "NS_PER_S": "clock",
    "VirtualClock": "clock",
    "VirtualLoop": "clock",
    "going_first": "priority",
    "no_garbage_collection": "garbage",
    "no_search_for_garbage": "garbage",
    "only_new_garbage": "garbage",
    "run_virtual": "clock",
    "virtual_loop": "clock",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
