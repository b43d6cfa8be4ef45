from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from known_runs import CLOSED, OPEN, known_record, steady_records

from harness.results.metrics import per_request
from harness.results.store.manifest import LoadFacts
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord
from harness.results.window import Window, least_requests, measured_window


def window_of(records: Sequence[RequestRecord], load: dict[str, Any]) -> Window:
    """Return the measured window of these records under this load."""
    facts = LoadFacts.model_validate(load)
    return measured_window(per_request(table_of(records), open_loop=facts.is_open_loop), facts)


def test_closed_loop_runs_from_the_end_of_the_ramp_to_the_last_send() -> None:
    """Three slots, four rounds of 90 ms: ramp sends at 0, 30, 60, last send at 330."""
    window = window_of(steady_records(3, 4, service_ms=90), {**CLOSED, "value": 3})

    assert (window.kind, window.reason) == ("steady", None)
    assert (window.start_ns, window.end_ns) == (60e6, 330e6)
    assert window.length_s == pytest.approx(0.27)
    assert window.measured.tolist() == [False] * 3 + [True] * 9


def test_one_measured_request_too_few_makes_it_the_whole_run() -> None:
    """With 3 × concurrency measured requests the window stands, with one less it does not."""
    records = steady_records(3, 4, service_ms=90)

    enough = window_of(records, {**CLOSED, "value": 3})
    short = window_of(records[:-1], {**CLOSED, "value": 3})

    assert enough.kind == "steady"
    assert short.kind == "whole-run"
    assert short.reason is not None
    assert "only 8 requests sent between ramp and drain" in short.reason
    assert (short.start_ns, short.end_ns) == (0, 390e6)
    assert short.measured.all()


def test_later_turns_of_the_ramp_are_measured() -> None:
    """Only a slot's first request is ramp: the second turn of the same conversation counts."""
    records = [
        known_record(3 * c + t, [(start + 50, 1)], sent_ms=start, conversation=f"c{c}", turn=t)
        for c in range(2)
        for t in range(4)
        for start in [50 * c + 100 * t]
    ]

    window = window_of(records, CLOSED)

    assert window.start_ns == 50e6
    assert window.measured.tolist() == [False, True, True, True] * 2


def chats(conversations: int, slots: int, turns: int) -> list[RequestRecord]:
    """Return chats in a closed loop: turns of 100 ms, one after the other, slots 10 ms apart.

    A chat of an even number has one turn more, so that slots do not stay in step.
    """
    free_ms = [10.0 * slot for slot in range(slots)]
    records: list[RequestRecord] = []
    for chat in range(conversations):
        slot = free_ms.index(min(free_ms))
        for turn in range(turns + (chat % 2 == 0)):
            start_ms, free_ms[slot] = free_ms[slot], free_ms[slot] + 100
            records.append(
                known_record(
                    len(records),
                    [(start_ms + 100, 1)],
                    sent_ms=start_ms,
                    conversation=f"c{chat}",
                    turn=turn,
                )
            )
    return records


def test_the_window_ends_when_a_slot_runs_empty_for_good() -> None:
    """Three chats of 5, 4 and 5 turns in three slots: none takes the place of the one that ends.

    The second starts at 10 ms and ends at 410; the others go on to 520 with a slot empty.
    """
    window = window_of(chats(3, 3, 4), {**CLOSED, "value": 3})

    assert (window.kind, window.start_ns, window.end_ns) == ("steady", 20e6, 410e6)
    assert window.measured.sum() == 10  # 4, 3 and 3 later turns; the one at 420 is out


def test_slots_that_are_filled_again_keep_the_window_open() -> None:
    """Nine chats in three slots: it ends with the first end that no start follows."""
    records = chats(9, 3, 4)

    window = window_of(records, {**CLOSED, "value": 3})

    last_starts = sorted(
        min(r.sent_ns or 0 for r in records if r.conversation == f"c{c}") for c in range(9)
    )
    ends = sorted(max(r.closed_ns for r in records if r.conversation == f"c{c}") for c in range(9))
    assert window.end_ns == ends[6]
    assert ends[5] == last_starts[8] < ends[6] < max(r.sent_ns or 0 for r in records) + 100e6
    assert window.measured.sum() < len(records) - 3


def test_conversations_that_ran_out_are_the_reason() -> None:
    """As many chats as slots, of few turns: what is left is the whole run, and it is said why."""
    window = window_of(chats(4, 4, 3), {**CLOSED, "value": 4})

    assert window.kind == "whole-run"
    assert window.reason == (
        "only 9 requests sent between ramp and drain, a steady window needs 12"
    )


