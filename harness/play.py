"""One run played: the load generator on the clock that its client needs, virtual or real."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop

from adapters.base import Endpoint, EngineError, Target
from adapters.embedded.adapter import EmbeddedEndpoint
from harness.aiohttp_client import AiohttpClient
from harness.clock import MonotonicClock, VirtualClock, run_virtual, virtual_loop
from harness.descriptors import allow_open_files
from harness.http_client import HttpClient
from harness.loadgen import play, requests_of
from harness.reach import client_for
from harness.request_body import Asking
from harness.schedule import ClosedLoop, Schedule
from harness.virtual_client import VirtualClient
from results.records import RequestRecord
from workloads.base import Conversation

Answered = Callable[[RequestRecord], object]

_OWN_FILES = 64  # what this process has open beside its connections
_OPENED_BEFOREHAND = 1024  # connections at most that are opened before the clock starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run brought."""

    records: list[RequestRecord]
    clock: str  # virtual | monotonic
    origin_ns: int  # what the records' times count from, on that clock
    notes: tuple[str, ...] = ()


def play_on(
    endpoint: Endpoint,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    answered: Answered,
    asking: Asking | None = None,
) -> Played:
    """Return the records of one run against `endpoint`, over HTTP or in this process."""
    if endpoint.target is not None:
        return play_http(endpoint.target, schedule, conversations, answered, asking)
    if not isinstance(endpoint, EmbeddedEndpoint):
        raise TypeError(f"no client reaches {type(endpoint).__name__}")
    return _play_virtual(endpoint, schedule, conversations, answered)


def play_http(
    target: Target,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    answered: Answered,
    asking: Asking | None = None,
) -> Played:
    """Return the records of one run over HTTP, in real time.

    Raises `EngineError` when this process may not open so many connections.
    """
    together = _most_at_once(schedule, conversations)
    _check_open_files(together)

    async def asks() -> Played:
        clock = MonotonicClock()
        async with client_for(target, clock, asking) as client:
            for requests in requests_of(conversations):
                client.prepare(requests)
            await client.connect(min(together, _OPENED_BEFOREHAND))
            with _no_garbage_collection():
                records = await play(client, clock, schedule, conversations, progress=answered)
            return Played(
                records=client.settled(records),
                clock="monotonic",
                origin_ns=clock.origin_ns,
                notes=_notes(client),
            )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asks())


def _play_virtual(
    endpoint: EmbeddedEndpoint,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    answered: Answered,
) -> Played:
    async def asks() -> list[RequestRecord]:
        loop = virtual_loop()
        client = VirtualClient(endpoint.core, loop)
        return await play(client, VirtualClock(loop), schedule, conversations, progress=answered)

    return Played(records=run_virtual(asks()), clock="virtual", origin_ns=0)


def _most_at_once(schedule: Schedule, conversations: tuple[Conversation, ...]) -> int:
    """Return how many requests may be open at once, at the most."""
    if isinstance(schedule, ClosedLoop):
        return min(schedule.concurrency, len(conversations))
    return min(schedule.max_concurrency or len(conversations), len(conversations))


def _check_open_files(connections: int) -> None:
    allowed, needed = allow_open_files(), connections + _OWN_FILES
    if allowed < needed:
        error = EngineError(
            f"{connections} connections at once need {needed} open files, this process may have "
            f"{allowed} (RLIMIT_NOFILE)"
        )
        error.add_note("raise the hard limit with `ulimit -Hn`, or ask for less concurrency")
        raise error


def _notes(client: HttpClient | AiohttpClient) -> tuple[str, ...]:
    about = () if client.about is None else (client.about,)
    if not client.replaced_connections:
        return about
    text = (
        f"{client.replaced_connections} kept connections had been closed by the server; their "
        "requests went out again on new ones, and count from the first sending"
    )
    return (*about, text)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hold the collector off while the clock runs: a full collection stalls every stream."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
