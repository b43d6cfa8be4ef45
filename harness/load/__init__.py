"""Send a load: request sets, start times, and the processes that send them.

What needs an HTTP client is loaded when it is first used: a plan draws request sets only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.load.request_set import RequestSet, request_set_of, starts_of, steady_seed
from harness.load.schedule import ClosedLoop, Schedule

if TYPE_CHECKING:
    from harness.load.play import LoadResult, PlayInterrupted, play_http, play_on
    from harness.load.shard import OWN_FILES, OnProgress
    from harness.load.workers_needed import worker_count

__all__ = [
    "OWN_FILES",
    "ClosedLoop",
    "LoadResult",
    "OnProgress",
    "PlayInterrupted",
    "RequestSet",
    "Schedule",
    "play_http",
    "play_on",
    "request_set_of",
    "starts_of",
    "steady_seed",
    "worker_count",
]

_MODULES = {
    "OWN_FILES": "shard",
    "LoadResult": "play",
    "OnProgress": "shard",
    "PlayInterrupted": "play",
    "play_http": "play",
    "play_on": "play",
    "worker_count": "workers_needed",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