@pytest.mark.parametrize("turns", [1, 2, 4, 7])
@pytest.mark.parametrize("slots", [1, 3, 10])
def test_what_is_said_to_be_enough_is_enough(turns: int, slots: int) -> None:
    """A run of the size that `least_requests` tells is steady, whatever the turns and slots."""
    load = {**CLOSED, "value": slots}
    few = [r for r in chats(slots, slots, turns) if r.turn < turns]
    facts = LoadFacts.model_validate(load)
    enough = least_requests(per_request(table_of(few), open_loop=False), facts)
    equal = [
        known_record(
            i, [(start + 100, 1)], sent_ms=start, conversation=f"c{place}.{slot}", turn=turn
        )
        for i, (place, slot, turn) in enumerate(
            (place, slot, turn)
            for place in range(-(-enough // (turns * slots)))
            for slot in range(slots)
            for turn in range(turns)
        )
        if place * turns * slots + slot * turns < enough
        for start in [100 * (place * turns + turn) + slot]
    ]

    assert len(equal) < enough + turns
    assert window_of(equal, load).kind == "steady"


def late_slots(ramp_ms: float, slots: int = 4, each: int = 400) -> list[RequestRecord]:
    """Return answers of 100 ms in slots that start over `ramp_ms`, one after the other."""
    return [
        known_record(slot * each + number, [(start + 100, 1)], sent_ms=start)
        for slot in range(slots)
        for number in range(each)
        for start in [slot * ramp_ms / slots + 100 * number]
    ]


@pytest.mark.parametrize("ramp_s", [1, 5, 20])
def test_a_long_ramp_is_no_part_of_the_window(ramp_s: float) -> None:
    """A warm-up that compiled kernels makes a long ramp; fast slots go on before it has ended.

    The window starts when all slots have a conversation, not at the N-th first turn, which is one
    of the first slot's. Four slots of 100 ms answer 40 requests a second.
    """
    records = late_slots(ramp_s * 1000)

    window = window_of(records, {**CLOSED, "value": 4})

    assert window.kind == "steady"
    assert window.start_ns == ramp_s * 0.75e9
    assert window.end_ns == pytest.approx(40e9, rel=0.01)
    assert window.length_s is not None
    assert window.measured.sum() / window.length_s == pytest.approx(40, rel=0.02)


def test_a_load_that_never_was_whole_is_not_steady() -> None:
    """Slots that start after others have run out never have the concurrency that was asked for."""
    window = window_of(late_slots(20_000, each=40), {**CLOSED, "value": 4})

    assert window.kind == "whole-run"
    assert window.reason == "there were never 4 conversations alive at once"


def test_fewer_conversations_than_slots_are_all_ramp() -> None:
    """Two conversations in ten slots: their first turns are the ramp, too few are measured."""
    records = [
        known_record(t, [(10 * t + 5, 1)], sent_ms=10 * t, conversation="c", turn=t)
        for t in range(5)
    ]

    window = window_of(records, {**CLOSED, "value": 10})

    assert window.reason == (
        "only 4 requests sent between ramp and drain, a steady window needs 30"
    )


def test_a_burst_in_closed_loop_is_a_whole_run() -> None:
    """As many slots as requests: nothing is sent after the ramp."""
    records = steady_records(8, 1)

    window = window_of(records, {**CLOSED, "value": 8})

    assert window.kind == "whole-run"
    assert window.measured.sum() == 8


def test_open_loop_starts_after_the_warmup() -> None:
    """Due every 100 ms, warm-up 0.25 s: measured are the sends from 250 ms to the last."""
    records = [known_record(i, [(100 * i + 20, 1)], sent_ms=100 * i) for i in range(8)]

    window = window_of(records, {**OPEN, "warmup": 0.25})

    assert (window.start_ns, window.end_ns) == (250e6, 700e6)
    assert window.measured.tolist() == [False] * 3 + [True] * 5


def test_open_loop_without_warmup_measures_the_first_request() -> None:
    """The request due at the very start is measured as well."""
    records = [known_record(i, [(100 * i + 20, 1)], sent_ms=100 * i) for i in range(4)]

    window = window_of(records, OPEN)

    assert (window.kind, window.start_ns) == ("steady", 0)
    assert window.measured.all()


def test_a_burst_in_open_loop_is_a_whole_run() -> None:
    """All sent before the first answer ends: the time of sending says nothing of the server."""
    records = [known_record(i, [(500, 1), (900, 1)], sent_ms=i) for i in range(4)]

    window = window_of(records, OPEN)

    assert window.kind == "whole-run"
    assert window.reason is not None
    assert window.reason.startswith("a burst")
    assert (window.start_ns, window.end_ns) == (0, 900e6)


def test_a_warmup_longer_than_the_run_leaves_the_whole_run() -> None:
    """A warm-up that nothing follows measures nothing, and says so."""
    records = [known_record(i, [(100 * i + 20, 1)], sent_ms=100 * i) for i in range(4)]

    window = window_of(records, {**OPEN, "warmup": 60})

    assert window.kind == "whole-run"
    assert window.reason is not None
    assert "warm-up" in window.reason


def test_a_request_that_was_never_sent_stands_where_it_was_due() -> None:
    """A refused connection has no send; it counts at the time when it was due."""
    records = steady_records(2, 4)
    records[7] = known_record(7, sent_ms=None, scheduled_ms=350, closed_ms=360, error_kind="x")

    window = window_of(records, CLOSED)

    assert window.end_ns == 350e6
    assert window.measured.tolist() == [False, False] + [True] * 6


def test_an_empty_run_has_no_window() -> None:
    """Nothing sent: no start, no length to divide by, and no time lies inside."""
    window = window_of([], CLOSED)

    assert (window.start_ns, window.end_ns, window.length_s) == (None, None, None)
    assert not window.holds(np.array([0.0, 1.0])).any()


def test_a_steady_window_excludes_its_start_and_holds_its_end() -> None:
    """The last ramp send is not measured, the last send is; an absent time is never inside."""
    window = window_of(steady_records(2, 4), CLOSED)

    held = window.holds(np.array([50e6, 50e6 + 1, 350e6, 350e6 + 1, np.nan]))

    assert held.tolist() == [False, True, True, False, False]
