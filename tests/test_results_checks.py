from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from known_runs import CLOSED, OPEN, known_manifest, known_record, steady_records

from results.checks import Doubt, doubts, same_settings
from results.metrics import run_figures
from results.parquet import table_of
from results.records import RequestRecord


def doubts_of(records: Sequence[RequestRecord], **manifest: Any) -> dict[str, Doubt]:
    """Return the doubts about a run of these records, by name."""
    whole = known_manifest(**manifest)
    return {d.name: d for d in doubts(run_figures(table_of(records), whole), whole)}


def test_a_good_run_raises_no_doubt() -> None:
    """600 measured requests in a steady closed loop: nothing to say."""
    assert doubts_of(steady_records(2, 301)) == {}


def test_every_doubt_says_what_was_seen_and_what_to_do() -> None:
    """A run with many faults names each with a message and a remedy."""
    records = [
        known_record(0, [(5, 1), (9, 1)], output_tokens=4, asked_tokens=8, source="client"),
        known_record(1, [(5, 4)], closed_ms=4),
        known_record(2, error_kind="timeout"),
    ]

    found = doubts_of(records, skipped_rows={"too long": 2}, load={**CLOSED, "value": 9})

    assert set(found) == {
        "failed_share", "p99_unreliable", "whole_run", "shorter_than_asked", "usage_missing",
        "token_times_unknown", "single_event", "concurrency_not_reached", "times_out_of_order",
        "rows_skipped",
    }  # fmt: skip
    assert all(doubt.message and doubt.remedy for doubt in found.values())


def test_p99_says_how_many_requests_to_ask_for() -> None:
    """Two slots, 100 rounds: 198 measured, 101 short, so 301 instead of 200."""
    doubt = doubts_of(steady_records(2, 100))["p99_unreliable"]

    assert doubt.message == "P99 rests on 198 requests; it is reliable from 299 on"
    assert doubt.remedy == "101 more are needed: ask for 301 requests instead of 200"


def test_p99_of_a_timed_load_says_how_long_to_run() -> None:
    """60 requests in 30 s: five times the requests take about 150 s."""
    records = [known_record(i, [(500 * i + 5, 1)], sent_ms=500 * i) for i in range(60)]

    doubt = doubts_of(records, load={**OPEN, "requests": None, "duration_s": 30.0})[
        "p99_unreliable"
    ]

    assert doubt.remedy == "239 more are needed: raise duration from 30 s to about 150 s"


def test_a_whole_run_says_why() -> None:
    """The reason of the window is passed on."""
    doubt = doubts_of(steady_records(2, 3))["whole_run"]

    assert "4 requests were sent after the ramp" in doubt.message


def test_failures_below_the_limit_are_told_apart_from_too_many() -> None:
    """One failure of 602 is within 1 %, seven are not; the limit is the sweep's."""
    records = steady_records(2, 301)
    for i in range(7):
        records[100 + i] = known_record(100 + i, sent_ms=5000, error_kind="timeout")

    few = doubts_of(records[:100] + records[100:101] + steady_records(2, 301)[101:])
    many = doubts_of(records)
    allowed = doubts_of(records, max_failed_share=0.05)

    assert few["some_failed"].message.startswith("1 of 602 requests failed (timeout 1)")
    assert many["failed_share"].message == (
        "1.2% of the requests failed (timeout 7), the limit is 1.0%"
    )
    assert set(few) == set(allowed) == {"some_failed"}
    assert set(many) == {"failed_share"}


def test_answers_shorter_than_asked_are_counted() -> None:
    """Arms that stop early do less work, so the tokens that are missing are named."""
    records = steady_records(2, 301)
    records[9] = known_record(9, [(500, 3)], sent_ms=410, asked_tokens=500)

    doubt = doubts_of(records)["shorter_than_asked"]

    assert doubt.message == "1 of 602 answers are shorter than asked (3,008 tokens of 3,505)"


def test_failed_answers_are_not_called_short() -> None:
    """A cut stream is a failure, counted as one and nowhere else."""
    records = steady_records(2, 301)
    records[9] = known_record(9, [(500, 1)], sent_ms=410, asked_tokens=9, error_kind="truncated")

    assert set(doubts_of(records)) == {"some_failed"}


def test_a_queue_inside_the_engine_is_pointed_at() -> None:
    """85 sequences of 6 tokens fill a step of 512: a load of 100 waits, and it is said why."""
    records = steady_records(100, 4)
    load = {**CLOSED, "value": 100}

    limited = doubts_of(records, load=load, facts={"running_limit": 85})
    roomy = doubts_of(records, load=load, facts={"running_limit": 100})

    assert "at most 85 sequences at once, 100 were asked" in limited["engine_runs_fewer"].message
    assert "engine_runs_fewer" not in roomy


