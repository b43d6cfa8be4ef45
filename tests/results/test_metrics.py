from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_runs import CLOSED, OPEN, known_manifest, known_record, steady_records

from harness.results.metrics import (
    RunMetrics,
    chunk_gaps_ms,
    from_counters,
    per_request,
    run_metrics,
    token_gaps_ms,
)
from harness.results.names import DISTRIBUTIONS, SCALARS
from harness.results.store.manifest import CounterMoves
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord


def figures_of(records: Sequence[RequestRecord], **manifest: Any) -> RunMetrics:
    """Return the figures of these records in a run with this manifest."""
    return run_metrics(table_of(records), known_manifest(**manifest))


def metrics_of(records: Sequence[RequestRecord], **manifest: Any) -> dict[str, Any]:
    """Return the metrics of these records in a run with this manifest."""
    found: dict[str, Any] = asdict(figures_of(records, **manifest).run)
    return found


def only(records: Sequence[RequestRecord], name: str, **manifest: Any) -> float | None:
    """Return the one value of a latency of a run with one request."""
    stated = metrics_of(records, **manifest)[name]
    assert stated is None or stated["n"] == 1
    return None if stated is None else stated["p50"]


def test_latencies_of_a_scripted_answer_are_exact() -> None:
    """Sent at 5, tokens at 105, 135, 165, 195, closed at 200: every latency by hand."""
    record = known_record(
        0, [(105, 1), (135, 1), (165, 1), (195, 1)], scheduled_ms=2, sent_ms=5, closed_ms=200
    )

    metrics = metrics_of([record], load=OPEN)

    expected = {
        "ttft_ms": 100,
        "scheduled_ttft_ms": 103,
        "tpot_ms": 30,
        "e2e_ms": 190,
        "scheduled_e2e_ms": 193,
        "tail_ms": 5,
        "itl_ms": 30,
        "chunk_gap_ms": 30,
        "send_delay_ms": 3,
        "slo_ttft_ms": 103,
        "slo_e2e_ms": 193,
    }
    assert {name: metrics[name]["mean"] for name in DISTRIBUTIONS} == expected
    assert {name: metrics[name]["p99"] for name in DISTRIBUTIONS} == expected


def test_scheduled_latencies_are_absent_in_closed_loop() -> None:
    """Where a slot sends when it is free, nothing is due at a time of its own."""
    metrics = metrics_of([known_record(0, [(10, 1), (20, 1)])], load=CLOSED)

    assert metrics["scheduled_ttft_ms"] is None
    assert metrics["scheduled_e2e_ms"] is None
    assert metrics["ttft_ms"]["mean"] == 10


def test_a_failure_takes_for_ever_in_the_view_of_the_slo() -> None:
    """Of 20, 40, 60, 80 ms and a failure: the median is 60, from 80 % on there is no number."""
    records = [
        *(known_record(i, [(20.0 * (i + 1), 1)]) for i in range(4)),
        known_record(4, [(5, 1)], closed_ms=9, error_kind="connection_reset"),
    ]

    metrics = metrics_of(records, load={**CLOSED, "value": 5})

    assert metrics["slo_e2e_ms"] == {
        "mean": None, "p50": 60, "p90": None, "p95": None, "p99": None,
        "n": 5, "p99_reliable": False, "p99_needs": 294,
    }  # fmt: skip
    assert (metrics["e2e_ms"]["p50"], metrics["e2e_ms"]["n"]) == (50, 4)
    assert metrics["slo_ttft_ms"]["p50"] == 60


def test_two_failures_between_which_a_percentile_falls_are_no_number() -> None:
    """Nine tenths of the way between two infinite ones is infinite, not NaN."""
    failed = [known_record(i, error_kind="timeout") for i in range(1, 4)]

    stated = metrics_of([known_record(0, [(20, 1)]), *failed])["slo_ttft_ms"]

    assert {stated[name] for name in ("mean", "p50", "p90", "p95", "p99")} == {None}
    assert stated["n"] == 4


