"""Tests of other tools' formulas on our records, with values computed from their definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from known_runs import known_record

from harness.commands.arguments.load import DIALECTS as ON_THE_COMMAND_LINE
from harness.results.dialects import DIALECTS
from harness.results.dialects.requests import requests_of
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord

MS = 1_000_000
NO_LIMITS: dict[str, float | None] = {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None}
# 100 tokens in 25 chunks of 4, the first at 0.5 s, the last at 2.5 s, [DONE] at 2.56 s.
BUNDLED = [(500 + chunk * 2000 / 24, 4) for chunk in range(25)]


def metrics(
    tool: str, records: Sequence[RequestRecord], **limits: float
) -> dict[str, float | None]:
    """Return the tool's metrics of these records by name."""
    found = DIALECTS[tool].metrics(requests_of(table_of(records)), {**NO_LIMITS, **limits})
    named = [(metric.name, metric.value) for metric in found]
    assert len(dict(named)) == len(named)
    return dict(named)


def answer(index: int, first_ms: float, last_ms: float, tokens: int, **more: Any) -> RequestRecord:
    """Return a request with evenly spaced tokens, one per event."""
    step = (last_ms - first_ms) / max(tokens - 1, 1)
    return known_record(index, [(first_ms + step * k, 1) for k in range(tokens)], **more)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            "vllm",
            {
                "Mean TTFT (ms)": 500,
                "Mean TPOT (ms)": 2000 / 99,
                "Mean ITL (ms)": 2000 / 24,
                "Mean E2EL (ms)": 2500,
                "Benchmark duration (s)": 2.56,
                "Output token throughput (tok/s)": 100 / 2.56,
                "Peak output token throughput (tok/s)": 12,  # chunks of 1.00 s to 2.00 s
            },
        ),
        (
            "sglang",
            {
                "Mean TTFT (ms)": 500,
                "Mean TPOT (ms)": 2060 / 99,
                "Mean ITL (ms)": 2000 / 24,
                "Max ITL (ms)": 2000 / 24,
                "Mean E2E Latency (ms)": 2560,
                "Output token throughput (tok/s)": 100 / 2.56,
                "Concurrency": 1,
            },
        ),
        (
            "aiperf",
            {
                "Time to First Token (ms) avg": 500,
                "Time to Second Token (ms) avg": 2000 / 24,
                "Inter Token Latency (ms) avg": 2000 / 99,
                "Inter Chunk Latency (ms) avg": 2000 / 24,
                "Request Latency (ms) avg": 2500,
                "Benchmark Duration (sec)": 2.5,
                "Output Token Throughput (tokens/sec)": 40,
                "Output Token Throughput Per User avg": 49.5,
            },
        ),
        (
            "guidellm",
            {
                "TTFT ms Mean": 500,
                "TPOT ms Mean": 25,
                "ITL ms Mean": 2000 / 99,
                "Request Latency Sec Mean": 2.56,
                "Output Tokens Per Sec Mean": 50,  # of the two seconds between first and last
                "Requests Per Sec Mean": 1 / 2.56,
            },
        ),
    ],
)
def test_one_stream_has_as_many_answers_as_tools(tool: str, expected: dict[str, float]) -> None:
    """A stream of bundled tokens has the metrics that each tool defines."""
    found = metrics(tool, [known_record(0, BUNDLED, closed_ms=2560)])

    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def kinds(*failures: str | None) -> list[RequestRecord]:
    """Return a failed request of each kind; all except `http_500` and `no_token` have output."""
    return [
        known_record(i, [], closed_ms=1000, error_kind=kind, asked_tokens=5, source=None)
        if kind in ("http_500", "no_token")
        else answer(i, 100, 500, 5, closed_ms=500, error_kind=kind)
        for i, kind in enumerate(failures)
    ]


