"""The load generator keeps its schedule: who is sent when, and how many at once."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from scripted_play import (
    answers_after,
    conversations,
    peak_alive,
    play_virtual,
    requests_alive,
    scheduled_ttft,
    sent,
)

from harness.client.base import Request
from harness.client.scripted import ScriptedAnswer, ScriptedClient, always, even_answer
from harness.load.arrivals import poisson_arrivals
from harness.load.loadgen import play
from harness.load.schedule import ClosedLoop, OpenLoop, Schedule
from harness.results.store.records import RequestRecord
from harness.timing.clock import VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Conversation, Segment, Turn

MS = 1_000_000
S = 1_000_000_000


def test_slots_start_spread_over_one_service_time() -> None:
    """Four slots over 100 ms start 25 ms apart, and are due exactly then."""
    records = play_virtual(
        answers_after(100 * MS), ClosedLoop(concurrency=4, ramp_ns=100 * MS), conversations(4)
    )

    assert sent(records) == [0, 25 * MS, 50 * MS, 75 * MS]
    assert [record.scheduled_ns for record in records] == sent(records)


def test_a_free_slot_takes_the_next_conversation_at_once() -> None:
    """With answers of 100 ms, each slot sends every 100 ms, in the order given."""
    records = play_virtual(
        answers_after(100 * MS), ClosedLoop(concurrency=2, ramp_ns=100 * MS), conversations(6)
    )

    assert sent(records) == [0, 50 * MS, 100 * MS, 150 * MS, 200 * MS, 250 * MS]
    assert [record.scheduled_ns for record in records] == sent(records)
    assert [record.conversation for record in records] == [f"user-{n}" for n in range(6)]


def test_conversations_start_in_the_order_given_during_the_ramp_too() -> None:
    """A slot that is done before the next one has started takes the next conversation in turn."""
    records = play_virtual(
        answers_after(10), ClosedLoop(concurrency=2, ramp_ns=50), conversations(5)
    )

    assert sent(records) == [0, 10, 20, 25, 30]


def test_no_more_slots_than_conversations() -> None:
    """Three conversations for 100 slots are spread over the ramp as three."""
    records = play_virtual(
        answers_after(MS), ClosedLoop(concurrency=100, ramp_ns=300), conversations(3)
    )

    assert sent(records) == [0, 100, 200]


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_concurrency_is_reached_and_never_passed(concurrency: int) -> None:
    """With answers of many lengths, exactly so many requests are in flight at the most."""

    def script(request: Request, sent_ns: int) -> ScriptedAnswer:
        ttft_ns = 1 + int(request.request_id[1:6]) * 31 % 97 + sent_ns % 13
        return even_answer(request, ttft_ns=ttft_ns, gap_ns=5)

    records = play_virtual(script, ClosedLoop(concurrency=concurrency), conversations(200))

    assert requests_alive(records) == concurrency
    assert len(records) == 200


def test_concurrency_counts_conversations_think_time_included() -> None:
    """A user who thinks holds the slot: conversations alive never pass the concurrency."""
    asked = conversations(10, turns=3, think_time_ns=500 * MS)

    records = play_virtual(answers_after(100 * MS), ClosedLoop(concurrency=2), asked)

    starts = sent(records)[::3]
    ends = [record.closed_ns for record in records[2::3]]
    assert peak_alive(list(zip(starts, ends, strict=True))) == 2
    assert starts[2] == ends[0] == 3 * 100 * MS + 2 * 500 * MS


def test_a_later_turn_is_due_at_the_last_byte_plus_the_think_time() -> None:
    """Think time counts from the end of the stream, not from the last token."""
    late_end = ScriptedAnswer(events=((80 * MS, 3),), closed_after_ns=100 * MS, output_tokens=3)

    records = play_virtual(
        always(late_end),
        ClosedLoop(concurrency=1),
        conversations(2, turns=3, think_time_ns=40 * MS),
    )

    due = [0, 140 * MS, 280 * MS, 380 * MS, 520 * MS, 660 * MS]
    assert [record.scheduled_ns for record in records] == due
    assert sent(records) == due


def test_nobody_thinks_before_the_first_turn() -> None:
    """Think time follows an answer; before the first turn there is none."""
    turn = Turn(prompt=(Segment(1, 10),), output_tokens=3, think_time_ns=S)
    asked = [Conversation(conversation_id="thinks", turns=(turn, turn))]

    records = play_virtual(answers_after(10), ClosedLoop(concurrency=1), asked)

    assert sent(records) == [0, 10 + S]


def test_turns_of_one_conversation_never_overlap() -> None:
    """Whatever the load, a turn is sent after the answer before has ended."""

    def script(request: Request, sent_ns: int) -> ScriptedAnswer:
        ttft_ns = 1 + (sent_ns * 7 + request.turn) % 1000
        return even_answer(request, ttft_ns=ttft_ns, gap_ns=3)

    asked = conversations(30, turns=5)
    starts = poisson_arrivals(1e6, count=30, seed=1)

    for schedule in (ClosedLoop(concurrency=7), OpenLoop(starts_ns=starts)):
        records = play_virtual(script, schedule, asked)
        for before, after in itertools.pairwise(records):
            if before.conversation == after.conversation:
                assert after.turn == before.turn + 1
                assert after.sent_ns is not None
                assert after.sent_ns >= before.closed_ns


def test_an_open_loop_starts_on_time_whatever_the_answers_do() -> None:
    """Answers of ten seconds do not move starts that are milliseconds apart."""
    starts = poisson_arrivals(200.0, count=300, seed=4)

    records = play_virtual(answers_after(10 * S), OpenLoop(starts_ns=starts), conversations(300))

    assert tuple(sent(records)) == starts
    assert tuple(record.scheduled_ns for record in records) == starts
    assert requests_alive(records) == 300


def test_a_frozen_server_is_seen_by_all_that_were_due() -> None:
    """A freeze of 2 s raises the scheduled TTFT of every request due in it, not of one.

    One place only: the next request is sent when the frozen one has ended. Counted from the
    sending, nine of ten would look fast (coordinated omission).
    """
    freeze_ns, thaw_ns = 500 * MS, 2500 * MS

    def server(request: Request, sent_ns: int) -> ScriptedAnswer:
        wait_ns = thaw_ns - sent_ns if freeze_ns <= sent_ns < thaw_ns else 0
        return ScriptedAnswer(events=((wait_ns + MS, 1),), output_tokens=1)

    starts = tuple(number * 100 * MS for number in range(20))
    records = play_virtual(server, OpenLoop(starts_ns=starts, max_concurrency=1), conversations(20))

    # before the freeze 1 ms; then request i of the frozen waits for the thaw and those before it
    expected = [MS] * 5 + [thaw_ns - start + (i + 1) * MS for i, start in enumerate(starts[5:])]
    assert scheduled_ttft(records) == expected
    ttft = [int(r.token_events[0, 0]) - s for r, s in zip(records, sent(records), strict=True)]
    assert sorted(ttft) == [MS] * 19 + [2001 * MS]


def test_waiting_for_a_place_is_seen_from_the_schedule() -> None:
    """Ten arrivals a second, one place, 500 ms of service: request i is sent 400 ms × i late."""
    starts = tuple(number * 100 * MS for number in range(8))

    records = play_virtual(
        answers_after(500 * MS), OpenLoop(starts_ns=starts, max_concurrency=1), conversations(8)
    )

    late = [
        start - record.scheduled_ns for start, record in zip(sent(records), records, strict=True)
    ]
    assert late == [400 * MS * number for number in range(8)]
    assert scheduled_ttft(records) == [(500 + 400 * number) * MS for number in range(8)]


def test_places_are_given_in_the_order_of_the_schedule() -> None:
    """Those who wait for a place start first come, first served, as many at once as allowed."""
    starts = tuple(range(40))

    records = play_virtual(
        answers_after(S), OpenLoop(starts_ns=starts, max_concurrency=4), conversations(40)
    )

    assert sent(records) == sorted(sent(records))
    assert requests_alive(records) == 4


class BusyClock:
    """A clock that moves only when told, and in sleeps: no real time, no virtual loop."""

    origin_ns = 0

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        """Return the time it was set to."""
        return self.time_ns

    raw_ns = now_ns

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Let others run, then be at `when_ns`."""
        await asyncio.sleep(0)
        self.time_ns = max(self.time_ns, when_ns)