def test_the_delay_of_a_send_counts_from_when_it_was_due() -> None:
    """Due every 10 ms, sent every 16: the delays are 0, 6, …, of failed requests as well."""
    records = [
        known_record(
            i, [(16 * i + 1, 1)], scheduled_ms=10 * i, sent_ms=16 * i,
            error_kind="http_503" if i == 4 else None,
        )
        for i in range(5)
    ]  # fmt: skip

    delay = metrics_of(records, load=OPEN)["send_delay_ms"]

    assert (delay["mean"], delay["p50"], delay["n"]) == (12, 12, 5)
    assert delay["p99"] == pytest.approx(18 + 0.96 * 6)
    assert metrics_of(records, load=CLOSED)["send_delay_ms"] is None


@pytest.mark.parametrize(
    "odd",
    [
        {"events_ms": [(40, 1), (60, 1)], "sent_ms": 50},  # a token before the send
        {"events_ms": [(60, 1), (55, 1), (90, 1)], "sent_ms": 50},  # tokens that go back
        {"events_ms": [(60, 1), (90, 1)], "sent_ms": 50, "closed_ms": 80},  # closed before the last
    ],
)
def test_times_that_contradict_each_other_are_in_no_latency(odd: dict[str, Any]) -> None:
    """One clock stepped back in one request: it is left out, neither negative nor 0, nor good."""
    good = known_record(0, [(100, 1), (200, 1)], sent_ms=50)

    metrics = metrics_of([good, known_record(1, **odd)], slo={"ttft_ms": 1000})

    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tail_ms", "chunk_gap_ms", "itl_ms"):
        assert metrics[name]["n"] == 1, name
    assert metrics["ttft_ms"]["mean"] == 50
    assert metrics["goodput_share"] == 0.5
    assert metrics["completed"] == 2


def test_whole_run_rates_are_from_the_first_send_to_the_last_end() -> None:
    """Three answers of four tokens and a failure within two seconds."""
    records = [known_record(i, [(500 * (i + 1), 4)], sent_ms=100 * i) for i in range(3)]
    records.append(known_record(3, [(600, 7)], closed_ms=2000, error_kind="truncated"))

    metrics = metrics_of(records, load=OPEN)

    assert metrics["requests_per_s_whole_run"] == 1.5
    assert metrics["output_tokens_per_s_whole_run"] == 6


def test_waiting_for_a_slot_is_latency() -> None:
    """Ten arrivals a second, one served at a time in 500 ms: waiting counts from the schedule."""
    records = [
        known_record(i, [(500 * i + 500, 5)], scheduled_ms=100 * i, sent_ms=500 * i)
        for i in range(8)
    ]

    metrics = metrics_of(records, load=OPEN)

    assert metrics["e2e_ms"]["mean"] == metrics["e2e_ms"]["p99"] == 500
    assert metrics["scheduled_e2e_ms"]["mean"] == 1900
    assert metrics["scheduled_e2e_ms"]["p99"] == pytest.approx(3272)


def test_several_tokens_an_event() -> None:
    """4 tokens at once, then 4 after 80 ms and 2 after 40: TPOT skips the first event's tokens."""
    record = known_record(0, [(100, 4), (180, 4), (220, 2)])

    table = table_of([record])
    gaps, requests = token_gaps_ms(table, np.array([True]))

    assert only([record], "tpot_ms") == 120 / 6
    assert gaps.tolist() == [20, 20, 20, 20, 20, 20]
    assert requests == 1
    assert chunk_gaps_ms(table, np.array([True]))[0].tolist() == [80, 40]


def test_gaps_of_unlike_size_are_shared_among_their_tokens() -> None:
    """An event of m tokens after a gap g gives m gaps of g/m, none for the first event."""
    table = table_of([known_record(0, [(100, 3), (130, 1), (190, 3)])])

    assert token_gaps_ms(table, np.array([True]))[0].tolist() == [30, 20, 20, 20]


