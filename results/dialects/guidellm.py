"""The metrics of GuideLLM, computed from our records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from harness.results.dialects.requests import Chosen, Requests, whole_length_s
from harness.results.dialects.tool_metric import Floats, Limits, ToolMetric, any_limit, meeting, per

ABOUT = "guidellm run (GuideLLM 0.8.1), without warm-up and cool-down"
APPROXIMATIONS = (
    "GuideLLM reads times from the wall clock, which may be set during a run",
    "GuideLLM ends a request when it reads [DONE]; here it ends with the stream, slightly later",
    "GuideLLM starts a run when it sends the first request; here it starts when that one is due",
    (
        "for a failed request the output tokens are those received before the failure, and the "
        "prompt tokens are those reported by the server, if any"
    ),
    "GuideLLM counts a stream that ends early without an error as answered; here it stays failed",
)

# Kinds of failure that GuideLLM does not detect, and the kind that it counts separately.
_UNSEEN = ("aborted", "no_token")
_CANCELLED = "cancelled"
_SHARES: Mapping[str, float] = {"Mdn": 0.50, "p95": 0.95, "p99": 0.99}
_OURS = {"Mean": "mean", "Mdn": "p50", "p95": "p95", "p99": "p99"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GuidellmAnswers:
    """The successful requests; NaN if a request has no such metric."""

    chosen: Chosen
    latency_ms: Floats
    ttft_ms: Floats
    itl_ms: Floats
    tpot_ms: Floats
    tokens: Floats


def tool_metrics(requests: Requests, limits: Limits) -> Iterator[ToolMetric]:
    """Yield the metrics of GuideLLM's console, in its units.

    Latencies cover successful requests; rates cover all requests, including failed ones. An empty
    answer is a successful request. A metric without a sample is 0.
    """
    answers = _answers(requests)
    yield from _counts(requests, answers)
    yield from _latencies(requests, answers)
    yield from _rates(requests)
    if any_limit(limits):
        yield from _goodput(requests, answers, limits)


def _answers(requests: Requests) -> _GuidellmAnswers:
    """Return GuideLLM's latencies: ITL excludes the first token, TPOT is send to end per token."""
    chosen = requests.answered(*_UNSEEN)
    tokens = requests.tokens[chosen]
    sent_ms, first_ms, last_ms, closed_ms = (
        times[chosen]
        for times in (requests.sent_ms, requests.first_ms, requests.last_ms, requests.closed_ms)
    )
    later = np.where(tokens > 1, tokens - 1, np.nan)
    return _GuidellmAnswers(
        chosen=chosen,
        latency_ms=closed_ms - sent_ms,
        ttft_ms=first_ms - sent_ms,
        itl_ms=(last_ms - first_ms) / later,
        tpot_ms=(last_ms - sent_ms) / np.where(tokens > 0, tokens, np.nan),
        tokens=tokens,
    )


def _counts(requests: Requests, answers: _GuidellmAnswers) -> Iterator[ToolMetric]:
    ok, cut = int(answers.chosen.sum()), requests.failure.count(_CANCELLED)
    yield ToolMetric(name="Requests Comp", value=ok, own="counts.ok", why="includes empty answers")
    yield ToolMetric(name="Requests Inc", value=cut, own=None, why="cancelled requests")
    yield ToolMetric(
        name="Requests Err",
        value=len(requests) - ok - cut,
        own="counts.failed",
        why="without cancelled requests",
    )


def _latencies(requests: Requests, answers: _GuidellmAnswers) -> Iterator[ToolMetric]:
    tokens, ones = answers.tokens, np.ones(len(answers.tokens))
    bundled = "; first chunk is 1" if requests.bundled(answers.chosen) else ""
    done = "until [DONE]" if requests.ends_late(answers.chosen) else ""
    latency_s = answers.latency_ms / 1e3
    yield from _spread(
        "Request Latency Sec", latency_s, ones, own="e2e_ms", own_factor=1e-3, why=done
    )
    yield from _spread("TTFT ms", answers.ttft_ms, ones, own="ttft_ms")
    yield from _spread(
        "ITL ms", answers.itl_ms, tokens - 1, own="tpot_ms", why=f"weighted by tokens{bundled}"
    )
    yield from _spread(
        "TPOT ms", answers.tpot_ms, tokens, own="tpot_ms", why="includes TTFT, / all tokens"
    )