@pytest.mark.parametrize(
    ("tool", "counts"),
    [
        ("vllm", {"Successful requests": 3, "Failed requests": 4, "Total generated tokens": 15}),
        ("sglang", {"Successful requests": 4, "Total generated tokens": 20}),
        ("aiperf", {"Request Count (requests)": 3, "Error Request Count (requests)": 4}),
        ("guidellm", {"Requests Comp": 3, "Requests Inc": 1, "Requests Err": 3}),
    ],
)
def test_what_counts_as_failed(tool: str, counts: dict[str, int]) -> None:
    """A tool counts errors that it does not detect as answers; a cut stream fails in all tools."""
    records = kinds(
        None, "error_event", "aborted", "no_token", "http_500", "cancelled", "connection_reset"
    )

    found = metrics(tool, records)

    assert {name: found[name] for name in counts} == counts


def test_sglang_takes_an_empty_answer_for_one_with_ttft_zero() -> None:
    """SGLang counts an answer without tokens as TTFT 0; vLLM leaves it out."""
    records = kinds(None, "no_token")

    assert metrics("sglang", records)["Mean TTFT (ms)"] == 50
    assert metrics("vllm", records)["Mean TTFT (ms)"] == 100


def test_sglang_uses_the_requested_length() -> None:
    """An answer that ended early has the requested length, except in a chat of several turns."""
    early = answer(0, 100, 500, 5, asked_tokens=50, closed_ms=590)
    later = answer(1, 700, 900, 3, asked_tokens=30, conversation="c0000", turn=1, sent_ms=600)

    alone, chat = metrics("sglang", [early]), metrics("sglang", [early, later])

    assert alone["Total generated tokens"] == 50
    assert alone["Mean TPOT (ms)"] == pytest.approx(490 / 49)
    assert alone["Total input tokens"] == 10
    assert chat["Total generated tokens"] == 8
    assert chat["Total input tokens"] == 0


def test_an_answer_of_one_token_has_no_tpot() -> None:
    """For goodput each tool counts its TPOT as 0, as not good, or not at all."""
    records = [answer(0, 100, 100, 1), answer(1, 100, 500, 5), answer(2, 100, 900, 5)]
    goal = {"tpot_ms": 150.0}

    vllm, sglang = metrics("vllm", records, **goal), metrics("sglang", records, **goal)
    aiperf, guidellm = metrics("aiperf", records, **goal), metrics("guidellm", records, **goal)

    assert vllm["Mean TPOT (ms)"] == sglang["Mean TPOT (ms)"] == 150  # of 100 and 200
    assert aiperf["Inter Token Latency (ms) avg"] == 150
    assert vllm["Request goodput (req/s)"] == pytest.approx(2 / 0.9)
    assert sglang["SLO attainment (%)"] == pytest.approx(200 / 3)
    assert aiperf["Good Request Fraction (ratio)"] == pytest.approx(1 / 3)
    assert guidellm["Goodput Attainment %"] == 50


def test_goodput_counts_failures_as_each_tool_does() -> None:
    """A failed request is not good, and counts in the denominator of a share."""
    records = [answer(0, 100, 500, 5), *kinds("http_500", "cancelled")[:2]]
    goal = {"e2e_ms": 500.0}  # kept by a figure that equals it

    assert metrics("vllm", records, **goal)["Request goodput (req/s)"] == pytest.approx(1)
    assert metrics("sglang", records, **goal)["SLO attainment (%)"] == pytest.approx(100 / 3)
    aiperf = metrics("aiperf", records, **goal)
    assert aiperf["Goodput (requests/sec)"] == pytest.approx(2)  # its half second has no failures
    assert aiperf["Good Request Fraction (ratio)"] == pytest.approx(1 / 3)
    assert metrics("guidellm", records, **goal)["Goodput Attainment %"] == 50  # cancelled left out
    assert "Request goodput (req/s)" not in metrics("vllm", records)