def test_the_first_token_is_no_gap() -> None:
    """TTFT 500 and three gaps of 20: the wait for the first token spoils no inter-token figure."""
    metrics = metrics_of([known_record(0, [(500, 1), (520, 1), (540, 1), (560, 1)])])

    assert metrics["itl_ms"]["n"] == 3
    assert metrics["itl_ms"]["mean"] == metrics["itl_ms"]["p99"] == 20
    assert metrics["tpot_ms"]["mean"] == 20


def test_gaps_never_span_two_requests() -> None:
    """From the last token of one request to the first of the next there is no gap."""
    records = [
        known_record(0),
        known_record(1, [(10, 1), (20, 1)]),
        known_record(2),
        known_record(3, [(1000, 1), (1003, 1)]),
        known_record(4, [(5000, 1)]),
        known_record(5),
    ]

    gaps, requests = chunk_gaps_ms(table_of(records), np.ones(6, np.bool_))

    assert gaps.tolist() == [10, 3]
    assert requests == 2


def test_one_token_answers_have_no_tpot() -> None:
    """Answers of 1, 2 and 5 tokens: mean TPOT 75 of two, not 50 of three."""
    records = [
        known_record(0, [(100, 1)]),
        known_record(1, [(100, 1), (150, 1)]),
        known_record(2, [(100 + 100 * k, 1) for k in range(5)]),
        known_record(3, [(100, 1), (101, 1)], error_kind="truncated"),
    ]

    metrics = metrics_of(records, max_failed_share=1)

    assert (metrics["ttft_ms"]["mean"], metrics["ttft_ms"]["n"]) == (100, 3)
    assert (metrics["tpot_ms"]["mean"], metrics["tpot_ms"]["n"]) == (75, 2)
    assert (metrics["itl_ms"]["mean"], metrics["itl_ms"]["n"]) == (90, 5)


def test_a_whole_answer_in_one_event_has_no_tpot() -> None:
    """32 tokens gathered by a proxy: the decode time cannot be seen, and is not 0."""
    record = known_record(0, [(2000, 32)])

    assert only([record], "tpot_ms") is None
    assert only([record], "ttft_ms") == only([record], "e2e_ms") == 2000
    assert metrics_of([record])["itl_ms"] is None


def test_fewer_events_than_tokens_without_running_usage() -> None:
    """100 tokens by usage in 25 events of unknown size: TPOT 2000/99, gaps of events, no ITL."""
    events = [(500 + 2000 * k / 24, 1) for k in range(25)]
    record = known_record(0, events, output_tokens=100)

    metrics = metrics_of([record])

    assert metrics["tpot_ms"]["mean"] == pytest.approx(2000 / 99)
    assert metrics["chunk_gap_ms"]["mean"] == pytest.approx(2000 / 24)
    assert metrics["itl_ms"] is None
    assert metrics["output_tokens_per_s"] == pytest.approx(100 / 2.5)


def test_tokens_counted_by_the_client_when_there_is_no_usage() -> None:
    """Four events, 512 tokens asked for, no usage: four tokens, never the number asked for."""
    record = known_record(
        0, [(100, 1), (130, 1), (160, 1), (190, 1)], source=None, asked_tokens=512
    )

    figures = figures_of([record])

    assert asdict(figures.run)["tpot_ms"]["mean"] == 30
    assert figures.requests["output_tokens"].tolist() == [4]
    assert figures.requests["server_counted"].tolist() == [False]


def test_failed_requests_are_in_no_latency_and_no_token_figure() -> None:
    """Ten requests, two of them failed, over 1.5 s: the figures are those of eight."""
    records = [known_record(i, [(100 * i + 100 * (i + 1), 10)], sent_ms=100 * i) for i in range(8)]
    records += [
        known_record(8, [(900, 3)], sent_ms=800, closed_ms=1500, error_kind="truncated"),
        known_record(9, sent_ms=900, closed_ms=950, error_kind="http_503", source=None),
    ]

    metrics = metrics_of(records, load={**CLOSED, "value": 10})

    assert metrics["failures"] == {"http_503": 1, "truncated": 1}
    assert metrics["requests_per_s"] == pytest.approx(8 / 1.5)
    assert metrics["output_tokens_per_s"] == pytest.approx(80 / 1.5)
    assert metrics["output_tokens_per_s_whole_run"] == pytest.approx(80 / 1.5)
    assert metrics["e2e_ms"]["n"] == 8
    assert (metrics["e2e_ms"]["mean"], metrics["e2e_ms"]["p50"]) == (450, 450)
    assert metrics["e2e_ms"]["p99"] == pytest.approx(793)


