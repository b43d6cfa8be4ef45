from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from known_runs import (
    CLOSED,
    OPEN,
    flips,
    known_manifest,
    known_record,
    known_row,
    steady_records,
)

from harness.results.metrics import run_metrics
from harness.results.store.manifest import Evidence
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord
from harness.results.summary import RunRow, RunWarning
from harness.results.warnings.checks import run_warnings
from harness.results.warnings.flip_checks import same_settings

FLIP = {"value": "off", "base": "on"}


def doubts_of(records: Sequence[RequestRecord], **manifest: Any) -> dict[str, RunWarning]:
    """Return the doubts about a run of these records, by name."""
    whole = known_manifest(**manifest)
    return {d.name: d for d in run_warnings(run_metrics(table_of(records), whole), whole)}


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

    assert doubt.message == "P99 rests on 198 requests and needs 299"
    assert doubt.remedy == "send 301 requests instead of 200"


def test_p99_of_a_timed_load_says_how_long_to_run() -> None:
    """60 requests in 30 s: five times the requests take about 150 s."""
    records = [known_record(i, [(500 * i + 5, 1)], sent_ms=500 * i) for i in range(60)]

    doubt = doubts_of(records, load={**OPEN, "requests": None, "duration_s": 30.0})[
        "p99_unreliable"
    ]

    assert doubt.remedy == "raise duration from 30 s to about 150 s"


def test_a_whole_run_says_why() -> None:
    """The reason of the window is passed on."""
    doubt = doubts_of(steady_records(2, 3))["whole_run"]

    assert "only 4 requests sent between ramp and drain" in doubt.message


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

    assert "at most 85 of 100 requests at once" in limited["engine_runs_fewer"].message
    assert "engine_runs_fewer" not in roomy


@pytest.mark.parametrize(
    ("requested", "effective", "step_tokens", "remedy"),
    [
        (64, "64", 512, "raise max_num_seqs"),
        (256, "256", 64, "raise max_batched_tokens"),
        (256, "64", 512, "did not take max_num_seqs 256, it reports 64"),
        (128, "128", 512, "max_num_seqs is 128 already"),
        (128, None, 512, "max_num_seqs is 128 already"),
    ],
)
def test_a_limit_that_allows_the_load_already_is_not_to_be_raised(
    requested: int, effective: str | None, step_tokens: int, remedy: str
) -> None:
    """What the engine did not take, or lowered for its memory, is not raised any further."""
    values = {"max_num_seqs": (requested, effective), "max_batched_tokens": (step_tokens, None)}
    evidence = {
        name: {
            "requested": str(wanted),
            "effective": reported,
            "observed": None,
            "verdict": "unverifiable",
        }
        for name, (wanted, reported) in values.items()
    }

    found = doubts_of(
        steady_records(100, 4),
        load={**CLOSED, "value": 100},
        facts={"running_limit": 64},
        evidence=evidence,
    )

    assert remedy in found["engine_runs_fewer"].remedy


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

    assert doubt.message == "62.5 conversations/s were started, 100 were scheduled"


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


def warmth(hits: int, **more: Any) -> RunWarning | None:
    """Return the doubt about 60 prompts of 1,000 tokens, `hits` of them cached, a tenth shared."""
    records = [
        known_record(i, [(500 * i + 5, 1)], sent_ms=500 * i, prompt_tokens=1000) for i in range(60)
    ]
    counters = {"prompt_tokens": 60_000, "cached_prompt_tokens": hits, **more}
    return doubts_of(records, load=OPEN, counters=counters, prefix_hit_ceiling=0.1).get(
        "warm_prefix_cache"
    )


def test_a_cache_that_was_warm_before_the_run_is_named() -> None:
    """More hits than the run's own prompts share were there from another run of the same texts."""
    doubt = warmth(42_000)

    assert doubt is not None
    assert "70.0% of the prompt tokens" in doubt.message
    assert "shares 10.0%" in doubt.message


def test_hits_up_to_the_ceiling_and_in_finer_blocks_are_no_doubt() -> None:
    """A cache of single tokens finds up to a block a request more; preemption finds its own."""
    assert warmth(6_000) is None
    assert warmth(6_000 + 60 * 16) is None
    assert warmth(42_000, preemptions=1) is None


