"""Clocks, timers, and what keeps them exact."""

from harness.timing.clock import (
    NS_PER_S,
    Clock,
    MonotonicClock,
    VirtualClock,
    VirtualLoop,
    run_virtual,
    virtual_loop,
)
from harness.timing.garbage import no_garbage_collection, no_search_for_garbage, only_new_garbage
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
