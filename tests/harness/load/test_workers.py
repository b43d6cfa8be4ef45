"""Several load generator processes are one: the same requests, one clock, none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Script, ScriptedServer, serving
from streams import DONE, chunked, token, usage_event

from harness.adapters.base import Target
from harness.client.http.request_body import RequestOptions
from harness.load.loadgen import sessions_of
from harness.load.play import LoadResult, PlayInterrupted, play_http
from harness.load.schedule import ClosedLoop, OpenLoop, Slots
from harness.load.shard import Shard, split
from harness.workloads.base import Conversation, Segment, Turn

MS = 1_000_000
ANSWER = Script(writes=chunked(token("a"), token("b"), usage_event(2), DONE), pause_s=0.002)


def conversations(count: int, turns: int = 1) -> tuple[Conversation, ...]:
    """Conversations whose prompts all differ."""
    return tuple(
        Conversation(
            conversation_id=f"k{c}",
            turns=tuple(
                Turn(prompt=(Segment(100 * c + t, 8),), output_tokens=2) for t in range(turns)
            ),
        )
        for c in range(count)
    )


@contextmanager
def in_a_thread(script: Script) -> Iterator[ScriptedServer]:
    """Return a server whose loop is not that of the client."""
    ready, ended, box = threading.Event(), asyncio.Event(), list[ScriptedServer]()
    loops = list[asyncio.AbstractEventLoop]()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(script) as server:
            box.append(server)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield box[0]
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(10)


def played(
    server: ScriptedServer,
    schedule: ClosedLoop | OpenLoop,
    asked: tuple[Conversation, ...],
    workers: int,
) -> LoadResult:
    """Play with so many workers, every answer counted."""
    counted = list[int]()
    target = Target(url=server.url, model="m", fields=frozenset({"include_usage"}))
    run = play_http(target, schedule, asked, counted.append, RequestOptions(), workers)
    assert sum(counted) <= len(run.records)
    assert {one.error_kind for one in run.records} == {None}
    return run


def children() -> set[int]:
    """Processes that this one started."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.alone
def test_an_open_loop_is_the_same_with_one_worker_and_with_three() -> None:
    """The same requests, in the same order, due at the same times and sent then."""
    schedule = OpenLoop(starts_ns=tuple(15 * MS * n for n in range(20)))
    with in_a_thread(ANSWER) as server:
        one, three = (played(server, schedule, conversations(20), n) for n in (1, 3))
        bodies = [sorted(str(body) for body in part) for part in halves(server.bodies)]

    due = [[record.scheduled_ns - run.records[0].scheduled_ns for record in run.records]
           for run in (one, three)]  # fmt: skip
    assert due[0] == due[1] == list(schedule.starts_ns)
    assert [r.request_id for r in one.records] == [r.request_id for r in three.records]
    assert bodies[0] == bodies[1]
    late = sorted((r.sent_ns or 0) - r.scheduled_ns for r in three.records)
    assert late[0] >= 0
    assert late[10] < 200 * MS  # a second late would be a schedule that was not kept
    assert three.client is not None
    assert sorted(worker["requests"] for worker in three.client["workers"]) == [6, 7, 7]


