"""The one list of metric names, with the unit and the better direction of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.results.store import LoadFacts
from harness.results.summary import MetricValues

LOWER, HIGHER = "lower", "higher"
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

# One value a request, or (itl_ms, chunk_gap_ms) one a gap; a run has their statistics.
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
class MetricKind:
    """What a reader must know of a metric to compare two values of it."""

    unit: str  # ms | tok/s | req/s | share | count | tokens | price
    better: str | None  # lower | higher; None: neither is better in itself


# One value a run.
SCALARS: Mapping[str, MetricKind] = {
    "output_tokens_per_s": MetricKind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_whole_run": MetricKind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_per_user": MetricKind(unit="tok/s", better=HIGHER),
    "output_tokens_per_s_per_gpu": MetricKind(unit="tok/s", better=HIGHER),
    "total_tokens_per_s": MetricKind(unit="tok/s", better=HIGHER),
    "total_tokens_per_s_per_gpu": MetricKind(unit="tok/s", better=HIGHER),
    "requests_per_s": MetricKind(unit="req/s", better=HIGHER),
    "requests_per_s_whole_run": MetricKind(unit="req/s", better=HIGHER),
    "goodput_rps": MetricKind(unit="req/s", better=HIGHER),
    "goodput_share": MetricKind(unit="share", better=HIGHER),
    "prefix_hit_rate": MetricKind(unit="share", better=HIGHER),
    "prefix_hit_ceiling": MetricKind(unit="share", better=None),
    "clumped_share": MetricKind(unit="share", better=LOWER),
    "acceptance_rate": MetricKind(unit="share", better=HIGHER),
    "mean_accepted_length": MetricKind(unit="tokens", better=HIGHER),
    "completed": MetricKind(unit="count", better=None),
    "preemptions": MetricKind(unit="count", better=LOWER),
    "cost_per_million_output_tokens": MetricKind(unit="price", better=LOWER),
}


def kind(metric: str) -> MetricKind:
    """Return unit and direction of a metric name such as `goodput_rps` or `ttft_ms.p99`."""
    name = metric.partition(".")[0]
    return MetricKind(unit="ms", better=LOWER) if name in DISTRIBUTIONS else SCALARS[name]


def headline_metrics(load: LoadFacts) -> tuple[str, ...]:
    """Return the metrics whose effects are reported for runs under this load."""
    scheduled = ("scheduled_ttft_ms.p50", "scheduled_ttft_ms.p99") if load.is_open_loop else ()
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


def primary_metrics(load: LoadFacts) -> tuple[str, str, str]:
    """Return the three metrics that get a verdict.

    In open loop the time to the first token counts from when the request was due: from the send
    alone, a server too slow for its load would look fast.
    """
    ttft = "scheduled_ttft_ms.p50" if load.is_open_loop else "ttft_ms.p50"
    return ("output_tokens_per_s", ttft, "tpot_ms.p50")


def metric_names() -> Iterator[str]:
    """Yield the flat names of a run's metrics: `metric.statistic`, and those of one value."""
    for name in DISTRIBUTIONS:
        yield from (f"{name}.{statistic}" for statistic in (*STATISTICS, "n"))
    yield from SCALARS


def flatten(metrics: MetricValues) -> Iterator[tuple[str, int | float | None]]:
    """Yield (flat name, value) of one run's metrics, failures left out."""
    for flat in metric_names():
        name, _, statistic = flat.partition(".")
        value = getattr(metrics, name)
        yield flat, getattr(value, statistic) if value is not None and statistic else value
