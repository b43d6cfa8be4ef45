"""`vllm bench serve`: its metrics from our records."""

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
        "a chunk without text is not in the records: as the first of a stream it ends TTFT there "
        "(in chat, up to 0.32, even one with only a role), as the last it ends E2EL and TPOT, and "
        "each is one ITL sample more"
    ),
    "the clock runs from when the first request was due until the last stream was closed",
    (
        "tokens are the server's usage; without it vLLM tokenises the text again, here chunks are "
        "counted"
    ),
    (
        "vLLM does not see an error event in a stream that began well, so the request counts as "
        "answered; so does one that ended cleanly but early, which stays failed here"
    ),
)

# Kinds of failure that vLLM does not see where the stream had brought output.
_UNSEEN = ("error_event", "aborted")
_SPREAD = serving_spread(
    {"Mean": (mean, "mean"), "Median": (linear(0.5), "p50"), "P99": (linear(0.99), "p99")}
)


def tool_metrics(requests: Requests, limits: Limits) -> Iterator[ToolMetric]:
    """Yield the lines of the tool's block, in its order and units.

    Failed requests are counted and in no other metric. Where there is no sample it prints 0.
    """
    answers = _answers(requests)
    yield from _counts(requests, answers)
    yield from _rates(requests, answers, limits)
    yield from _latencies(requests, answers)


def _answers(requests: Requests) -> ServingAnswers:
    """TTFT and end are those of the first and last chunk; time to connect is inside."""
    chosen = requests.answered(*_UNSEEN) & ~np.isnan(requests.first_ms)
    return ServingAnswers(
        chosen=chosen,
        ttft_ms=(requests.first_ms - requests.start_ms)[chosen],
        latency_ms=(requests.last_ms - requests.start_ms)[chosen],
        tokens=requests.tokens[chosen],
    )


def _counts(requests: Requests, answers: ServingAnswers) -> Iterator[ToolMetric]:
    errors = "does not see errors inside a stream"
    failed = len(requests) - answers.count
    yield ToolMetric(name="Successful requests", value=answers.count, own="counts.ok", why=errors)
    yield ToolMetric(name="Failed requests", value=failed, own="counts.failed", why=errors)
    yield ToolMetric(
        name="Benchmark duration (s)",
        value=whole_length_s(requests),
        own="counts.duration_s",
        why="from when the first was due",
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
            why="from the send, of the whole run",
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
        why="chunks, not tokens, of a second",
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
        why="first chunk taken as 1 token" if bundled else "",
    )
    yield from _SPREAD.of(
        "{} ITL (ms)", gaps_ms, own="itl_ms", why="gaps of chunks, not of tokens" if bundled else ""
    )
    yield from _SPREAD.of("{} E2EL (ms)", answers.latency_ms, own="e2e_ms", why=connecting)
