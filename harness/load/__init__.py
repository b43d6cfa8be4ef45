"""Offer a load: request sets, start times, and the processes that send them."""

from harness.load.play import OnProgress, Played, PlayInterrupted, play_http, play_on
from harness.load.request_set import RequestSet, request_set_of, starts_of, steady_seed
from harness.load.schedule import ClosedLoop, Schedule
from harness.load.shard import OWN_FILES
from harness.load.worker_count import worker_count

__all__ = [
    "OWN_FILES",
    "ClosedLoop",
    "OnProgress",
    "PlayInterrupted",
    "Played",
    "RequestSet",
    "Schedule",
    "play_http",
    "play_on",
    "request_set_of",
    "starts_of",
    "steady_seed",
    "worker_count",
]
