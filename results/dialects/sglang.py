"""The metrics of SGLang's `bench_serving` (OpenAI chat client), computed from our records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.results.dialects.requests import Requests, whole_length_s
from harness.results.dialects.serving_answers import ServingAnswers, busiest_second, serving_spread
from harness.results.dialects.tool_metric import (
    Floats,
    Limits,
    Spread,
    ToolMetric,
    added,
    any_limit,
    greatest,
    linear,
    mean,
    per,
    total,
)

ABOUT = "sglang.bench_serving (SGLang 0.5.23, sglang-oai-chat)"
APPROXIMATIONS = (
    (
        "SGLang opens a connection for each request, and TTFT and E2E include it; here nothing is "
        "added if a connection was reused"
    ),
    "SGLang ends a request with the line [DONE]; here it ends with the stream, slightly later",
    (
        "SGLang does not request usage, except in chats of several turns; it uses the requested "
        "length as the length of every answer, even if the answer ended early"
    ),
    (
        "SGLang requests /server_info before it stops its clock; here the clock stops when the "
        "last stream is closed"
    ),
    (
        "if an SGLang server uses speculation, the tool divides each gap by the tokens of its "
        "chunk: that ITL is our itl_ms"
    ),
    (
        "SGLang ignores an error event after output (except over /v1/completions) and an empty "
        "answer; both count as answered, there and here. SGLang counts a stream that ends early "
        "without an error as answered; here it stays failed"
    ),
)

# Kinds of failure that SGLang's chat client does not detect.
_UNSEEN = ("error_event", "aborted", "no_token")
_P90_TO_P99 = {
    "P90": (linear(0.90), "p90"),
    "P95": (linear(0.95), "p95"),
    "P99": (linear(0.99), "p99"),
}
_OF_REQUESTS = {"Mean": (mean, "mean"), "Median": (linear(0.5), "p50"), **_P90_TO_P99}
_SPREAD = serving_spread(_OF_REQUESTS)
_OF_E2E = Spread(statistics=_OF_REQUESTS)
_OF_GAPS = serving_spread({**_OF_REQUESTS, "Max": (greatest, "")})


def tool_metrics(requests: Requests, limits: Limits) -> Iterator[ToolMetric]:
    """Yield the lines of the tool's block, in its order and units.

    Failed requests are in no line, and their number is not printed. An empty answer is successful
    and has TTFT 0. A metric without a sample is 0.
    """
    answers = _answers(requests)
    yield from _counts(requests, answers)
    yield from _rates(requests, answers)
    if any_limit(limits):
        yield from _goodput(requests, answers, limits)
    yield from _latencies(requests, answers)


def _answers(requests: Requests) -> ServingAnswers:
    chosen = requests.answered(*_UNSEEN)
    tokens = requests.tokens if requests.several_turns else requests.asked_tokens
    return ServingAnswers(
        chosen=chosen,
        ttft_ms=np.nan_to_num((requests.first_ms - requests.start_ms)[chosen], nan=0.0),
        latency_ms=(requests.closed_ms - requests.start_ms)[chosen],
        tokens=tokens[chosen],
    )


def _given(requests: Requests, answers: ServingAnswers) -> int | None:
    """Return the prompt tokens; 0 for chats of several turns, which the tool does not add up."""
    return 0 if requests.several_turns else total(requests.prompt_tokens[answers.chosen])


def _counts(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    yield ToolMetric(
        name="Successful requests",
        value=answers.count,
        own="counts.ok",
        why="ignores errors inside a stream",
    )
    yield ToolMetric(
        name="Benchmark duration (s)",
        value=whole_length_s(requests),
        own="counts.duration_s",
        why="from the first due time",
    )
    yield ToolMetric(
        name="Total input tokens",
        value=_given(requests, answers),
        own="counts.prompt_tokens",
        why="not counted in chats",
    )
    yield ToolMetric(
        name="Total generated tokens",
        value=int(answers.tokens.sum()),
        own="counts.output_tokens",
        why="the requested lengths",
    )


def _rates(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    length_s = whole_length_s(requests)
    given, made = _given(requests, answers), int(answers.tokens.sum())
    yield ToolMetric(
        name="Request throughput (req/s)",
        value=per(answers.count, length_s),
        own="metrics.requests_per_s",
    )
    yield ToolMetric(name="Input token throughput (tok/s)", value=per(given, length_s), own=None)
    yield ToolMetric(
        name="Output token throughput (tok/s)",
        value=per(made, length_s),
        own="metrics.output_tokens_per_s",
    )
    yield ToolMetric(
        name="Peak output token throughput (tok/s)",
        value=busiest_second(requests, answers.chosen),
        own=None,
        why="counts chunks, not tokens",
    )
    yield ToolMetric(
        name="Peak concurrent requests",
        value=_most_in_a_second(requests.start_ms[answers.chosen], answers.latency_ms),
        own=None,
        why="all requests within one second",
    )
    yield ToolMetric(
        name="Total token throughput (tok/s)",
        value=per(added(given, made), length_s),
        own="metrics.total_tokens_per_s",
        why="without prompts of chats" if requests.several_turns else "",
    )
    yield ToolMetric(
        name="Concurrency",
        value=per(float(answers.latency_ms.sum()) / 1e3, length_s),
        own=None,
        why="mean over the whole run",
    )


def _most_in_a_second(starts_ms: Floats, lengths_ms: Floats) -> int:
    """Return the highest number of requests in flight in one whole second of the run."""
    if not len(starts_ms):
        return 0
    first = ((starts_ms - starts_ms.min()) // 1e3).astype(np.int64)
    last = ((starts_ms + lengths_ms - starts_ms.min()) // 1e3).astype(np.int64)
    steps = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return int(np.cumsum(steps).max())


def _goodput(requests: Requests, answers: ServingAnswers, limits: Limits) -> Iterator[ToolMetric]:
    good = answers.good(limits)
    yield ToolMetric(
        name="Request goodput (req/s)",
        value=per(good, whole_length_s(requests)),
        own="metrics.goodput_rps",
        why="from the send, whole run",
    )
    yield ToolMetric(
        name="SLO attainment (%)",
        value=per(100 * good, len(requests)),
        own="metrics.goodput_share",
        own_factor=100,
        why="from the send, all requests",
    )


def _latencies(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    chosen = answers.chosen
    bundled, late = requests.bundled(chosen), requests.ends_late(chosen)
    connecting = requests.connecting(chosen)
    other_length = not np.array_equal(answers.tokens, requests.tokens[chosen])
    end = "; ".join(["until [DONE]"] * late + [connecting] * bool(connecting))
    pace = "until [DONE] / (requested length - 1)" if bundled or late or other_length else ""
    yield from _OF_E2E.of("{} E2E Latency (ms)", answers.latency_ms, own="e2e_ms", why=end)
    yield from _SPREAD.of("{} TTFT (ms)", answers.ttft_ms, own="ttft_ms", why=connecting)
    yield from _SPREAD.of("{} TPOT (ms)", answers.tpot_ms, own="tpot_ms", why=pace)
    yield from _OF_GAPS.of(
        "{} ITL (ms)",
        requests.chunk_gaps_ms(chosen),
        own="itl_ms",
        why="gaps between chunks, not tokens" if bundled else "",
    )
