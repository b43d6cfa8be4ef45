from .play import LoadResult, PlayInterrupted, play_http, play_on
from .request_set import RequestSet, request_set_of, starts_of, steady_seed
from .schedule import ClosedLoop, Schedule
from .server_watch import engine_ended
from .shard import OWN_FILES, OnProgress
from .workers_needed import worker_count

__all__ = [
    "OWN_FILES",
    "ClosedLoop",
    "LoadResult",
    "OnProgress",
    "PlayInterrupted",
    "RequestSet",
    "Schedule",
    "engine_ended",
    "play_http",
    "play_on",
    "request_set_of",
    "starts_of",
    "steady_seed",
    "worker_count",
]
