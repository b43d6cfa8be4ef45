"""A shard of a run's load over HTTP: what one process sends, and its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from harness.adapters import EngineError, Target
from harness.client import RequestOptions, allow_open_files, client_for
from harness.load import server_watch
from harness.load.loadgen import CANCELLED, Session, play_sessions
from harness.load.schedule import OpenLoop, Slots
from harness.load.server_watch import Patience, ServerWatch
from harness.results.store import RequestRecord
from harness.timing import Alarm, LoopLag, MonotonicClock, going_first, no_garbage_collection

OnProgress = Callable[[int], object]  # gets how many more requests have ended
Stop = Callable[[], None]  # ends what is played early; to be called in its loop
# Entered when everything is ready, and left when the answers are read: yields when the schedule's
# times begin, on the run's clock, and may stop what is played.
Beginning = Callable[[Stop], AbstractAsyncContextManager[int]]

OWN_FILES = 64  # what a process has open beside its connections
_PROGRESS_S = 0.2
_OPENED_BEFOREHAND = 1024  # connections at most that are opened before the clock starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Conversations with their part of the schedule, and how their requests are sent."""

    target: Target
    options: RequestOptions
    schedule: Slots | OpenLoop
    sessions: tuple[Session, ...]
    origin_ns: int  # of the run's clock, on the machine's monotonic clock
    processes: int = 1  # that send the run together
    patience: Patience = field(default_factory=lambda: server_watch.PATIENCE)

    @property
    def most_at_once(self) -> int:
        """Requests that may be open at once, at the most."""
        most = len(self.sessions)
        if isinstance(self.schedule, Slots):
            return min(len(self.schedule.starts_ns), most)
        return min(self.schedule.max_concurrency or most, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The records of a shard, and what is known of the client that made them."""

    records: list[RequestRecord]
    kind: str  # http | aiohttp
    about: str | None
    opened_connections: int
    open_files_limit: int
    facts: dict[str, Any]  # as in a manifest's client.workers
    cut_off: int | None = None  # requests in flight when it was stopped; None: it ended by itself
    gave_up: str | None = None  # why it was stopped by itself: its server is gone


def marked(results: Sequence[ShardResult], *, interrupted: bool) -> list[ShardResult]:
    """Return the results of one run's shards; of an interrupted run each counts as stopped.

    Also one that had just ended by itself: an interrupt is not to be lost.
    """
    if not interrupted:
        return list(results)
    return [replace(one, cut_off=one.cut_off or 0, gave_up=None) for one in results]


def split(shard: Shard, workers: int) -> tuple[Shard, ...]:
    """Split `shard` for so many processes, fewer where there is too little to do.

    Conversations, slots and a cap on concurrency are dealt out one by one: in open loop the same
    requests are due at the same times, in closed loop slots and conversations are split evenly.
    """
    schedule = shard.schedule
    places = len(schedule.starts_ns)
    if isinstance(schedule, OpenLoop) and schedule.max_concurrency is not None:
        places = min(places, schedule.max_concurrency)
    parts = max(1, min(workers, places, len(shard.sessions)))
    return tuple(
        replace(
            shard,
            schedule=_dealt(schedule, part, parts),
            processes=parts,
            sessions=shard.sessions[part::parts],
        )
        for part in range(parts)
    )


def _dealt(schedule: Slots | OpenLoop, part: int, parts: int) -> Slots | OpenLoop:
    starts_ns = schedule.starts_ns[part::parts]
    if isinstance(schedule, Slots):
        return Slots(starts_ns=starts_ns)
    cap = schedule.max_concurrency
    if cap is not None:
        cap = len(range(part, cap, parts))
    return OpenLoop(starts_ns=starts_ns, max_concurrency=cap)


def send_shard(shard: Shard, beginning: Beginning, on_progress: OnProgress) -> ShardResult:
    """Send `shard` from this process, in real time, and return its result.

    `on_progress` gets the number of requests that ended since its last call, some times a second,
    0 when none has. Requests that had ended are returned also where it is stopped early, by what
    `beginning` was given. Raises `EngineError` when the process may not open so many connections.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_on_time(shard, beginning, on_progress))


