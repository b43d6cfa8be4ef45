"""The load generator loses no request, and only bugs and interrupts come out of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import pytest
from scripted_play import (
    answers_after,
    conversations,
    play_virtual,
    requests_alive,
)

from harness.client.base import Request
from harness.client.scripted import ScriptedAnswer, ScriptedClient, even_answer
from harness.load.arrivals import poisson_arrivals
from harness.load.loadgen import play, requests_of
from harness.load.schedule import ClosedLoop, OpenLoop, Schedule
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock, VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Conversation

MS = 1_000_000
S = 1_000_000_000


SCHEDULES: list[Schedule] = [
    ClosedLoop(concurrency=3, ramp_ns=10),
    OpenLoop(starts_ns=tuple(range(0, 120, 10))),
    OpenLoop(starts_ns=(0,) * 12, max_concurrency=2),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_turn_has_one_record_in_order(schedule: Schedule) -> None:
    """Records stand in the order of conversations and turns, one for each, ids unique."""
    asked = conversations(12, turns=4, think_time_ns=3)

    records = play_virtual(answers_after(17), schedule, asked)

    ids = [record.request_id for record in records]
    assert ids == [request.request_id for row in requests_of(asked) for request in row]
    assert ids == sorted(set(ids))
    assert len(ids) == 48


def test_request_ids_sort_as_they_stand_however_many_there_are() -> None:
    """Ids are unique and in order beyond 100,000 conversations and 100 turns."""
    many = requests_of(conversations(1) * 100_002)
    long = requests_of(conversations(1, turns=102))

    for ids in ([row[0].request_id for row in many], [one.request_id for one in long[0]]):
        assert ids == sorted(set(ids))
    assert requests_of(conversations(13, turns=4))[12][3].request_id == "c00012-t03"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClosedLoop(concurrency=0), "concurrency must be at least 1"),
        (lambda: ClosedLoop(concurrency=1, ramp_ns=-1), "ramp_ns"),
        (lambda: OpenLoop(starts_ns=(2, 1)), "in order"),
        (lambda: OpenLoop(starts_ns=(-1, 1)), "negative"),
        (lambda: OpenLoop(starts_ns=(), max_concurrency=0), "max_concurrency"),
    ],
)
def test_a_load_that_cannot_be_is_refused(make: Callable[[], Schedule], message: str) -> None:
    """Values without a meaning raise when the schedule is made, not while it runs."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_dead_server_fails_every_request_and_ends(schedule: Schedule) -> None:
    """Refused connections are records with kind and text; later turns are still tried."""

    def dead(request: Request, sent_ns: int) -> ScriptedAnswer:
        raise ConnectionRefusedError(111, "Connection refused")

    records = play_virtual(dead, schedule, conversations(12, turns=2))

    assert len(records) == 24
    assert {record.error_kind for record in records} == {"connect_refused"}
    assert {record.error for record in records} == {
        "ConnectionRefusedError: [Errno 111] Connection refused"
    }
    assert all(record.sent_ns is None for record in records)


def test_a_failed_turn_does_not_end_its_conversation() -> None:
    """The next turn is due at the failure plus the think time, and is sent."""

    def server(request: Request, sent_ns: int) -> ScriptedAnswer:
        if request.turn == 1:
            return ScriptedAnswer(closed_after_ns=70, raises=TimeoutError())
        return ScriptedAnswer(events=((100, 1),))

    first, failed, last = play_virtual(
        server, ClosedLoop(concurrency=1), conversations(1, turns=3, think_time_ns=5)
    )

    assert (first.error_kind, last.error_kind) == (None, None)
    assert (failed.error_kind, failed.error) == ("timeout", "TimeoutError")
    assert (failed.scheduled_ns, failed.closed_ns) == (105, 175)
    assert last.scheduled_ns == last.sent_ns == 180