def _spread(
    name: str,
    values: Floats,
    weights: Floats,
    *,
    own: str,
    own_factor: float = 1.0,
    why: str = "",
) -> Iterator[ToolMetric]:
    for word, value in _statistics(values, weights).items():
        yield ToolMetric(
            name=f"{name} {word}",
            value=value,
            own=f"metrics.{own}.{_OURS[word]}",
            own_factor=own_factor,
            why=why or ("" if word == "Mean" else "nearest-rank percentile"),
        )


def _statistics(values: Floats, weights: Floats) -> dict[str, float]:
    """Return the weighted mean and percentiles; 0 without a value.

    A percentile is the smallest value whose cumulative weight reaches that share.
    """
    kept = ~np.isnan(values) & (weights > 0)
    if not kept.any():
        return dict.fromkeys(_OURS, 0.0)
    order = np.argsort(values[kept], kind="stable")
    ordered, weight = values[kept][order], weights[kept][order]
    reached = np.cumsum(weight) / weight.sum()
    places = {word: int(np.searchsorted(reached, share)) for word, share in _SHARES.items()}
    found = {"Mean": float(np.average(ordered, weights=weight))}
    return found | {word: float(ordered[place]) for word, place in places.items()}


def _rates(requests: Requests) -> Iterator[ToolMetric]:
    """Yield rates over all requests.

    Token rates cover the time from the first to the last token event, request rates the whole run.
    Prompt tokens count at the first token event, so a single request has no rate of them.
    """
    has_output = ~np.isnan(requests.first_ms)
    first_ms = np.where(has_output, requests.first_ms, requests.closed_ms)
    last_ms = np.where(has_output, requests.last_ms, requests.closed_ms)
    made = np.where(has_output, requests.tokens, 0.0)
    given = np.nan_to_num(requests.prompt_tokens)
    length_s = whole_length_s(requests)
    under_way_ms = np.nansum(requests.closed_ms - requests.sent_ms)
    yield ToolMetric(
        name="Requests Concurrency Mean", value=per(under_way_ms / 1e3, length_s), own=None
    )
    yield ToolMetric(
        name="Requests Per Sec Mean",
        value=per(len(requests), length_s),
        own="metrics.requests_per_s",
        why="includes failed requests" if any(requests.failure) else "",
    )
    yield ToolMetric(
        name="Input Tokens Per Sec Mean",
        value=_rate(given.sum(), first_ms, first_ms),
        own=None,
        why="between first tokens",
    )
    yield ToolMetric(
        name="Output Tokens Per Sec Mean",
        value=_rate(made.sum(), first_ms, last_ms),
        own="metrics.output_tokens_per_s",
        why="first to last token of the run",
    )
    yield ToolMetric(
        name="Total Tokens Per Sec Mean",
        value=_rate((given + made).sum(), first_ms, last_ms),
        own="metrics.total_tokens_per_s",
        why="first to last token of the run",
    )


def _rate(tokens: float, from_ms: Floats, to_ms: Floats) -> float:
    if not len(from_ms) or to_ms.max() <= from_ms.min():
        return 0.0
    return float(tokens / (to_ms.max() - from_ms.min()) * 1e3)


def _goodput(requests: Requests, answers: _GuidellmAnswers, limits: Limits) -> Iterator[ToolMetric]:
    """Yield goodput; requests without a limited metric are left out, and errors are not good."""
    seen = {"ttft_ms": answers.ttft_ms, "tpot_ms": answers.itl_ms, "e2e_ms": answers.latency_ms}
    limited = [seen[name] for name, limit in limits.items() if limit is not None]
    judged = int((~np.isnan(limited).any(axis=0)).sum())
    good = int(meeting(limits, seen).sum())
    cut = requests.failure.count(_CANCELLED)
    errors = len(requests) - int(answers.chosen.sum()) - cut
    share = per(100 * good, judged + errors)
    yield ToolMetric(
        name="Goodput Attainment %",
        value=share,
        own="metrics.goodput_share",
        own_factor=100,
        why="from the send, one-token left out",
    )
    yield ToolMetric(
        name="Goodput Per Sec Mean",
        value=None if share is None else per(good, whole_length_s(requests)),
        own="metrics.goodput_rps",
        why="from the send, one-token left out",
    )
