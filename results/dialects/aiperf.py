"""The metrics of AIPerf's `aiperf profile`, computed from our records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.results.dialects.requests import Chosen, Requests
from harness.results.dialects.tool_metric import (
    Floats,
    Limits,
    Spread,
    ToolMetric,
    added,
    any_limit,
    linear,
    mean,
    meeting,
    per,
    total,
)

ABOUT = "aiperf profile --streaming (AIPerf 0.13)"
APPROXIMATIONS = (
    (
        "AIPerf counts tokens with its own tokenizer, unless --use-server-token-count is set; here "
        "tokens are the server's usage, and prompts include the chat template"
    ),
    (
        "AIPerf counts the first chunk as 1 token, unless --per-chunk-usage is set: then its Inter "
        "Token Latency is our tpot_ms"
    ),
    "AIPerf estimates percentiles of Inter Chunk Latency from a sketch; here they are exact",
    "AIPerf measures Benchmark Duration with the wall clock",
    (
        "AIPerf detects an error event only by a line `event: error`; here none is detected. "
        "AIPerf counts a stream that ends early without an error as answered; here it stays failed"
    ),
)

# Kinds of failure that AIPerf does not detect if the stream had output.
_UNSEEN = ("error_event", "aborted")
_SPREAD = Spread(
    statistics={
        "avg": (mean, "mean"),
        "p50": (linear(0.5), "p50"),
        "p90": (linear(0.9), "p90"),
        "p99": (linear(0.99), "p99"),
    }
)
_AVERAGE = Spread(statistics={"avg": (mean, "")})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AiperfAnswers:
    """The valid requests; NaN if a request has no such metric."""

    chosen: Chosen
    ttft_ms: Floats
    latency_ms: Floats
    tokens: Floats
    itl_ms: Floats  # one value per request with two or more tokens
    length_s: float | None  # first start to last content of these requests


def tool_metrics(requests: Requests, limits: Limits) -> Iterator[ToolMetric]:
    """Yield the metrics with AIPerf's headers and units.

    A failed request, or one without content, counts as an error and is in no other metric. A metric
    without a sample is left out.
    """
    answers = _answers(requests)
    yield from _latencies(requests, answers)
    yield from _rates(requests, answers)
    if any_limit(limits):
        yield from _goodput(requests, answers, limits)


def _answers(requests: Requests) -> _AiperfAnswers:
    chosen = requests.answered(*_UNSEEN) & ~np.isnan(requests.first_ms)
    start_ms, last_ms = requests.start_ms[chosen], requests.last_ms[chosen]
    tokens = requests.tokens[chosen]
    itl_ms = np.full(len(tokens), np.nan)
    several = tokens >= 2
    itl_ms[several] = (last_ms - requests.first_ms[chosen])[several] / (tokens[several] - 1)
    return _AiperfAnswers(
        chosen=chosen,
        ttft_ms=requests.first_ms[chosen] - start_ms,
        latency_ms=last_ms - start_ms,
        tokens=tokens,
        itl_ms=itl_ms,
        length_s=float(last_ms.max() - start_ms.min()) / 1e3 if chosen.any() else None,
    )


def _latencies(requests: Requests, answers: _AiperfAnswers) -> Iterator[ToolMetric]:
    chosen = answers.chosen
    connecting = requests.connecting(chosen)
    bundled = "first chunk counted as 1 token" if requests.bundled(chosen) else ""
    itl_ms = answers.itl_ms[~np.isnan(answers.itl_ms)]
    yield from _SPREAD.of(
        "Time to First Token (ms) {}", answers.ttft_ms, own="ttft_ms", why=connecting
    )
    yield from _SPREAD.of("Time to Second Token (ms) {}", requests.second_ms(chosen), own=None)
    yield from _SPREAD.of(
        "Request Latency (ms) {}", answers.latency_ms, own="e2e_ms", why=connecting
    )
    yield from _SPREAD.of("Inter Token Latency (ms) {}", itl_ms, own="tpot_ms", why=bundled)
    yield from _SPREAD.of(
        "Inter Chunk Latency (ms) {}", requests.chunk_gaps_ms(chosen), own="chunk_gap_ms"
    )


def _rates(requests: Requests, answers: _AiperfAnswers) -> Iterator[ToolMetric]:
    given, made = total(requests.prompt_tokens[answers.chosen]), int(answers.tokens.sum())
    count, length_s = len(answers.tokens), answers.length_s
    paced = answers.itl_ms[answers.itl_ms > 0]
    yield from _AVERAGE.of("Output Token Throughput Per User {}", 1e3 / paced, own=None)
    yield from _AVERAGE.of("Output Sequence Length (tokens) {}", answers.tokens, own=None)
    yield ToolMetric(
        name="Output Token Throughput (tokens/sec)",
        value=per(made, length_s),
        own="metrics.output_tokens_per_s",
        why="until the last content",
    )
    yield ToolMetric(
        name="Total Token Throughput (tokens/sec)",
        value=per(added(given, made), length_s),
        own="metrics.total_tokens_per_s",
        why="until the last content",
    )
    yield ToolMetric(
        name="Request Throughput (requests/sec)",
        value=per(count, length_s),
        own="metrics.requests_per_s",
        why="until the last content",
    )
    yield ToolMetric(
        name="Benchmark Duration (sec)",
        value=length_s,
        own="counts.duration_s",
        why="answered requests, to last content",
    )
    yield ToolMetric(name="Request Count (requests)", value=count, own="counts.ok")
    yield ToolMetric(
        name="Error Request Count (requests)", value=len(requests) - count, own="counts.failed"
    )


def _goodput(requests: Requests, answers: _AiperfAnswers, limits: Limits) -> Iterator[ToolMetric]:
    """Yield goodput; a request without a limited metric is not good: one token has no ITL."""
    seen = {"ttft_ms": answers.ttft_ms, "tpot_ms": answers.itl_ms, "e2e_ms": answers.latency_ms}
    good = int(meeting(limits, seen).sum())
    yield ToolMetric(
        name="Goodput (requests/sec)",
        value=per(good, answers.length_s),
        own="metrics.goodput_rps",
        why="from the send, one-token fails ITL",
    )
    yield ToolMetric(
        name="Good Request Fraction (ratio)",
        value=per(good, len(requests)),
        own="metrics.goodput_share",
        why="from the send, one-token fails ITL",
    )
