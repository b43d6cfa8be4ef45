"""The error that a client may have added to the metrics of its run, and to an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.results.client.limits import LIMITS
from harness.results.client.metrics import ClientMetric, wall_s
from harness.results.metrics import RunMetrics
from harness.results.statistics import Distribution
from harness.results.store import RunManifest
from harness.results.summary import RunRow

_DEGRADED = "DEGRADED"
_USAGE_LIMIT = next(limit for limit in LIMITS if limit.name == "usage_missing")


def certified_errors(
    measured: Mapping[str, ClientMetric], metrics: RunMetrics, manifest: RunManifest
) -> dict[str, float | None]:
    """Return the possible error of four metrics, as a share of their p50.

    A timestamp is at most as late as the p99 of the event loop lag. TTFT and the time from first to
    last token, from which TPOT is computed, may be wrong by that much. TTFT from due also includes
    the send delay. A load below the schedule and a stopped clock may affect all metrics. A value is
    None if the lag is unknown or the server did not count the tokens.
    """
    requests, values = metrics.requests, metrics.run
    general = _general(measured, manifest)
    lag_ms, delay_ms = measured["loop_lag"].value, measured["send_delay"].value
    paced = requests[requests["measured"] & requests["tpot_ms"].notna()]
    span_ms = (paced["last_token_ns"] - paced["first_token_ns"]).median() / 1e6
    late_ms = None if lag_ms is None else lag_ms + (delay_ms or 0.0)
    counted = (measured["usage_missing"].value or 0.0) <= _USAGE_LIMIT.degraded.least
    return {
        "ttft_ms": _sum(_part(lag_ms, _p50(values.ttft_ms)), general),
        "scheduled_ttft_ms": _sum(_part(late_ms, _p50(values.scheduled_ttft_ms)), general),
        "tpot_ms": _sum(_part(lag_ms, span_ms), general) if counted and len(paced) else None,
        "output_tokens_per_s": general if counted else None,
    }


def _general(measured: Mapping[str, ClientMetric], manifest: RunManifest) -> float:
    """Return the share of the load that was not sent plus the share of time the clock missed."""
    short = max(measured[name].value or 0.0 for name in ("load_not_delivered", "in_flight"))
    stood_s = max(0.0, measured["wall_clock_stepped"].value or 0.0) / 1e3
    length_s = wall_s(manifest)
    return short + (stood_s / length_s if length_s else 0.0)


def _p50(distribution: Distribution | None) -> float | None:
    return distribution.p50 if distribution else None


def _part(error_ms: float | None, whole_ms: float | None) -> float | None:
    return error_ms / whole_ms if error_ms is not None and whole_ms else None


def _sum(part: float | None, general: float) -> float | None:
    return None if part is None else part + general


def error_of_pairs(pairs: Sequence[tuple[RunRow, RunRow]], metric: str) -> float | None:
    """Return the largest effect that the clients of these pairs of runs can cause, as a share.

    The errors of both runs of a pair are added, and the worst block counts. Only DEGRADED runs have
    an error: the result is 0 without one, and None if the error of one is unknown.
    """
    worst = 0.0
    for pair in pairs:
        errors = [_error(run, metric) for run in pair]
        known = [error for error in errors if error is not None]
        if len(known) < len(errors):
            return None
        worst = max(worst, sum(known))
    return worst


def _error(run: RunRow, metric: str) -> float | None:
    if run.certificate.verdict != _DEGRADED:
        return 0.0
    return run.certificate.errors.get(metric.partition(".")[0])