def test_a_run_where_everything_failed_has_no_latency_and_no_output() -> None:
    """Five refused connections: null in every latency, 0 a second, and still strict JSON."""
    records = [
        known_record(
            i, sent_ms=None, scheduled_ms=i, closed_ms=i + 1, error_kind="connect_refused",
            source=None, prompt_tokens=None,
        )
        for i in range(5)
    ]  # fmt: skip

    metrics = metrics_of(records, slo={"ttft_ms": 1000})

    assert [metrics[name] for name in DISTRIBUTIONS] == [None] * len(DISTRIBUTIONS)
    assert metrics["output_tokens_per_s"] == metrics["requests_per_s"] == 0
    assert metrics["goodput_rps"] == metrics["goodput_share"] == 0
    assert metrics["failures"] == {"connect_refused": 5}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_a_run_without_requests_has_no_figures() -> None:
    """Nothing sent is nothing known: no rate is 0."""
    metrics = metrics_of([], slo={"ttft_ms": 1000})

    told = {name for name in (*DISTRIBUTIONS, *SCALARS) if metrics[name] is not None}
    assert told == {"completed"}  # a count, of nothing


def test_an_answer_that_brought_no_token_is_a_failure() -> None:
    """A stream that ended well and empty counts as failed, not as an answer in no time."""
    metrics = metrics_of([known_record(0), known_record(1, [(10, 1)], closed_ms=20)])

    assert metrics["failures"] == {"no_token": 1}
    assert metrics["ttft_ms"]["n"] == 1


def test_a_run_of_no_length_has_no_rates() -> None:
    """All in one instant: rates are absent, neither 0 nor infinite."""
    metrics = metrics_of([known_record(0, [(0, 5)])], price_per_gpu_hour=2.5)

    absent = [name for name in SCALARS if name.endswith(("_per_s", "_rps", "_gpu", "_tokens"))]
    assert {metrics[name] for name in absent} == {None}
    assert metrics["output_tokens_per_s_whole_run"] is None
    assert metrics["ttft_ms"]["mean"] == 0


def test_rates_count_what_lies_inside_the_window() -> None:
    """Two slots, 100 ms a request, tokens every 20 ms: the window holds 50 ms to 350 ms.

    Sends: slot 0 at 0, 100, 200, 300, slot 1 at 50, 150, 250, 350. Ramp is 0 and 50. The window
    (50, 350] holds six ends (100 to 350) and 3.5 - 0.5 = 3 requests of each slot, 30 tokens.
    """
    figures = figures_of(steady_records(2, 4))

    assert (figures.window.start_ns, figures.window.end_ns) == (50e6, 350e6)
    assert figures.requests["measured"].tolist() == [False, False] + [True] * 6
    assert figures.run.output_tokens_per_s == pytest.approx(30 / 0.3)
    assert figures.run.requests_per_s == pytest.approx(6 / 0.3)
    # prompts of 10 tokens, placed at the first token event: 70 to 320 and 370, which is outside
    assert figures.run.total_tokens_per_s == pytest.approx((30 + 6 * 10) / 0.3)
    assert figures.run.output_tokens_per_s_whole_run == pytest.approx(40 / 0.45)
    assert asdict(figures.run)["ttft_ms"]["n"] == 6