def test_guidellm_weights_by_tokens_and_uses_ranks() -> None:
    """ITL of 10 ms over 90 gaps and of 100 ms over 10: the mean is 19, percentiles are samples."""
    records = [answer(0, 0, 900, 91), answer(1, 0, 1000, 11)]

    found = metrics("guidellm", records)

    assert found["ITL ms Mean"] == pytest.approx(19)
    assert (found["ITL ms Mdn"], found["ITL ms p95"]) == pytest.approx((10, 100))
    assert metrics("aiperf", records)["Inter Token Latency (ms) avg"] == pytest.approx(55)


def test_percentiles_between_two_samples() -> None:
    """The median of 100 and 200 ms is 150 with interpolation, and 100 by nearest rank."""
    records = [answer(0, 100, 300, 3), answer(1, 200, 300, 3)]

    assert metrics("vllm", records)["Median TTFT (ms)"] == 150
    assert metrics("vllm", records)["P99 TTFT (ms)"] == pytest.approx(199)
    assert metrics("sglang", records)["P90 TTFT (ms)"] == pytest.approx(190)
    assert metrics("aiperf", records)["Time to First Token (ms) p90"] == pytest.approx(190)
    guidellm = metrics("guidellm", records)
    assert (guidellm["TTFT ms Mdn"], guidellm["TTFT ms p95"]) == (100, 200)


def test_each_tool_has_a_duration_of_its_own() -> None:
    """A request due at 0, sent at 100 and closed at 600; a failed request that ends at 1000."""
    records = [
        answer(0, 200, 500, 4, scheduled_ms=0, sent_ms=100, closed_ms=600),
        known_record(1, [], sent_ms=300, closed_ms=1000, error_kind="http_500"),
    ]

    vllm, aiperf = metrics("vllm", records), metrics("aiperf", records)

    assert vllm["Benchmark duration (s)"] == 1.0
    assert vllm["Request throughput (req/s)"] == 1.0
    assert metrics("sglang", records)["Output token throughput (tok/s)"] == 4.0
    assert aiperf["Benchmark Duration (sec)"] == pytest.approx(0.4)
    assert aiperf["Request Throughput (requests/sec)"] == pytest.approx(2.5)
    guidellm = metrics("guidellm", records)
    assert guidellm["Requests Per Sec Mean"] == 2.0  # failed ones count
    assert guidellm["Output Tokens Per Sec Mean"] == pytest.approx(4 / 0.8)  # 200 to 1000 ms


def test_latencies_of_some_tools_include_connecting() -> None:
    """vLLM, SGLang and AIPerf start the time before connecting, GuideLLM at the send."""
    record = answer(0, 100, 500, 5)
    record = RequestRecord(
        **{name: getattr(record, name) for name in RequestRecord.__slots__ if name != "connect_ns"},
        connect_ns=30 * MS,
    )

    assert metrics("vllm", [record])["Mean TTFT (ms)"] == 130
    assert metrics("sglang", [record])["Mean E2E Latency (ms)"] == 530
    assert metrics("aiperf", [record])["Request Latency (ms) avg"] == 530
    assert metrics("guidellm", [record])["TTFT ms Mean"] == 100


def test_requests_at_once_by_instant_or_by_second() -> None:
    """Two consecutive requests within a second are one at once for vLLM, two for SGLang."""
    records = [answer(0, 100, 400, 4), answer(1, 500, 800, 4, sent_ms=400)]

    assert metrics("vllm", records)["Peak concurrent requests"] == 1
    assert metrics("sglang", records)["Peak concurrent requests"] == 2


@pytest.mark.parametrize("tool", DIALECTS)
def test_nothing_answered_is_no_crash(tool: str) -> None:
    """Without a sample a metric is 0, None or left out, never NaN."""
    found = metrics(tool, kinds("http_500", "http_500"), ttft_ms=100.0)

    ttft = [value for name, value in found.items() if "TTFT" in name or "First Token" in name]
    assert set(ttft) == ({None} if tool == "aiperf" else {0})
    assert not any(math.isnan(value) for value in found.values() if value is not None)


def test_the_command_line_offers_every_dialect() -> None:
    """The option and the table name the same tools."""
    assert set(ON_THE_COMMAND_LINE) == set(DIALECTS)