def test_a_flip_that_the_load_could_not_show_is_named() -> None:
    """Only flipped toggles are doubted: what the baseline has as well is no news."""
    idle = {
        "verdict": "not exercised",
        "requested": "off",
        "effective": "off",
        "observed": None,
    }
    evidence = {"speculative": idle, "prefix_caching": idle | {"verdict": "verified"}}
    evidence["chunked_prefill"] = idle
    flipped = dict.fromkeys(("speculative", "prefix_caching"), FLIP)

    found = doubts_of(steady_records(2, 301), evidence=evidence, flipped=flipped)

    assert set(found) == {"toggle_not_exercised"}
    assert found["toggle_not_exercised"].message.startswith(
        "this load does not exercise speculative,"
    )


@pytest.mark.parametrize(
    ("effective", "kind", "said"),
    [
        ("fp8", "real", "the engine says that the flip took effect, and no counter shows it"),
        ("auto", "real", "does not tell whether the flip took effect: kv_cache_dtype"),
        (None, "real", "does not tell whether the flip took effect: kv_cache_dtype"),
        ("fp8", "simulated", None),
    ],
)
def test_a_flip_without_a_counter_is_never_passed_off_as_proven(
    effective: str | None, kind: str, said: str | None
) -> None:
    """The engine's own word is told as a claim; what is simulated is made from the settings."""
    proof = {
        "verdict": "unverifiable",
        "requested": "fp8",
        "effective": effective,
        "observed": None,
    }

    found = doubts_of(
        steady_records(2, 301),
        evidence={"kv_cache_dtype": proof},
        flipped={"kv_cache_dtype": FLIP},
        engine_kind=kind,
    )

    told = [doubt.message for name, doubt in found.items() if name == "toggle_unverifiable"]
    assert len(told) == (said is not None)
    assert all((said or "") in message for message in told)


def test_a_run_that_sent_nothing_is_doubted_once() -> None:
    """No request: one doubt, not one for each figure that is absent."""
    assert set(doubts_of([])) == {"nothing_sent"}


def _arm(
    arm: str,
    effective: Mapping[str, str | None],
    flipped: str | None = None,
    toggles: Mapping[str, str] | None = None,
) -> RunRow:
    evidence = {
        toggle: Evidence(requested="on", effective=value, observed=None, verdict="unverifiable")
        for toggle, value in effective.items()
    }
    return known_row(
        key=arm,
        arm=arm,
        evidence=evidence,
        flipped=flips({} if flipped is None else {flipped: FLIP}),
        toggles=toggles or {"arm": arm},  # each its own
    )


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
    assert found["prefix_caching=off"].remedy.startswith("the flip did not reach the engine")


def test_an_engine_that_does_not_tell_is_not_accused() -> None:
    """Where the engine says nothing of the flipped toggle, nothing follows from the rest."""
    runs = [
        _arm("baseline", {"prefix_caching": "on", "overlap": None}),
        _arm("overlap=off", {"prefix_caching": "on", "overlap": None}, flipped="overlap"),
        _arm("silent", {}),
        _arm("silent-too", {}),
    ]

    assert same_settings(runs) == {}


def queue(
    rate_rps: float, service_s: float, requests: int, servers: int = 1
) -> list[RequestRecord]:
    """Return requests due at a steady rate, each of which takes a server for the service time."""
    free_s = [0.0] * servers
    records = []
    for i in range(requests):
        due_s = i / rate_rps
        place = free_s.index(min(free_s))
        free_s[place] = max(free_s[place], due_s) + service_s
        begin_ms, end_ms = 1000 * (free_s[place] - service_s), 1000 * free_s[place]
        events = [(begin_ms + 1, 1), (end_ms, 4)]
        records.append(known_record(i, events, scheduled_ms=1000 * due_s, sent_ms=1000 * due_s))
    return records


def test_requests_that_come_faster_than_they_are_answered_are_noticed() -> None:
    """10 a second are due and 5 are answered, for 30 s: 76 wait at the middle, 151 at the end."""
    doubt = doubts_of(queue(10, 0.2, 300), load={**OPEN, "value": 10.0})["overloaded"]

    assert doubt.message.startswith(
        "requests came faster than they were answered: half-way 76 were in flight, 151 when the "
        "last conversation was due, and it took 30.1 s more to answer them"
    )
    assert doubt.remedy == "ask for a lower rate: about 5.02 conversations/s were answered"


