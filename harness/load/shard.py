"""A share of a run's load over HTTP: what one process offers, and what it brings back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvloop

from harness.adapters import EngineError, Target
from harness.client import RequestOptions, allow_open_files, client_for
from harness.load.loadgen import CANCELLED, Session, play_sessions
from harness.load.schedule import OpenLoop, Slots
from harness.results.store import RequestRecord
from harness.timing import Alarm, LoopLag, MonotonicClock, going_first, no_garbage_collection

Stop = Callable[[], None]  # ends what is played early; to be called in its loop
# Entered when everything is ready, and left when the answers are read: tells when the schedule's
# times begin, on the run's clock, and may stop what is played.
Beginning = Callable[[Stop], AbstractAsyncContextManager[int]]

OWN_FILES = 64  # what a process has open beside its connections
_TOLD_S = 0.2
_OPENED_BEFOREHAND = 1024  # connections at most that are opened before the clock starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Conversations with their part of the schedule, and how they are asked."""

    target: Target
    asking: RequestOptions
    schedule: Slots | OpenLoop
    sessions: tuple[Session, ...]
    origin_ns: int  # of the run's clock, on the machine's monotonic clock
    processes: int = 1  # that offer the run together

    @property
    def most_at_once(self) -> int:
        """Requests that may be open at once, at the most."""
        most = len(self.sessions)
        if isinstance(self.schedule, Slots):
            return min(len(self.schedule.starts_ns), most)
        return min(self.schedule.max_concurrency or most, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """What a share brought: its records, and what is known of the client that made them."""

    records: list[RequestRecord]
    kind: str  # http | aiohttp
    about: str | None
    opened_connections: int
    open_files_limit: int
    facts: dict[str, Any]  # as in a manifest's client.workers
    cut_off: int | None = None  # requests in flight when it was stopped; None: it came to its end


def marked(brought: Sequence[ShardResult], *, interrupted: bool) -> list[ShardResult]:
    """Return what the shares of one run brought; of an interrupted run each was stopped.

    Also one that had just come to its end: an interrupt is not to be lost.
    """
    if not interrupted:
        return list(brought)
    return [replace(one, cut_off=one.cut_off or 0) for one in brought]


def split(share: Shard, workers: int) -> tuple[Shard, ...]:
    """Return the parts of `share` for so many processes, fewer where there is too little to do.

    Conversations, slots and a cap on concurrency are dealt out one by one: in open loop the same
    requests are due at the same times, in closed loop slots and conversations are split evenly.
    """
    schedule = share.schedule
    places = len(schedule.starts_ns)
    if isinstance(schedule, OpenLoop) and schedule.max_concurrency is not None:
        places = min(places, schedule.max_concurrency)
    parts = max(1, min(workers, places, len(share.sessions)))
    return tuple(
        replace(
            share,
            schedule=_dealt(schedule, part, parts),
            processes=parts,
            sessions=share.sessions[part::parts],
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


def offer(share: Shard, beginning: Beginning, told: Callable[[int], object]) -> ShardResult:
    """Return what came of `share`, offered by this process in real time.

    `told` hears some times a second how many more requests have ended, 0 when none has. What has
    ended is returned also where it is stopped early, by what `beginning` was given. Raises
    `EngineError` when the process may not open so many connections.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_on_time(share, beginning, told))


async def _on_time(
    share: Shard, beginning: Beginning, told: Callable[[int], object]
) -> ShardResult:
    with Alarm() as alarm:
        return await _offer(share, MonotonicClock(share.origin_ns, alarm), beginning, told)


async def _offer(
    share: Shard, clock: MonotonicClock, beginning: Beginning, told: Callable[[int], object]
) -> ShardResult:
    limit = _open_files(share.most_at_once)
    ended, playing = list[RequestRecord](), _Playing()
    async with client_for(share.target, clock, share.asking) as client:
        for session in share.sessions:
            client.prepare(one for one in session.requests if one.turn == 0 or not one.live)
        await client.connect(min(share.most_at_once, _OPENED_BEFOREHAND))
        with no_garbage_collection():  # before the start: a collection takes as long as many sends
            async with beginning(playing.stop) as begin_ns:
                with (
                    going_first(share.processes) as priority,
                    LoopLag() as lag,
                    _count(told, ended),
                ):
                    used = _used()
                    play = play_sessions(
                        client,
                        clock,
                        share.schedule,
                        share.sessions,
                        begin_ns,
                        progress=ended.append,
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
        """Return whether `play` came to its own end, or else was stopped."""
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
def _count(told: Callable[[int], object], ended: list[RequestRecord]) -> Iterator[None]:
    """Enter to tell now and then how many more have ended: seldom, since the load comes first."""
    loop, known = asyncio.get_running_loop(), 0

    def tell() -> None:
        nonlocal known
        timers[0] = loop.call_later(_TOLD_S, tell)
        told(len(ended) - known)
        known = len(ended)

    timers = [loop.call_later(_TOLD_S, tell)]
    try:
        yield
    finally:
        timers[0].cancel()
        told(len(ended) - known)


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
