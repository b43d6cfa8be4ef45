"""Send a load: request sets, start times, and the processes that send them."""

from harness.load.play import LoadResult, PlayInterrupted, play_http, play_on
from harness.load.request_set import RequestSet, request_set_of, starts_of, steady_seed
from harness.load.schedule import ClosedLoop, Schedule
from harness.load.shard import OWN_FILES, OnProgress
from harness.load.worker_count import worker_count

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