class OwnError(Exception):
    """What an engine or a bug may raise, with notes for the user."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("bug", [OwnError("a bug"), FileNotFoundError("a file"), EOFError()])
def test_a_bug_comes_out_as_itself(schedule: Schedule, bug: Exception) -> None:
    """What a network cannot cause stops the run at once, ungrouped, with its own cause."""
    bug.__cause__ = ZeroDivisionError()
    sent_ids: list[str] = []

    def buggy(request: Request, sent_ns: int) -> ScriptedAnswer:
        sent_ids.append(request.request_id)
        return ScriptedAnswer(closed_after_ns=25, raises=bug if len(sent_ids) == 2 else None)

    with pytest.raises(type(bug)) as caught:
        play_virtual(buggy, schedule, conversations(12))

    assert caught.value is bug
    assert isinstance(bug.__cause__, ZeroDivisionError)
    assert len(sent_ids) < 12


def test_a_client_that_swallows_a_request_is_a_bug_not_a_smaller_number() -> None:
    """A client that cancels itself leaves no record, and the run says so."""

    class Swallows:
        async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
            raise asyncio.CancelledError

    async def main() -> None:
        clock = VirtualClock(virtual_loop())
        await play(Swallows(), clock, ClosedLoop(concurrency=1), conversations(2))

    with pytest.raises(RuntimeError, match="2 requests but 0 records"):
        run_virtual(main())


def test_starts_and_conversations_must_be_as_many() -> None:
    """An open loop with a start too few does not drop a conversation in silence."""
    with pytest.raises(ValueError, match="1 starts for 2 conversations"):
        play_virtual(answers_after(1), OpenLoop(starts_ns=(0,)), conversations(2))


@pytest.mark.parametrize("schedule", [ClosedLoop(concurrency=2), OpenLoop(starts_ns=())])
def test_nothing_to_ask_ends_at_once(schedule: Schedule) -> None:
    """No conversations give no records."""
    assert play_virtual(answers_after(1), schedule, []) == []


def test_a_conversation_without_turns_holds_up_nobody() -> None:
    """It has no record, and the slot goes on to the next."""
    empty = Conversation(conversation_id="empty", turns=())
    asked = [empty, *conversations(2), empty]

    records = play_virtual(answers_after(10), ClosedLoop(concurrency=1), asked)

    assert [(record.conversation, record.sent_ns) for record in records] == [
        ("user-0", 0),
        ("user-1", 10),
    ]


def test_progress_hears_of_each_request_once_as_it_ends() -> None:
    """The callback gets the same records, in the order in which they ended."""
    heard: list[RequestRecord] = []

    def shrinking(request: Request, sent_ns: int) -> ScriptedAnswer:
        return ScriptedAnswer(events=((100 - 30 * int(request.request_id[1:6]), 1),))

    records = play_virtual(shrinking, ClosedLoop(concurrency=3), conversations(3), heard.append)

    assert [record.closed_ns for record in heard] == [40, 70, 100]
    assert heard[::-1] == records


@pytest.mark.parametrize(
    "schedule",
    [ClosedLoop(concurrency=3), OpenLoop(starts_ns=(0, 0, 0, 50, 60), max_concurrency=3)],
)
def test_a_cancelled_run_hands_over_what_it_has(schedule: Schedule) -> None:
    """Finished requests are whole, those in flight `cancelled`, the others never sent."""
    heard: list[RequestRecord] = []

    def server(request: Request, sent_ns: int) -> ScriptedAnswer:
        sent_ids.append(request.request_id)
        return ScriptedAnswer(events=((30 if request.request_id < "c00001" else 200, 1),))

    async def main() -> int:
        loop = virtual_loop()
        clock = VirtualClock(loop)
        asked = conversations(5)
        playing = asyncio.create_task(
            play(ScriptedClient(clock, server), clock, schedule, asked, progress=heard.append)
        )
        await clock.sleep_until_ns(55)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await clock.sleep_until_ns(10_000)
        return len(asyncio.all_tasks())

    sent_ids: list[str] = []
    tasks_left = run_virtual(main())

    kinds = {record.request_id: record.error_kind for record in heard}
    assert kinds == {
        "c00000-t00": None,
        "c00001-t00": "cancelled",
        "c00002-t00": "cancelled",
        "c00003-t00": "cancelled",
    }
    assert sorted(sent_ids) == sorted(kinds)
    assert {record.closed_ns for record in heard} == {30, 55}
    assert tasks_left == 1


@pytest.mark.parametrize("virtual", [True, False])
def test_control_c_ends_a_run_cleanly(*, virtual: bool) -> None:
    """An interrupt comes out as KeyboardInterrupt after those in flight are recorded."""
    heard: list[RequestRecord] = []
    sent_ids: list[str] = []

    def server(request: Request, sent_ns: int) -> ScriptedAnswer:
        sent_ids.append(request.request_id)
        if len(sent_ids) == 4:
            signal.raise_signal(signal.SIGINT)
        return ScriptedAnswer(closed_after_ns=60 * S)

    async def main() -> None:
        clock = VirtualClock(virtual_loop()) if virtual else MonotonicClock()
        client = ScriptedClient(clock, server)
        await play(
            client, clock, ClosedLoop(concurrency=4), conversations(9), progress=heard.append
        )

    with pytest.raises(KeyboardInterrupt):
        (run_virtual if virtual else asyncio.run)(main())

    assert [record.error_kind for record in heard] == ["cancelled"] * 4
    assert all(record.closed_ns < 60 * S for record in heard)


def facts(records: list[RequestRecord]) -> list[tuple[object, ...]]:
    """All that a record holds, with plain lists for arrays."""
    return [
        tuple(
            field.tolist() if name == "token_events" else field
            for name in record.__slots__
            for field in [getattr(record, name)]
        )
        for record in records
    ]


def test_the_same_inputs_give_the_same_records() -> None:
    """Two virtual runs agree in every field of every record."""

    def script(request: Request, sent_ns: int) -> ScriptedAnswer:
        return even_answer(request, ttft_ns=MS + sent_ns % 997, gap_ns=MS)

    def run() -> list[tuple[object, ...]]:
        starts = poisson_arrivals(50.0, count=40, seed=9)
        asked = conversations(40, turns=3, think_time_ns=20 * MS)
        return facts(play_virtual(script, OpenLoop(starts_ns=starts, max_concurrency=6), asked))

    assert run() == run()


@pytest.mark.parametrize(
    "schedule",
    [
        ClosedLoop(concurrency=2, ramp_ns=10 * MS),
        OpenLoop(starts_ns=(0, 5 * MS, 5 * MS, 30 * MS), max_concurrency=2),
    ],
)
def test_a_real_loop_keeps_the_virtual_schedule(schedule: Schedule) -> None:
    """On a real clock nothing is sent early, and the same requests come in the same order."""
    asked = conversations(4, turns=2, think_time_ns=5 * MS)
    script = answers_after(12 * MS)

    async def main() -> list[RequestRecord]:
        clock = MonotonicClock()
        return await play(ScriptedClient(clock, script), clock, schedule, asked)

    virtual = play_virtual(script, schedule, asked)
    real = asyncio.run(main())

    assert [r.request_id for r in real] == [r.request_id for r in virtual]
    assert requests_alive(real) <= 2
    for real_record, virtual_record in zip(real, virtual, strict=True):
        assert real_record.sent_ns is not None
        assert virtual_record.sent_ns is not None
        assert real_record.sent_ns >= max(real_record.scheduled_ns, virtual_record.sent_ns)
        assert real_record.sent_ns - virtual_record.sent_ns < S  # a busy machine, not a wrong plan