def test_tokens_of_the_ramp_count_where_they_come_inside_the_window() -> None:
    """A request of the ramp that streams on into the window is work done in the window."""
    records = steady_records(2, 4)
    long = known_record(0, [(20, 1), (40, 1), (60, 1), (80, 1), (100, 1)], sent_ms=0)
    cut = known_record(0, [(20, 1), (40, 1)], sent_ms=0, closed_ms=100)

    with_tail, without = (metrics_of([first, *records[1:]]) for first in (long, cut))

    lost = with_tail["output_tokens_per_s"] - without["output_tokens_per_s"]
    assert lost == pytest.approx(3 / 0.3)


def test_a_prompt_counts_where_its_first_token_comes() -> None:
    """A long prompt done before the window is not work of the window, though its answer is."""
    records = steady_records(2, 4)
    records[0] = known_record(
        0, [(20 * (k + 1), 1) for k in range(5)], sent_ms=0, prompt_tokens=9000
    )

    assert metrics_of(records)["total_tokens_per_s"] == pytest.approx((30 + 6 * 10) / 0.3)


def test_total_rate_is_absent_where_a_prompt_was_not_counted() -> None:
    """One unknown prompt length makes the total unknown, the output rate not."""
    records = [known_record(0, [(10, 1)]), known_record(1, [(20, 1)], prompt_tokens=None)]

    metrics = metrics_of(records)

    assert metrics["total_tokens_per_s"] is None
    assert metrics["total_tokens_per_s_per_gpu"] is None
    assert metrics["output_tokens_per_s"] == pytest.approx(2 / 0.02)


def test_figures_per_user_per_gpu_and_per_money() -> None:
    """TPOT 30 ms is 33.3 tokens/s to a user; 4 GPUs at 2.5 an hour; all by hand."""
    records = [known_record(0, [(100, 1), (130, 1), (160, 1), (200, 7)])]  # 10 tokens in 0.2 s

    metrics = metrics_of(records, price_per_gpu_hour=2.5)

    assert metrics["output_tokens_per_s"] == pytest.approx(50)
    assert metrics["output_tokens_per_s_per_gpu"] == pytest.approx(12.5)
    assert metrics["total_tokens_per_s_per_gpu"] == pytest.approx(25)
    assert metrics["output_tokens_per_s_per_user"] == pytest.approx(9 / 0.1)
    assert metrics["cost_per_million_output_tokens"] == pytest.approx(10 / (50 * 3600) * 1e6)
    assert metrics_of(records)["cost_per_million_output_tokens"] is None


def test_goodput_needs_every_limit() -> None:
    """Limits 100 / 30 / 300 ms: one request misses each, one fails, two are good, in 0.5 s."""
    records = [
        known_record(0, [(100, 1), (130, 1)]),  # exactly at its limits: good
        known_record(1, [(101, 1), (120, 1)]),  # TTFT too long
        known_record(2, [(50, 1), (81, 1)]),  # TPOT too long
        known_record(3, [(90, 1), *((90 + 28 * k, 1) for k in range(1, 9))]),  # E2E 314
        known_record(4, [(80, 1)], closed_ms=500),  # one token: cannot miss TPOT
        known_record(5, [(10, 1)], error_kind="truncated"),
    ]
    limits = {"ttft_ms": 100, "tpot_ms": 30, "e2e_ms": 300}

    figures = figures_of(records, slo=limits)

    assert figures.requests["good"].tolist() == [True, False, False, False, True, False]
    assert figures.run.goodput_rps == pytest.approx(2 / 0.5)
    assert figures.run.goodput_share == pytest.approx(2 / 6)


def test_a_slow_ramp_is_no_miss() -> None:
    """The share is that of measured requests: one of the ramp that is late takes nothing off."""
    records = steady_records(2, 4)
    records[0] = known_record(0, [(95, 1), (100, 4)], sent_ms=0)

    metrics = metrics_of(records, slo={"ttft_ms": 50})

    assert metrics["goodput_share"] == 1
    assert metrics["goodput_rps"] == pytest.approx(6 / 0.3)


