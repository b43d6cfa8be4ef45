"""The metrics of `vllm bench serve`, computed from our records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.results.dialects.requests import Requests, most_at_once, whole_length_s
from harness.results.dialects.serving_answers import ServingAnswers, busiest_second, serving_spread
from harness.results.dialects.tool_metric import (
    Limits,
    ToolMetric,
    added,
    any_limit,
    linear,
    mean,
    per,
    total,
)

ABOUT = "vllm bench serve (vLLM 0.32)"
APPROXIMATIONS = (
    (
        "our records have no chunks without text; in vLLM such a chunk ends TTFT if it is the "
        "first (in chat, up to 0.32, even a chunk with only a role), ends E2EL and TPOT if it is "
        "the last, and always adds an ITL sample"
    ),
    "the duration is the time from the first due request until the last stream is closed",
    (
        "tokens are the server's usage; without usage vLLM tokenizes the text again, and here "
        "chunks are counted"
    ),
    (
        "vLLM ignores an error event after output; the request counts as answered, there and here. "
        "vLLM counts a stream that ends early without an error as answered; here it stays failed"
    ),
)

# Kinds of failure that vLLM does not detect if the stream had output.
_UNSEEN = ("error_event", "aborted")
_SPREAD = serving_spread(
    {"Mean": (mean, "mean"), "Median": (linear(0.5), "p50"), "P99": (linear(0.99), "p99")}
)


def tool_metrics(requests: Requests, limits: Limits) -> Iterator[ToolMetric]:
    """Yield the lines of the tool's block, in its order and units.

    Failed requests are counted and are in no other metric. A metric without a sample is 0.
    """
    answers = _answers(requests)
    yield from _counts(requests, answers)
    yield from _rates(requests, answers, limits)
    yield from _latencies(requests, answers)


def _answers(requests: Requests) -> ServingAnswers:
    """Return vLLM's latencies: from before connecting to the first and the last chunk."""
    chosen = requests.answered(*_UNSEEN) & ~np.isnan(requests.first_ms)
    return ServingAnswers(
        chosen=chosen,
        ttft_ms=(requests.first_ms - requests.start_ms)[chosen],
        latency_ms=(requests.last_ms - requests.start_ms)[chosen],
        tokens=requests.tokens[chosen],
    )


def _counts(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    errors = "ignores errors inside a stream"
    failed = len(requests) - answers.count
    yield ToolMetric(name="Successful requests", value=answers.count, own="counts.ok", why=errors)
    yield ToolMetric(name="Failed requests", value=failed, own="counts.failed", why=errors)
    yield ToolMetric(
        name="Benchmark duration (s)",
        value=whole_length_s(requests),
        own="counts.duration_s",
        why="from the first due time",
    )
    yield ToolMetric(
        name="Total input tokens",
        value=total(requests.prompt_tokens[answers.chosen]),
        own="counts.prompt_tokens",
        why=errors,
    )
    yield ToolMetric(
        name="Total generated tokens",
        value=int(answers.tokens.sum()),
        own="counts.output_tokens",
        why=errors,
    )


def _rates(requests: Requests, answers: ServingAnswers, limits: Limits) -> Iterator[ToolMetric]:
    length_s = whole_length_s(requests)
    given = total(requests.prompt_tokens[answers.chosen])
    made = int(answers.tokens.sum())
    yield ToolMetric(
        name="Request throughput (req/s)",
        value=per(answers.count, length_s),
        own="metrics.requests_per_s",
    )
    if any_limit(limits):
        yield ToolMetric(
            name="Request goodput (req/s)",
            value=per(answers.good(limits), length_s),
            own="metrics.goodput_rps",
            why="from the send, whole run",
        )
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
    starts_ms = requests.start_ms[answers.chosen]
    yield ToolMetric(
        name="Peak concurrent requests",
        value=most_at_once(starts_ms, starts_ms + answers.latency_ms),
        own=None,
    )
    yield ToolMetric(
        name="Total token throughput (tok/s)",
        value=per(added(given, made), length_s),
        own="metrics.total_tokens_per_s",
    )


def _latencies(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    connecting = requests.connecting(answers.chosen)
    bundled = requests.bundled(answers.chosen)
    gaps_ms = requests.chunk_gaps_ms(answers.chosen)
    yield from _SPREAD.of("{} TTFT (ms)", answers.ttft_ms, own="ttft_ms", why=connecting)
    yield from _SPREAD.of(
        "{} TPOT (ms)",
        answers.tpot_ms,
        own="tpot_ms",
        why="first chunk counted as 1 token" if bundled else "",
    )
    yield from _SPREAD.of(
        "{} ITL (ms)",
        gaps_ms,
        own="itl_ms",
        why="gaps between chunks, not tokens" if bundled else "",
    )
    yield from _SPREAD.of("{} E2EL (ms)", answers.latency_ms, own="e2e_ms", why=connecting)
