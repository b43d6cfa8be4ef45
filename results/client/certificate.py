"""The verdict on a run's client: TRUSTED, DEGRADED or INVALID.

A pure function of records and manifest. `limits` defines the limits, `metrics` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.results.client.error import certified_errors
from harness.results.client.limits import ENOUGH_READINGS, LIMITS, ClientLimit, amount
from harness.results.client.metrics import ClientMetric, client_metrics
from harness.results.metrics import RunMetrics
from harness.results.store import RunManifest
from harness.results.summary import Certificate, CertificateReason, CertifiedValue

WORST_FIRST = INVALID, DEGRADED, TRUSTED = "INVALID", "DEGRADED", "TRUSTED"
_IDLE_CPU = 0.5  # CPU share below which a late client waited for the core instead of using it
_MORE = "more client processes (`--workers {more}` of harness load, `workers: {more}` in a sweep)"
_RELIEF = f"use {_MORE} or a quieter machine"
_KEPT = f"others took the client's core, it used {{cpu}}: use a quieter machine, or {_MORE}"
_GO_FIRST = (
    "; or run as root or with CAP_SYS_NICE, and not as a batch or idle process, for real-time "
    "priority"
)
_REMEDIES = {
    "open_files": "raise the limit of open files (`ulimit -n`), or lower the concurrency",
    "ports": "configure the server to keep connections open, or widen net.ipv4.ip_local_port_range",
    "failed_share": "fix the cause of the failures, or lower the load; in a sweep file "
    "`max_failed_share` sets the limit",
    "usage_missing": "configure the server to send usage (`stream_options.include_usage`)",
    "shorter_than_asked": "make the engine ignore the end-of-text token (`ignore_eos`), so that "
    "all arms produce the same number of tokens",
    "read_on_the_clock": "request fewer or shorter answers in one run",
    "beyond_calibration": f"run `harness calibrate` again if this machine changed, or {_RELIEF}",
    "wall_clock_stepped": "check whether this machine was suspended: that stops the client's clock "
    "but not a server elsewhere; if only the wall clock was set, the times are correct",
}

Bounds = tuple[float, float | None]  # DEGRADED above, INVALID above (None: never)


def certify(metrics: RunMetrics, manifest: RunManifest) -> Certificate:
    """Return the certificate of one run, with the worst reasons first."""
    if manifest.client is None:
        return uncertified(*_without_client(manifest))
    if metrics.requests.empty:
        return uncertified("nothing_sent", "no request was sent")
    measured = client_metrics(metrics, manifest)
    bounds = {limit.name: _bounds(limit, metrics, manifest) for limit in LIMITS}
    workers = len(manifest.client.workers) or 1
    found = _reasons(measured, bounds, more=2 * workers, goes_first=_goes_first(manifest))
    reasons = sorted(found, key=lambda reason: reason.verdict != INVALID)
    verdict = reasons[0].verdict if reasons else TRUSTED
    if measured["loop_lag"].value is None:
        verdict = None if verdict == TRUSTED else verdict
        reasons += uncertified(*_LAG_UNKNOWN).reasons
    return Certificate(
        verdict=verdict,
        reasons=tuple(reasons),
        measured={
            limit.name: CertifiedValue(
                value=measured[limit.name].value,
                unit=limit.unit,
                degraded=bounds[limit.name][0],
                invalid=bounds[limit.name][1],
            )
            for limit in LIMITS
        },
        errors=certified_errors(measured, metrics, manifest),
    )


def uncertified(name: str, message: str, remedy: str | None = None) -> Certificate:
    """Return a certificate without a verdict, with the reason."""
    reason = CertificateReason(name=name, verdict=None, message=message, remedy=remedy)
    return Certificate(verdict=None, reasons=(reason,), measured={}, errors={})


_LAG_UNKNOWN = (
    "lag_unknown",
    "the lag of the client's event loop is unknown: the run is too short, or not on Linux",
    "send more requests, or run the client on Linux",
)


def _without_client(manifest: RunManifest) -> tuple[str, str]:
    if manifest.clock == "virtual":
        return "virtual_time", "virtual time: the client takes no time, so it needs no certificate"
    return "not_recorded", "not recorded: this run has no measurement of its client"


def _bounds(limit: ClientLimit, metrics: RunMetrics, manifest: RunManifest) -> Bounds:
    reference = _reference(limit.of, metrics, manifest)
    return (
        limit.degraded.value(reference),
        None if limit.invalid is None else limit.invalid.value(reference),
    )


def _reference(of: str | None, metrics: RunMetrics, manifest: RunManifest) -> float | None:
    """Return the value that a limit's share refers to; TTFT replaces a missing TPOT."""
    if of == "max_failed_share":
        return manifest.max_failed_share
    values = metrics.run
    found = {
        "TTFT p50": values.ttft_ms,
        "TPOT p50": values.tpot_ms or values.ttft_ms,
        "E2E p50": values.e2e_ms,
    }.get(of or "")
    return found.p50 if found else None


def _reasons(
    measured: Mapping[str, ClientMetric],
    bounds: Mapping[str, Bounds],
    *,
    more: int,
    goes_first: bool,
) -> Iterator[CertificateReason]:
    for limit in LIMITS:
        metric, (degraded, invalid) = measured[limit.name], bounds[limit.name]
        if metric.value is None or metric.value <= degraded:
            continue
        enough = metric.readings is None or metric.readings >= ENOUGH_READINGS
        is_invalid = invalid is not None and metric.value > invalid and enough
        exceeded = invalid if invalid is not None and is_invalid else degraded
        yield CertificateReason(
            name=limit.name,
            verdict=INVALID if is_invalid else DEGRADED,
            message=f"{metric.words}; the limit is {amount(exceeded, limit.unit)}",
            remedy=_remedy(limit.name, measured["cpu"].value, more, goes_first=goes_first),
        )


def _goes_first(manifest: RunManifest) -> bool:
    """Return whether all client processes ran at real-time priority."""
    workers = manifest.client.workers if manifest.client else ()
    return all(worker.priority == "realtime" for worker in workers)


def _remedy(name: str, cpu: float | None, more: int, *, goes_first: bool) -> str:
    """Return the remedy; for a late client it depends on how much CPU the client used."""
    kept = _KEPT if goes_first else _KEPT + _GO_FIRST
    late = _RELIEF if cpu is None or cpu >= _IDLE_CPU else kept
    text = _REMEDIES.get(name, late)
    return text.format(more=more, cpu=amount(cpu or 0.0, "share"))
