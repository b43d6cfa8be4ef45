from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from known_runs import CLOSED, OPEN, known_record, steady_records

from results.metrics import per_request
from results.parquet import table_of
from results.records import RequestRecord
from results.window import Window, measured_window


def window_of(records: Sequence[RequestRecord], load: dict[str, Any]) -> Window:
    """Return the measured window of these records under this load."""
    open_loop = load["mode"] != "concurrency"
    return measured_window(per_request(table_of(records), open_loop=open_loop), load)


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
    assert "8 requests were sent after the ramp, fewer than 3" in short.reason
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


def test_fewer_conversations_than_slots_are_all_ramp() -> None:
    """Two conversations in ten slots: their first turns are the ramp, too few are measured."""
    records = [
        known_record(t, [(10 * t + 5, 1)], sent_ms=10 * t, conversation="c", turn=t)
        for t in range(5)
    ]

    window = window_of(records, {**CLOSED, "value": 10})

    assert window.reason == (
        "4 requests were sent after the ramp, fewer than 3 for each of 10 slots (30)"
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