def test_concurrency_counts_think_time() -> None:
    """Two users who think between turns are two alive, though one request is in flight."""
    thinking = [
        known_record(2 * t + c, [(start + 5, 1)], sent_ms=start, conversation=f"c{c}", turn=t)
        for t in range(4)
        for c in range(2)
        for start in [100 * t + 50 * c]
    ]
    alone = [
        known_record(i, [(10 * i + 10, 1)], sent_ms=10 * i) for i in range(8)
    ]  # each is sent as the one before ends

    assert "concurrency_not_reached" not in doubts_of(thinking)
    assert doubts_of(alone)["concurrency_not_reached"].message == (
        "at most 1 conversations were alive at once, 2 were asked"
    )


def test_a_client_that_falls_behind_the_schedule_is_noticed() -> None:
    """100 requests/s are due, every 16 ms one is sent: 62.5 were delivered."""
    records = [
        known_record(i, [(16 * i + 5, 1)], scheduled_ms=10 * i, sent_ms=16 * i) for i in range(1000)
    ]

    doubt = doubts_of(records, load={**OPEN, "value": 100.0})["load_not_delivered"]

    assert doubt.message == "62.5 conversations/s were started, the schedule has 100"


def test_one_late_send_is_no_failure_to_deliver() -> None:
    """A single delay within the schedule leaves the rate as it was."""
    due_ms = [250, 260, 650, 800, 1000]
    sent_ms = [250, 280, 650, 800, 1000]
    records = [
        known_record(i, [(sent + 5, 1)], scheduled_ms=due, sent_ms=sent)
        for i, (due, sent) in enumerate(zip(due_ms, sent_ms, strict=True))
    ]

    assert "load_not_delivered" not in doubts_of(records, load=OPEN)


@pytest.mark.parametrize(
    "record",
    [
        known_record(9, [(400, 5)], sent_ms=410),
        known_record(9, [(500, 5)], sent_ms=410, closed_ms=499),
        known_record(9, [(500, 2), (490, 3)], sent_ms=410, closed_ms=510),
    ],
)
def test_impossible_times_are_noticed(record: RequestRecord) -> None:
    """An answer before its question, an end before its last token, tokens in reverse."""
    records = steady_records(2, 301)
    records[9] = record

    assert doubts_of(records)["times_out_of_order"].message.startswith("1 requests")


def test_a_flip_that_the_load_could_not_show_is_named() -> None:
    """Only flipped toggles are doubted: what the baseline has as well is no news."""
    idle = {"verdict": "not exercised", "requested": "off", "effective": "off"}
    evidence = {"speculative": idle, "prefix_caching": idle | {"verdict": "verified"}}
    evidence["chunked_prefill"] = idle
    flips: dict[str, Any] = {name: {} for name in ("speculative", "prefix_caching")}

    found = doubts_of(steady_records(2, 301), evidence=evidence, flipped=flips)

    assert set(found) == {"toggle_not_exercised"}
    assert found["toggle_not_exercised"].message.endswith("took effect: speculative")


@pytest.mark.parametrize(("effective", "doubted"), [("fp8", False), ("auto", True), (None, True)])
def test_a_flip_without_a_counter_rests_on_the_engine_s_word(
    effective: str | None, doubted: bool
) -> None:
    """Where nothing is counted the engine's own settings suffice; silence does not."""
    proof = {"verdict": "unverifiable", "requested": "fp8", "effective": effective}

    found = doubts_of(
        steady_records(2, 301), evidence={"kv_cache_dtype": proof}, flipped={"kv_cache_dtype": {}}
    )

    assert ("toggle_unverifiable" in found) is doubted


def test_a_run_that_sent_nothing_is_doubted_once() -> None:
    """No request: one doubt, not one for each figure that is absent."""
    assert set(doubts_of([])) == {"nothing_sent"}


def _arm(arm: str, effective: dict[str, str | None], flipped: str | None = None) -> dict[str, Any]:
    evidence = {toggle: {"effective": value} for toggle, value in effective.items()}
    flips: dict[str, Any] = {} if flipped is None else {flipped: {}}
    return known_manifest(key=arm, arm=arm, evidence=evidence, flipped=flips)


def test_two_labels_for_one_setting_are_noticed() -> None:
    """The engine runs prefix caching under both labels: the arm is named, not the baseline."""
    runs = [
        _arm("baseline", {"prefix_caching": "on", "chunked_prefill": "on"}),
        _arm("baseline-again", {"prefix_caching": "on", "chunked_prefill": "on"}),
        _arm("prefix_caching=off", {"prefix_caching": "on", "chunked_prefill": "on"}),
        _arm("chunked_prefill=off", {"prefix_caching": "on", "chunked_prefill": "off"}),
    ]

    found = same_settings(runs)

    assert set(found) == {"prefix_caching=off"}
    assert found["prefix_caching=off"].message.endswith("same settings as baseline")


def test_an_engine_that_does_not_tell_is_not_accused() -> None:
    """Where the engine says nothing of the flipped toggle, nothing follows from the rest."""
    runs = [
        _arm("baseline", {"prefix_caching": "on", "overlap": None}),
        _arm("overlap=off", {"prefix_caching": "on", "overlap": None}, flipped="overlap"),
        _arm("silent", {}),
        _arm("silent-too", {}),
    ]

    assert same_settings(runs) == {}