def test_the_lower_rate_of_chats_and_traces_is_in_their_own_words() -> None:
    """A rate counts conversations, here of two turns; a trace is slowed down by its speedup."""
    records = queue(10, 0.2, 300)
    chats = [replace(r, conversation=f"c{i // 2}", turn=i % 2) for i, r in enumerate(records)]
    trace = {**OPEN, "mode": "trace", "value": None, "speedup": 4.0}

    chat = doubts_of(chats, load={**OPEN, "value": 5.0})["overloaded"]
    replayed = doubts_of(records, load=trace)["overloaded"]

    assert chat.remedy == "ask for a lower rate: about 2.52 conversations/s were answered"
    assert replayed.remedy.endswith("5.02 requests/s were answered, which is speedup 2.00")


def test_chats_pile_up_while_new_ones_start() -> None:
    """Their later turns go on long after the last start, when the pile is gone already.

    4 chats of 4 turns a second, 30 s long, before one server that takes 150 ms a turn.
    """
    due = [(0.25 * chat, chat, 0) for chat in range(120)]
    records: list[RequestRecord] = []
    free_s = 0.0
    while due:
        due_s, chat, turn = heapq.heappop(due)
        free_s = max(free_s, due_s) + 0.15
        events = [(1000 * free_s - 100, 1), (1000 * free_s, 4)]
        records.append(
            known_record(
                len(records), events, sent_ms=1000 * due_s, conversation=f"c{chat}", turn=turn
            )
        )
        if turn < 3:
            heapq.heappush(due, (free_s, chat, turn + 1))

    doubt = doubts_of(records, load={**OPEN, "value": 4.0})["overloaded"]

    assert doubt.remedy == "ask for a lower rate: about 1.67 conversations/s were answered"


@pytest.mark.parametrize(
    ("rate_rps", "service_s", "servers"),
    [
        (4, 0.2, 1),  # keeps up
        (10, 15.0, 1000),  # answers of half a window: an idle engine fills up, nobody waits
    ],
)
def test_an_engine_that_keeps_up_is_not_called_overloaded(
    rate_rps: float, service_s: float, servers: int
) -> None:
    """Neither a steady queue nor one that only fills up is a backlog that grows."""
    records = queue(rate_rps, service_s, 300, servers)

    assert "overloaded" not in doubts_of(records, load={**OPEN, "value": rate_rps})


def test_a_burst_that_is_worked_off_is_no_overload() -> None:
    """60 requests at once, then 2 a second for a minute: they wait at first, not at the end."""
    late = [
        known_record(i, [(1000 * s + 6000, 1)], scheduled_ms=1000 * s, sent_ms=1000 * s)
        for i, s in enumerate([0.0] * 60)
    ]
    calm = [
        known_record(60 + i, [(500 * i + 100, 1)], scheduled_ms=500 * i, sent_ms=500 * i)
        for i in range(120)
    ]

    assert "overloaded" not in doubts_of(late + calm, load={**OPEN, "value": 3.0})


def test_a_late_burst_that_shrinks_is_no_overload() -> None:
    """One a second, and 60 more half a minute in: later ones wait, but the pile goes down."""
    due_s = sorted([*(float(second) for second in range(91)), *[30.0] * 60])
    records = []
    free_s = 0.0
    for i, due in enumerate(due_s):
        free_s = max(free_s, due) + 0.6
        events = [(1000 * free_s - 500, 1), (1000 * free_s, 4)]
        records.append(known_record(i, events, sent_ms=1000 * due))

    assert "overloaded" not in doubts_of(records, load={**OPEN, "value": 1.0})