def test_the_schedule_does_not_drift_when_sending_takes_time() -> None:
    """A sender that is busy for 30 ms each time is late once, where two are 10 ms apart."""
    clock = BusyClock()

    class BusyClient:
        async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
            now_ns = clock.now_ns()
            clock.time_ns += 30 * MS
            client = ScriptedClient(clock, always(ScriptedAnswer()))
            record = await client.send(request, scheduled_ns)
            sends.append(now_ns)
            return record

    sends: list[int] = []
    starts = tuple(ms * MS for ms in (250, 260, 650, 800, 1000))

    asyncio.run(play(BusyClient(), clock, OpenLoop(starts_ns=starts), conversations(5)))

    assert sends == [ms * MS for ms in (250, 280, 650, 800, 1000)]


@pytest.mark.parametrize(
    "schedule", [OpenLoop(starts_ns=(0, 7 * MS)), ClosedLoop(concurrency=2, ramp_ns=14 * MS)]
)
def test_the_schedule_counts_from_the_moment_when_all_requests_are_made(
    schedule: Schedule,
) -> None:
    """Building the requests takes nothing from the first start: a late clock shifts all alike."""

    async def main() -> list[RequestRecord]:
        clock = VirtualClock(virtual_loop())
        await clock.sleep_until_ns(5 * S)
        client = ScriptedClient(clock, answers_after(S))
        return await play(client, clock, schedule, conversations(2))

    assert [record.scheduled_ns for record in run_virtual(main())] == [5 * S, 5 * S + 7 * MS]