async def _on_time(shard: Shard, beginning: Beginning, on_progress: OnProgress) -> ShardResult:
    with Alarm() as alarm:
        return await _send(shard, MonotonicClock(shard.origin_ns, alarm), beginning, on_progress)


async def _send(
    shard: Shard, clock: MonotonicClock, beginning: Beginning, on_progress: OnProgress
) -> ShardResult:
    limit = _open_files(shard.most_at_once)
    ended, playing = list[RequestRecord](), _Playing()
    async with client_for(shard.target, clock, shard.options) as client:
        client.share_memory(shard.processes)
        for session in shard.sessions:
            client.prepare(one for one in session.requests if one.turn == 0 or not one.live)
        await client.connect(min(shard.most_at_once, _OPENED_BEFOREHAND))
        with no_garbage_collection():  # before the start: a collection takes as long as many sends
            async with beginning(playing.stop) as begin_ns:
                watch = ServerWatch(shard.target, client, clock, shard.patience)

                def take(record: RequestRecord) -> None:
                    ended.append(record)
                    watch.take(record)

                with (
                    going_first(shard.processes) as priority,
                    LoopLag() as lag,
                    _count(on_progress, ended),
                    watch.over(playing.stop),
                ):
                    used = _used()
                    play = play_sessions(
                        client,
                        clock,
                        shard.schedule,
                        shard.sessions,
                        begin_ns,
                        progress=take,
                    )
                    whole = await playing.over(play)
                    wall_s, cpu_s = (now - then for now, then in zip(_used(), used, strict=True))
                in_flight = sum(one.error_kind == CANCELLED for one in ended)
                records = client.settled(one for one in ended if one.error_kind != CANCELLED)
        return ShardResult(
            records=records,
            kind=client.kind,
            about=client.about,
            opened_connections=client.opened_connections,
            open_files_limit=limit,
            facts={
                "priority": priority,
                "cpu_s": cpu_s,
                "wall_s": wall_s,
                "requests": len(records),
                "loop_lag_ns": lag.facts(),
                "read_on_the_clock": client.read_on_the_clock,
                "replaced_connections": client.replaced_connections,
                "recorded_turns": client.recorded_turns,
            },
            cut_off=None if whole else in_flight,
            gave_up=watch.reason,
        )


class _Playing:
    """What is played, and may be stopped: also before it has begun."""

    def __init__(self) -> None:
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def over(self, play: Coroutine[Any, Any, object]) -> bool:
        """Return whether `play` ended by itself, or else was stopped."""
        self._task = asyncio.create_task(play)
        if self._stopped:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            return False
        return True


@contextmanager
def _count(on_progress: OnProgress, ended: list[RequestRecord]) -> Iterator[None]:
    """Enter to report how many more have ended: seldom, since the load comes first."""
    loop, known = asyncio.get_running_loop(), 0

    def report() -> None:
        nonlocal known
        timers[0] = loop.call_later(_PROGRESS_S, report)
        on_progress(len(ended) - known)
        known = len(ended)

    timers = [loop.call_later(_PROGRESS_S, report)]
    try:
        yield
    finally:
        timers[0].cancel()
        on_progress(len(ended) - known)


def _used() -> tuple[float, float]:
    """Return this process's time so far, in seconds: on the wall, and on a processor."""
    return time.perf_counter(), time.process_time()


def _open_files(connections: int) -> int:
    """Return how many files may be open; raises `EngineError` where the load needs more."""
    allowed, needed = allow_open_files(), connections + OWN_FILES
    if allowed < needed:
        error = EngineError(
            f"{connections} connections at once need {needed} open files, this process may have "
            f"{allowed} (RLIMIT_NOFILE)"
        )
        error.add_note("raise the hard limit with `ulimit -Hn`, or ask for less concurrency")
        raise error
    return allowed
