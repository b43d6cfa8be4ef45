"""The one list of metric names, with the unit and the better direction of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LOWER, HIGHER = "lower", "higher"
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

# One figure a request, or (itl_ms, chunk_gap_ms) one a gap; a run holds their statistics.
DISTRIBUTIONS = (
    "ttft_ms",
    "scheduled_ttft_ms",
    "tpot_ms",
    "itl_ms",
    "chunk_gap_ms",
    "e2e_ms",
    "scheduled_e2e_ms",
    "tail_ms",
    "send_delay_ms",
    "slo_ttft_ms",
    "slo_e2e_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a reader must know of a metric to compare two values of it."""

    unit: str  # ms | tok/s | req/s | share | count | tokens | price
    better: str | None  # lower | higher; None: neither is better in itself


# One figure a run.
SCALARS: Mapping[str, Kind] = {
    "output_tokens_per_s": Kind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_whole_run": Kind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_per_user": Kind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_per_gpu": Kind(unit="tok/s", better=HIGHER),
    "total_tokens_per_s": Kind(unit="tok/s", better=HIGHER),
    "total_tokens_per_s_per_gpu": Kind(unit="tok/s", better=HIGHER),
    "requests_per_s": Kind(unit="req/s", better=HIGHER),
    "requests_per_s_whole_run": Kind(unit="req/s", better=HIGHER),
    "goodput_rps": Kind(unit="req/s", better=HIGHER),
    "goodput_share": Kind(unit="share", better=HIGHER),
    "prefix_hit_rate": Kind(unit="share", better=HIGHER),
    "prefix_hit_ceiling": Kind(unit="share", better=None),
    "acceptance_rate": Kind(unit="share", better=HIGHER),
    "mean_accepted_length": Kind(unit="tokens", better=HIGHER),
    "completed": Kind(unit="count", better=None),
    "preemptions": Kind(unit="count", better=LOWER),
    "cost_per_million_output_tokens": Kind(unit="price", better=LOWER),
}


def kind(metric: str) -> Kind:
    """Return unit and direction of a metric name such as `goodput_rps` or `ttft_ms.p99`."""
    name = metric.partition(".")[0]
    return Kind(unit="ms", better=LOWER) if name in DISTRIBUTIONS else SCALARS[name]


def is_open_loop(load: Mapping[str, Any]) -> bool:
    """Return whether requests were due at times of their own, not when a slot came free."""
    return bool(load["mode"] != "concurrency")


def headline_metrics(load: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics whose effects are reported for runs under this load."""
    scheduled = ("scheduled_ttft_ms.p50", "scheduled_ttft_ms.p99") if is_open_loop(load) else ()
    return (
        "output_tokens_per_s",
        "output_tokens_per_s_per_user",
        "output_tokens_per_s_per_gpu",
        *scheduled,
        "ttft_ms.p50",
        "ttft_ms.p99",
        "tpot_ms.p50",
        "tpot_ms.p99",
        "e2e_ms.p99",
        "goodput_rps",
    )


def primary_metrics(load: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the three metrics that get a verdict.

    In open loop the time to the first token counts from when the request was due: from the send
    alone, a server too slow for its load would look fast.
    """
    ttft = "scheduled_ttft_ms.p50" if is_open_loop(load) else "ttft_ms.p50"
    return ("output_tokens_per_s", ttft, "tpot_ms.p50")


def flatten(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (`metric.statistic` or scalar name, value) of one run's metrics, failures left out."""
    for name in DISTRIBUTIONS:
        statistics = metrics.get(name) or {}
        for statistic in (*STATISTICS, "n"):
            yield f"{name}.{statistic}", statistics.get(statistic)
    for name in SCALARS:
        yield name, metrics.get(name)