def test_goodput_and_its_share_count_the_same_requests() -> None:
    """A ramp that is answered in time inside the window adds nothing to the rate of late requests.

    Two slots: the first two requests keep 50 ms and end inside the window, all measured ones miss.
    """
    records = steady_records(2, 4)
    for i, sent_ms in ((0, 0), (1, 50)):
        records[i] = known_record(i, [(sent_ms + 20, 1), (sent_ms + 60, 4)], sent_ms=sent_ms)
    for i in range(2, 8):
        sent_ms = 100 * (i // 2) + 50 * (i % 2)
        records[i] = known_record(i, [(sent_ms + 90, 1), (sent_ms + 100, 4)], sent_ms=sent_ms)

    metrics = metrics_of(records, slo={"ttft_ms": 50})

    assert (metrics["goodput_rps"], metrics["goodput_share"]) == (0, 0)


def test_goodput_is_absent_without_limits() -> None:
    """Where nobody said what is good, nothing is called good."""
    metrics = metrics_of([known_record(0, [(10, 1)])])

    assert (metrics["goodput_rps"], metrics["goodput_share"]) == (None, None)


def test_goodput_in_open_loop_counts_from_the_schedule() -> None:
    """Due at 0, sent at 90, answered at 110: 20 ms after the send, 110 ms for the user."""
    late = known_record(0, [(110, 1)], scheduled_ms=0, sent_ms=90)

    for limit in ({"ttft_ms": 50, "e2e_ms": None}, {"e2e_ms": 50}):
        assert metrics_of([late], load=OPEN, slo=limit)["goodput_share"] == 0
        assert metrics_of([late], load=CLOSED, slo=limit)["goodput_share"] == 1


def test_counters_give_rates_of_their_change() -> None:
    """1500 of 3000 prompt tokens cached, 60 of 80 drafts accepted in 20 steps, 3 preemptions."""
    stated = from_counters(
        CounterMoves(
            prompt_tokens=3000,
            cached_prompt_tokens=1500,
            drafted_tokens=80,
            accepted_tokens=60,
            verify_steps=20,
            preemptions=3,
        )
    )

    assert stated == {
        "prefix_hit_rate": 0.5,
        "acceptance_rate": 0.75,
        "mean_accepted_length": 3.0,
        "preemptions": 3,
    }


@pytest.mark.parametrize(
    "counters",
    [
        {},
        {"prompt_tokens": 0, "cached_prompt_tokens": 0},
        {"prompt_tokens": 100, "cached_prompt_tokens": None},
        {"prompt_tokens": 100, "cached_prompt_tokens": -400},
        {"prompt_tokens": -100, "cached_prompt_tokens": 5},
    ],
)
def test_counters_that_say_nothing_give_nothing(counters: dict[str, int | None]) -> None:
    """Not counted, nothing asked, and a restart that set a counter back are not a rate of 0."""
    assert from_counters(CounterMoves(**counters))["prefix_hit_rate"] is None


def test_no_draft_is_no_acceptance_rate() -> None:
    """Without speculation there is no rate and no length, rather than 0."""
    stated = from_counters(CounterMoves(drafted_tokens=0, accepted_tokens=0, verify_steps=0))

    assert stated["acceptance_rate"] is None
    assert stated["mean_accepted_length"] is None


def test_a_zero_hit_rate_is_a_zero() -> None:
    """A server that counts and found nothing cached says 0, which is not absent."""
    counted = from_counters(CounterMoves(prompt_tokens=100, cached_prompt_tokens=0, preemptions=0))

    assert (counted["prefix_hit_rate"], counted["preemptions"]) == (0.0, 0)


def test_p99_of_gaps_is_as_sure_as_its_requests() -> None:
    """300 gaps of two requests are two samples: tokens of one answer are alike."""
    records = [known_record(i, [(k, 1) for k in range(151)]) for i in range(2)]

    stated = metrics_of(records)["itl_ms"]

    assert (stated["n"], stated["p99_reliable"], stated["p99_needs"]) == (300, False, 297)


def test_every_metric_has_a_name_in_the_list() -> None:
    """What a run holds is what `names` lists, and failures."""
    metrics = metrics_of(steady_records(2, 4))

    assert set(metrics) == {*DISTRIBUTIONS, *SCALARS, "failures"}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_formulas_agree_with_a_plain_loop(data: st.DataObject) -> None:
    """The column arithmetic gives what the definitions give, request by request."""
    events = st.lists(st.tuples(st.integers(1, 999), st.integers(1, 5)), max_size=5)
    records = [
        known_record(
            i,
            sorted(data.draw(events)),
            output_tokens=data.draw(st.none() | st.integers(0, 30)),
            error_kind=data.draw(st.sampled_from([None, None, None, "timeout"])),
        )
        for i in range(data.draw(st.integers(1, 6)))
    ]

    frame = per_request(table_of(records), open_loop=False)

    for record, tpot_ms, e2e_ms in zip(records, frame["tpot_ms"], frame["e2e_ms"], strict=True):
        assert _same(tpot_ms, _tpot_ms(record))
        assert _same(e2e_ms, _e2e_ms(record))


def _tpot_ms(record: RequestRecord) -> float | None:
    assert record.output_tokens is not None
    if record.error_kind or len(record.token_events) < 2:
        return None
    first_ns, last_ns = record.token_events[0][0], record.token_events[-1][0]
    at_first = sum(int(tokens) for time_ns, tokens in record.token_events if time_ns == first_ns)
    later = record.output_tokens - at_first
    if last_ns == first_ns or later <= 0:
        return None
    return int(last_ns - first_ns) / later / 1e6


def _e2e_ms(record: RequestRecord) -> float | None:
    if record.error_kind or not len(record.token_events):
        return None
    return int(record.token_events[-1][0]) / 1e6


def _same(found: float, expected: float | None) -> bool:
    return math.isnan(found) if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("events", "tokens", "tpot_ms"),
    [
        ([(5, 1), (5, 1), (5, 1), (15, 1)], 4, 10),  # three came with the first read
        ([(5, 1), (5, 2), (25, 2)], 5, 10),  # running usage
        ([(5, 1), (5, 1), (105, 1)], 12, 10),  # more tokens than events
        ([(5, 1), (15, 1), (15, 1)], 3, 5),  # clumped later: no part of k
    ],
)
def test_tokens_of_the_first_read_are_no_part_of_the_pace(
    events: list[tuple[float, int]], tokens: int, tpot_ms: float
) -> None:
    """K is the tokens of all events that carry the first time; TPOT is over the n - k others."""
    record = known_record(0, events, output_tokens=tokens)

    assert metrics_of([record])["tpot_ms"]["mean"] == tpot_ms