def halves(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """The first and the second half."""
    return items[: len(items) // 2], items[len(items) // 2 :]


def test_a_closed_loop_keeps_its_concurrency_over_the_workers() -> None:
    """Slots split evenly, at most so many in flight, turns one after the other on one worker."""
    with in_a_thread(ANSWER) as server:
        run = played(server, ClosedLoop(concurrency=5), conversations(15, turns=3), 2)
        assert server.most_at_once == 5
        assert len(server.bodies) == 45

    assert [r.request_id for r in run.records] == sorted(r.request_id for r in run.records)
    for c in range(15):
        first, second, third = run.records[3 * c : 3 * c + 3]
        assert (first.conversation, third.turn) == (f"k{c}", 2)
        assert first.closed_ns == second.scheduled_ns
        assert second.closed_ns == third.scheduled_ns


def test_no_more_workers_are_started_than_there_is_work() -> None:
    """One slot is one worker, and that is this process."""
    with in_a_thread(ANSWER) as server:
        run = played(server, ClosedLoop(concurrency=1), conversations(3), 4)

    assert run.client is not None
    assert len(run.client["workers"]) == 1


def test_what_a_worker_cannot_do_is_said_here() -> None:
    """An error of a worker is raised as itself, and no process is left."""
    before = children()
    target = Target(url="ftp://127.0.0.1", model="m")

    with pytest.raises(ValueError, match="a URL such as http") as raised:
        play_http(target, ClosedLoop(concurrency=2), conversations(4), lambda _: None, workers=2)

    assert "in a load generator process" in raised.value.__notes__[0]
    assert children() == before


def test_what_a_worker_brings_may_be_more_than_a_pipe_holds() -> None:
    """It waits until the parent has read it, though its loop has watched the pipe."""
    with in_a_thread(ANSWER) as server:
        target = Target(url=server.url, model="m")
        run = play_http(
            target,
            ClosedLoop(concurrency=100),
            conversations(4000),
            lambda _: time.sleep(0.4),
            RequestOptions(),
            2,
        )

    assert len(run.records) == 4000


def test_an_interrupt_stops_all_workers_and_loses_nothing_that_had_ended() -> None:
    """What each has had answered comes back; what was in flight is counted and left out."""
    before, counted = children(), list[int]()

    def answered(requests: int) -> None:
        counted.append(requests)
        if sum(counted) > 20:
            counted.append(-(10**9))
            signal.raise_signal(signal.SIGINT)

    with in_a_thread(ANSWER) as server:
        target = Target(url=server.url, model="m")
        with pytest.raises(PlayInterrupted) as caught:
            play_http(target, ClosedLoop(concurrency=4), conversations(5_000), answered, None, 2)

    records = caught.value.result.records
    assert 20 < len(records) < 5_000
    assert {one.error_kind for one in records} == {None}
    assert caught.value.in_flight <= 4
    assert children() == before


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_workers_end_with_the_run(how: str) -> None:
    """A worker that is killed ends the run; an interrupt of the run ends its workers."""
    before = children()
    schedule = ClosedLoop(concurrency=2)

    def answered(_: int) -> None:
        if how == "interrupted":
            raise KeyboardInterrupt
        os.kill(min(children() - before), signal.SIGKILL)

    with in_a_thread(ANSWER) as server:
        target = Target(url=server.url, model="m")
        with pytest.raises(KeyboardInterrupt if how == "interrupted" else RuntimeError):
            play_http(target, schedule, conversations(5000), answered, RequestOptions(), 2)

    assert children() == before


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_splitting_loses_and_doubles_nothing(
    count: int, places: int, workers: int, open_loop: bool
) -> None:
    """Every conversation, start, slot and place of a cap is in exactly one share."""
    starts = tuple(range(count))
    slots = Slots(starts_ns=tuple(range(min(places, count))))
    whole = Shard(
        target=Target(url="http://127.0.0.1:1", model="m"),
        options=RequestOptions(),
        schedule=OpenLoop(starts_ns=starts, max_concurrency=places) if open_loop else slots,
        sessions=tuple(sessions_of(conversations(count))),
        origin_ns=0,
    )

    parts = split(whole, workers)

    names = [session.name for part in parts for session in part.sessions]
    assert sorted(names) == sorted(session.name for session in whole.sessions)
    kept = sorted(ns for part in parts for ns in part.schedule.starts_ns)
    assert kept == list(whole.schedule.starts_ns)
    sizes = [len(part.sessions) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    if open_loop:
        schedules = [part.schedule for part in parts if isinstance(part.schedule, OpenLoop)]
        assert sum(schedule.max_concurrency or 0 for schedule in schedules) == places
        assert all(len(p.sessions) == len(p.schedule.starts_ns) for p in parts)
    assert sum(part.most_at_once for part in parts) == whole.most_at_once


def test_results_larger_than_a_pipe_come_back_whole() -> None:
    """A pipe holds some 200 kB; two workers bring 48,000 token events."""
    many = Script(writes=[b"".join(chunked(*[token("a")] * 400, usage_event(400), DONE))])
    with in_a_thread(many) as server:
        run = played(server, ClosedLoop(concurrency=8), conversations(120), 2)

    assert run.client is not None
    assert len(run.client["workers"]) == 2
    assert {len(record.token_events) for record in run.records} == {400}
    assert len(run.records) == 120
