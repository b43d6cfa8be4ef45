"""One run played: the load generator on the clock that its client needs, virtual or real."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.adapters import InProcessEngine, Target, Transport
from harness.client import RequestOptions, VirtualClient, playable
from harness.interrupts import Interrupts, answering_interrupts
from harness.load.client_facts import client_facts
from harness.load.loadgen import play, sessions_of
from harness.load.schedule import ClosedLoop, Schedule
from harness.load.shard import Shard, ShardResult, Stop, marked, offer, split
from harness.load.workers import offer_by_workers
from harness.results.store import RequestRecord
from harness.timing import VirtualClock, no_search_for_garbage, run_virtual, virtual_loop
from harness.workloads import Conversation

OnProgress = Callable[[int], object]  # how many more requests have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a run brought."""

    records: list[RequestRecord]
    clock: str  # virtual | monotonic
    origin_ns: int  # what the records' times count from, on that clock
    client: dict[str, Any] | None  # what its certificate is made from; None: virtual time
    notes: tuple[str, ...] = ()


class PlayInterrupted(KeyboardInterrupt):
    """The user ended a run over HTTP early: `played` has what had ended by then."""

    def __init__(self, played: Played, in_flight: int) -> None:
        super().__init__()
        self.played = played
        self.in_flight = in_flight  # requests that were cut off, which are not in `played`


def play_on(
    transport: Transport,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
    asking: RequestOptions | None = None,
    workers: int = 1,
) -> Played:
    """Return the records of one run over `transport`; the only place that chooses its client."""
    if transport.virtual_time:
        return _play_virtual(transport, schedule, conversations, on_progress)
    return play_http(transport, schedule, conversations, on_progress, asking, workers)


def play_http(
    target: Target,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
    asking: RequestOptions | None = None,
    workers: int = 1,
) -> Played:
    """Return the records of one run over HTTP, in real time, offered by `workers` processes.

    One is this process itself. Raises `EngineError` when a process may not open so many
    connections, and `PlayInterrupted` with what has ended when the user interrupts it.
    """
    if isinstance(schedule, ClosedLoop):
        schedule = schedule.slots(len(conversations))
    conversations, remarks = playable(target, conversations)
    whole = Shard(
        target=target,
        asking=asking or RequestOptions(),
        schedule=schedule,
        sessions=tuple(sessions_of(conversations)),
        origin_ns=time.perf_counter_ns(),
    )
    ahead_ns = _wall_ahead_ns()
    brought = _offered(split(whole, workers), on_progress)
    records = [_without_keys(record, target) for one in brought for record in one.records]
    played = Played(
        records=sorted(records, key=lambda record: record.request_id),
        clock="monotonic",
        origin_ns=whole.origin_ns,
        client=client_facts(brought, whole, _wall_ahead_ns() - ahead_ns),
        notes=(*remarks, *_notes(brought)),
    )
    cut_off = [one.cut_off for one in brought if one.cut_off is not None]
    if cut_off:
        raise PlayInterrupted(played, sum(cut_off))
    return played


def _without_keys(record: RequestRecord, target: Target) -> RequestRecord:
    """Return a record whose error repeats no key: servers quote what they refuse."""
    if record.error is None or not target.headers:
        return record
    error = record.error
    for value in target.headers.values():
        for secret in (value, value.rpartition(" ")[2]):
            error = error.replace(secret, "(not shown)")
    return replace(record, error=error)


def _offered(shares: Sequence[Shard], on_progress: OnProgress) -> list[ShardResult]:
    if len(shares) > 1:
        return offer_by_workers(shares, on_progress)
    (share,) = shares
    interrupts: list[Interrupts] = []

    @contextlib.asynccontextmanager
    async def beginning(stop: Stop) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        with answering_interrupts(lambda: loop.call_soon_threadsafe(stop)) as came:
            interrupts.append(came)
            yield time.perf_counter_ns() - share.origin_ns

    brought = offer(share, beginning, on_progress)
    return marked([brought], interrupted=any(one.came for one in interrupts))


def _play_virtual(
    engine: InProcessEngine,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
) -> Played:
    async def asks() -> list[RequestRecord]:
        loop = virtual_loop()
        texts = (part for one in conversations for turn in one.turns for part in turn.prompt)
        client = VirtualClient(engine, loop, texts)
        return await play(
            client, VirtualClock(loop), schedule, conversations, progress=lambda _: on_progress(1)
        )

    with no_search_for_garbage():
        records = run_virtual(asks())
    return Played(records=records, clock="virtual", origin_ns=0, client=None)


def _wall_ahead_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one; it changes when it is set."""
    return time.time_ns() - time.perf_counter_ns()


def _notes(brought: Sequence[ShardResult]) -> tuple[str, ...]:
    about = tuple({one.about: None for one in brought if one.about is not None})
    recorded = sum(one.facts["recorded_turns"] for one in brought)
    if recorded:
        text = (
            f"{recorded} turns of live chats hold a drawn answer: the server told no ids of its own"
        )
        about = (*about, text)
    replaced = sum(one.facts["replaced_connections"] for one in brought)
    if not replaced:
        return about
    text = (
        f"{replaced} kept connections had been closed by the server; their "
        "requests went out again on new ones, and count from the first sending"
    )
    return (*about, text)