def test_an_engine_whose_memory_is_full_runs_fewer_than_asked() -> None:
    """A limit of 256 says nothing where the KV room ends at 61 of 100 in flight."""
    records, load = steady_records(100, 4), {**CLOSED, "value": 100}
    facts = {"running_limit": 256, "kv_tokens": 426_240}

    full = doubts_of(records, load=load, facts=facts, counters={"peak_running": 61})
    roomy = doubts_of(records, load=load, facts=facts, counters={"peak_running": 97})

    assert full["engine_runs_fewer"].message == (
        "KV cache full (426,240 tokens): at most 61 of 100 requests ran at once"
    )
    assert "engine_runs_fewer" not in roomy


def test_think_time_is_no_queue() -> None:
    """Ten people of whom five think at a time: an engine that ran five ran all that were asked."""
    records = [
        known_record(10 * t + c, [(start + 50, 1)], sent_ms=start, conversation=f"c{c}", turn=t)
        for t in range(5)
        for c in range(10)
        for start in [100 * t + 10 * c]
    ]

    found = doubts_of(records, load={**CLOSED, "value": 10}, counters={"peak_running": 5})

    assert "engine_runs_fewer" not in found


@pytest.mark.parametrize("batching", ["none", "static"])
def test_a_batch_that_is_the_flip_is_no_doubt(batching: str) -> None:
    """Who asks for one sequence at a time, or for a whole batch, knows that others wait."""
    found = doubts_of(
        steady_records(100, 4),
        load={**CLOSED, "value": 100},
        toggles={"batching": batching},
        facts={"running_limit": 1 if batching == "none" else 256},
        counters={"peak_running": 1 if batching == "none" else 60},
    )

    assert "engine_runs_fewer" not in found


def test_a_trace_is_not_told_to_ask_for_more_than_it_holds() -> None:
    """Sixty rows replayed whole: what helps is more rows, not a larger number."""
    records = [known_record(i, [(500 * i + 5, 1)], sent_ms=500 * i) for i in range(60)]
    trace = {**OPEN, "mode": "trace", "value": None, "requests": None}

    whole = doubts_of(records, load=trace)["p99_unreliable"]
    limited = doubts_of(records, load={**trace, "limit": 60})["p99_unreliable"]

    assert whole.remedy == "replay more rows, or a longer trace"
    assert limited.remedy == f"{whole.remedy}; limit is 60"


def test_a_whole_run_says_how_many_requests_make_it_steady() -> None:
    """Two slots of single turns need eight requests; a burst in open loop needs another load."""
    closed = doubts_of(steady_records(2, 3))["whole_run"]
    burst = [known_record(i, [(500, 1), (900, 1)], sent_ms=i) for i in range(4)]

    opened = doubts_of(burst, load=OPEN)["whole_run"]
    trace = doubts_of(burst, load={**OPEN, "mode": "trace"})["whole_run"]

    assert closed.remedy.startswith("send 8 requests")
    assert opened.remedy == "ask for a longer duration, or a lower rate"
    assert "speedup" in trace.remedy


@pytest.mark.parametrize(
    ("skipped", "remedy"),
    [
        ({"context_length": 3}, "raise the context length (base.max_model_len in a sweep)"),
        ({"context_full": 1}, "raise the context length (base.max_model_len in a sweep)"),
        ({"bad_json": 1}, "mend those lines of the trace"),
        (
            {"bad_json": 1, "context_length": 2},
            (
                "raise the context length (base.max_model_len in a sweep) and mend those lines of "
                "the trace"
            ),
        ),
    ],
)
def test_rows_left_out_are_brought_back_by_what_they_lack(
    skipped: dict[str, int], remedy: str
) -> None:
    """More context helps a row that is too long; a line that is no JSON needs another pen."""
    found = doubts_of(steady_records(2, 301), skipped_rows=skipped)["rows_skipped"]

    assert found.remedy == f"{remedy}, if they belong to your traffic"


def test_two_flips_of_which_one_drags_the_other_along_are_one_arm_twice() -> None:
    """The engine did what was asked: nothing is wrong with it, two arms ask for the same."""
    both = {"paged_kv": "off", "prefix_caching": "off"}
    runs = [
        _arm("paged_kv=off", both, toggles=both),
        _arm("paged_kv=off+prefix_caching=off", both, toggles=both),
    ]

    found = same_settings(runs)

    assert {doubt.remedy.partition(":")[0] for doubt in found.values()} == {
        "what one flip drags along is what the other asks for"
    }
