"""Whether a run's client may be believed: from stored facts to TRUSTED, DEGRADED or INVALID.

A pure function of records and manifest. The limits are those of `certificate_limits`; what is held
against them comes from `client_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.results.client.error import certified_errors
from harness.results.client.limits import ENOUGH_READINGS, LIMITS, Limit, amount
from harness.results.client.metrics import Seen, client_figures
from harness.results.metrics import RunFigures

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


def certificate(figures: RunFigures, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificate of one run: `verdict`, `reasons`, `figures` and `errors`.

    verdict: TRUSTED, DEGRADED, INVALID; None where there is no client, or its lag is not known
    reasons: the worst first, each with `name`, `verdict`, `message` and `remedy`
    figures: limit → `value` (None: not known), `unit`, and the bounds `degraded` and `invalid`
    errors:  metric → how far off the client may have set it, as a share (None: not known)
    """
    if manifest.get("client") is None:
        return uncertified(*_without_client(manifest))
    if figures.requests.empty:
        return uncertified("nothing_sent", "nothing was sent")
    seen = client_figures(figures, manifest)
    bounds = {limit.name: _bounds(limit, figures, manifest) for limit in LIMITS}
    workers = len(manifest["client"].get("workers") or ()) or 1
    found = _reasons(seen, bounds, more=2 * workers, goes_first=_goes_first(manifest))
    reasons = sorted(found, key=lambda reason: reason["verdict"] != INVALID)
    verdict = reasons[0]["verdict"] if reasons else TRUSTED
    if seen["loop_lag"].value is None:
        verdict = None if verdict == TRUSTED else verdict
        reasons += uncertified(*_LAG_UNKNOWN)["reasons"]
    return {
        "verdict": verdict,
        "reasons": reasons,
        "figures": {
            limit.name: {
                "value": seen[limit.name].value,
                "unit": limit.unit,
                **dict(zip(("degraded", "invalid"), bounds[limit.name], strict=True)),
            }
            for limit in LIMITS
        },
        "errors": certified_errors(seen, figures, manifest),
    }


def uncertified(name: str, message: str, remedy: str | None = None) -> dict[str, Any]:
    """Return the certificate of a run of whose client nothing can be said, and why."""
    reason = {"name": name, "verdict": None, "message": message, "remedy": remedy}
    return {"verdict": None, "reasons": [reason], "figures": {}, "errors": {}}


_LAG_UNKNOWN = (
    "lag_unknown",
    "the client's event loop lag is not known: too short a run, or a system that does not tell",
    "ask for more requests, or measure from a machine with Linux",
)


def _without_client(manifest: Mapping[str, Any]) -> tuple[str, str]:
    if manifest.get("clock") == "virtual":
        return "virtual_time", "virtual time: the client takes none, so there is none to certify"
    return "not_recorded", "not recorded: this run tells nothing of its client"


def _bounds(limit: Limit, figures: RunFigures, manifest: Mapping[str, Any]) -> Bounds:
    reference = _reference(limit.of, figures, manifest)
    return (
        limit.degraded.value(reference),
        None if limit.invalid is None else limit.invalid.value(reference),
    )


def _reference(of: str | None, figures: RunFigures, manifest: Mapping[str, Any]) -> float | None:
    """Return what the shares of a limit are of; answers without a pace have their TTFT for it."""
    if of == "max_failed_share":
        share: float | None = manifest.get("max_failed_share")
        return share
    ttft, tpot, e2e = (figures.metrics[name] for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    found = {"TTFT p50": ttft, "TPOT p50": tpot or ttft, "E2E p50": e2e}.get(of or "")
    return found["p50"] if found else None


def _reasons(
    seen: Mapping[str, Seen], bounds: Mapping[str, Bounds], *, more: int, goes_first: bool
) -> Iterator[dict[str, Any]]:
    for limit in LIMITS:
        value, (degraded, invalid) = seen[limit.name].value, bounds[limit.name]
        if value is None or value <= degraded:
            continue
        readings = seen[limit.name].readings
        enough = readings is None or readings >= ENOUGH_READINGS
        is_invalid = invalid is not None and value > invalid and enough
        exceeded = invalid if invalid is not None and is_invalid else degraded
        yield {
            "name": limit.name,
            "verdict": INVALID if is_invalid else DEGRADED,
            "message": f"{seen[limit.name].words}; the limit is {amount(exceeded, limit.unit)}",
            "remedy": _remedy(limit.name, seen["cpu"].value, more, goes_first=goes_first),
        }


def _goes_first(manifest: Mapping[str, Any]) -> bool:
    """Return whether all processes of the client ran before others, as the system let them."""
    workers = (manifest.get("client") or {}).get("workers") or []
    return all(worker.get("priority") == "realtime" for worker in workers)


def _remedy(name: str, cpu: float | None, more: int, *, goes_first: bool) -> str:
    """Return what to do; that of a late client depends on whether it had the CPU that it needs."""
    kept = _KEPT if goes_first else _KEPT + _GO_FIRST
    late = _RELIEF if cpu is None or cpu >= _IDLE_CPU else kept
    text = _REMEDIES.get(name, late)
    return text.format(more=more, cpu=amount(cpu or 0.0, "share"))
