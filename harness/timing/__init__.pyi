from .clock import (
    NS_PER_S,
    Clock,
    MonotonicClock,
    VirtualClock,
    VirtualLoop,
    run_virtual,
    virtual_loop,
)
from .garbage import no_garbage_collection, no_search_for_garbage, only_new_garbage
from .kernel_timer import Alarm
from .loop_lag import LoopLag
from .priority import going_first

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