@pytest.mark.parametrize(
    ("events", "share"),
    [
        ([(5, 1), (15, 1), (25, 1)], 0.0),
        ([(5, 1), (15, 1), (15, 1), (25, 1)], 0.25),
        ([(5, 2), (5, 6)], 0.75),
        ([(5, 1)], 0.0),
    ],
)
def test_tokens_that_one_read_completed_together_are_clumped(
    events: list[tuple[float, int]], share: float
) -> None:
    """The tokens of an event with the time of the event before it, of all output tokens.

    The last event of one answer and the first of the next are no pair.
    """
    other = known_record(1, [(events[-1][0], events[0][1])], sent_ms=0)
    tokens = sum(held for _, held in events)

    metrics = metrics_of([known_record(0, events), other])

    assert metrics["clumped_share"] == pytest.approx(share * tokens / (tokens + events[0][1]))


def test_no_answer_has_no_clumped_share() -> None:
    """Absent, not 0: nothing was seen."""
    assert metrics_of([known_record(0, error_kind="timeout")])["clumped_share"] is None


def test_an_answer_that_came_in_one_read_has_no_tpot() -> None:
    """Events with one time show no pace: absent, not 0 ms a token."""
    records = [known_record(0, [(5, 1), (5, 1), (5, 1)]), known_record(1, [(5, 1), (9, 1)])]

    figures = run_metrics(table_of(records), known_manifest())

    assert figures.requests["tpot_ms"].isna().tolist() == [True, False]
    assert asdict(figures.run)["tpot_ms"]["p50"] == 4
