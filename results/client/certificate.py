"""Whether a run's client may be believed: from stored facts to TRUSTED, DEGRADED or INVALID.

A pure function of records and manifest. `limits` has the limits, `metrics` measures for each.
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
_IDLE_CPU = 0.5  # of a core, below which a client that is late was kept from running
_MORE = "more client processes (`--workers {more}` of harness load, `workers: {more}` in a sweep)"
_RELIEF = f"use {_MORE} or a quieter machine"
_KEPT = f"others kept the client from its core, it used {{cpu}}: use a quieter machine, or {_MORE}"
_GO_FIRST = "; run as root, or with CAP_SYS_NICE, and not as a batch or idle process, it goes first"
_REMEDIES = {
    "open_files": "raise the limit of open files (`ulimit -n`), or ask for less concurrency",
    "ports": "have the server keep connections open, or widen net.ipv4.ip_local_port_range",
    "failed_share": "mend what fails, or ask for less load; in a sweep `max_failed_share` sets the "
    "limit",
    "usage_missing": "have the server send usage (`stream_options.include_usage`)",
    "shorter_than_asked": "have the engine ignore the end-of-text token, so that arms do equal "
    "work",
    "read_on_the_clock": "ask for fewer or shorter answers in one run",
    "beyond_calibration": f"calibrate anew where this machine has changed, or {_RELIEF}",
    "wall_clock_stepped": "look whether this machine was suspended, which stops the client's clock "
    "but no server elsewhere; where somebody only set the wall clock, the times are right",
}

Bounds = tuple[float, float | None]  # DEGRADED above, INVALID above (None: never)


def certify(metrics: RunMetrics, manifest: RunManifest) -> Certificate:
    """Return the certificate of one run, its reasons the worst first."""
    if manifest.client is None:
        return uncertified(*_without_client(manifest))
    if metrics.requests.empty:
        return uncertified("nothing_sent", "nothing was sent")
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
    """Return the certificate of a run of whose client nothing is known, and why."""
    reason = CertificateReason(name=name, verdict=None, message=message, remedy=remedy)
    return Certificate(verdict=None, reasons=(reason,), measured={}, errors={})


_LAG_UNKNOWN = (
    "lag_unknown",
    "the client's event loop lag is not known: too short a run, or a system that does not tell",
    "ask for more requests, or measure from a machine with Linux",
)


def _without_client(manifest: RunManifest) -> tuple[str, str]:
    if manifest.clock == "virtual":
        return "virtual_time", "virtual time: the client takes none, so there is none to certify"
    return "not_recorded", "not recorded: this run tells nothing of its client"


def _bounds(limit: ClientLimit, metrics: RunMetrics, manifest: RunManifest) -> Bounds:
    reference = _reference(limit.of, metrics, manifest)
    return (
        limit.degraded.value(reference),
        None if limit.invalid is None else limit.invalid.value(reference),
    )


def _reference(of: str | None, metrics: RunMetrics, manifest: RunManifest) -> float | None:
    """Return what the shares of a limit are of; answers without a pace have their TTFT for it."""
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
    """Return whether all processes of the client ran before others, as the system let them."""
    workers = manifest.client.workers if manifest.client else ()
    return all(worker.priority == "realtime" for worker in workers)


def _remedy(name: str, cpu: float | None, more: int, *, goes_first: bool) -> str:
    """Return what to do; that of a late client depends on whether it had the CPU that it needs."""
    kept = _KEPT if goes_first else _KEPT + _GO_FIRST
    late = _RELIEF if cpu is None or cpu >= _IDLE_CPU else kept
    text = _REMEDIES.get(name, late)
    return text.format(more=more, cpu=amount(cpu or 0.0, "share"))
