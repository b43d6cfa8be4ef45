"""One load, sent: the load generator on the clock that its client needs, virtual or real."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.adapters import InProcessEngine, Target, Transport, masked
from harness.client import RequestOptions, VirtualClient, playable
from harness.interrupts import Interrupts, answering_interrupts
from harness.load.client_facts import client_facts
from harness.load.loadgen import play, sessions_of
from harness.load.schedule import ClosedLoop, Schedule
from harness.load.shard import OnProgress, Shard, ShardResult, Stop, marked, send_shard, split
from harness.load.workers import send_by_workers
from harness.results.store import RequestRecord
from harness.timing import VirtualClock, no_search_for_garbage, run_virtual, virtual_loop
from harness.workloads import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The records of one load, with the clock and the client that they were made with."""

    records: list[RequestRecord]
    clock: str  # virtual | monotonic
    origin_ns: int  # what the records' times count from, on that clock
    client: dict[str, Any] | None  # what its certificate is made from; None: virtual time
    notes: tuple[str, ...] = ()
    gave_up: str | None = None  # why it was ended early: its server is gone


class PlayInterrupted(KeyboardInterrupt):
    """The user ended a load over HTTP early: `result` has the requests that had ended by then."""

    def __init__(self, result: LoadResult, in_flight: int) -> None:
        super().__init__()
        self.result = result
        self.in_flight = in_flight  # requests that were cut off, which are not in `result`


def play_on(
    transport: Transport,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
    options: RequestOptions | None = None,
    workers: int = 1,
) -> LoadResult:
    """Return the records of one run over `transport`; the only place that chooses its client."""
    if transport.virtual_time:
        return _play_virtual(transport, schedule, conversations, on_progress)
    return play_http(transport, schedule, conversations, on_progress, options, workers)


def play_http(
    target: Target,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
    options: RequestOptions | None = None,
    workers: int = 1,
) -> LoadResult:
    """Return the records of one run over HTTP, in real time, sent by `workers` processes.

    One is this process itself. Raises `EngineError` when a process may not open so many
    connections, and `PlayInterrupted` with what has ended when the user interrupts it. Where the
    server is gone the result has what ended before, and the reason.
    """
    if isinstance(schedule, ClosedLoop):
        schedule = schedule.slots(len(conversations))
    conversations, remarks = playable(target, conversations)
    whole = Shard(
        target=target,
        options=options or RequestOptions(),
        schedule=schedule,
        sessions=tuple(sessions_of(conversations)),
        origin_ns=time.perf_counter_ns(),
    )
    ahead_ns = _wall_ahead_ns()
    results = _send(split(whole, workers), on_progress)
    records = [_without_keys(record, target) for one in results for record in one.records]
    result = LoadResult(
        records=sorted(records, key=lambda record: record.request_id),
        clock="monotonic",
        origin_ns=whole.origin_ns,
        client=client_facts(results, whole, _wall_ahead_ns() - ahead_ns),
        notes=(*remarks, *_notes(results)),
        gave_up=_gave_up(results),
    )
    if result.gave_up is not None:
        return result
    cut_off = [one.cut_off for one in results if one.cut_off is not None]
    if cut_off:
        raise PlayInterrupted(result, sum(cut_off))
    return result


def _without_keys(record: RequestRecord, target: Target) -> RequestRecord:
    """Return a record whose error repeats no key: servers quote what they refuse."""
    if record.error is None or not target.headers:
        return record
    return replace(record, error=masked(record.error, target.headers))


def _send(shards: Sequence[Shard], on_progress: OnProgress) -> list[ShardResult]:
    if len(shards) > 1:
        return send_by_workers(shards, on_progress)
    (shard,) = shards
    interrupts: list[Interrupts] = []

    @contextlib.asynccontextmanager
    async def beginning(stop: Stop) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        with answering_interrupts(lambda: loop.call_soon_threadsafe(stop)) as interrupt:
            interrupts.append(interrupt)
            yield time.perf_counter_ns() - shard.origin_ns

    result = send_shard(shard, beginning, on_progress)
    return marked([result], interrupted=any(one.came for one in interrupts))


def _play_virtual(
    engine: InProcessEngine,
    schedule: Schedule,
    conversations: tuple[Conversation, ...],
    on_progress: OnProgress,
) -> LoadResult:
    async def send() -> list[RequestRecord]:
        loop = virtual_loop()
        texts = (part for one in conversations for turn in one.turns for part in turn.prompt)
        client = VirtualClient(engine, loop, texts)
        return await play(
            client, VirtualClock(loop), schedule, conversations, progress=lambda _: on_progress(1)
        )

    with no_search_for_garbage():
        records = run_virtual(send())
    return LoadResult(records=records, clock="virtual", origin_ns=0, client=None)


def _wall_ahead_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one; it changes when it is set."""
    return time.time_ns() - time.perf_counter_ns()


def _gave_up(results: Sequence[ShardResult]) -> str | None:
    """Return why the load was ended, and how many requests it cut off; None: it was not."""
    reason = next((one.gave_up for one in results if one.gave_up is not None), None)
    cut_off = sum(one.cut_off or 0 for one in results)
    if reason is None or not cut_off:
        return reason
    return f"{reason}; {cut_off} requests in flight were cut off"


def _notes(results: Sequence[ShardResult]) -> tuple[str, ...]:
    about = tuple({one.about: None for one in results if one.about is not None})
    recorded = sum(one.facts["recorded_turns"] for one in results)
    if recorded:
        text = (
            f"{recorded} turns of live chats hold a drawn answer: the server told no ids of its own"
        )
        about = (*about, text)
    replaced = sum(one.facts["replaced_connections"] for one in results)
    if not replaced:
        return about
    text = (
        f"{replaced} kept connections had been closed by the server; their "
        "requests went out again on new ones, and count from the first sending"
    )
    return (*about, text)
