"""The diagnosis of one run: its bottleneck, its other findings and the rules without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.results.client import certify
from harness.results.diagnosis.drafts import drafts
from harness.results.diagnosis.host import far_from_floor, launches
from harness.results.diagnosis.kv_cache import kv_room, preemptions
from harness.results.diagnosis.limits import LIMITS
from harness.results.diagnosis.measured import DiagnosedRun, Measured
from harness.results.diagnosis.prefixes import cache_unused, hidden_prefix
from harness.results.diagnosis.slots import idle_slots
from harness.results.diagnosis.stalls import prefill_stalls
from harness.results.diagnosis.waiting import arrivals, client, queue
from harness.results.metrics import run_metrics
from harness.results.store import StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One bottleneck of a run."""

    name: str
    value: float
    limit: float
    unit: str
    evidence: str
    next: str  # the remedy to try


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosis:
    """The bottleneck and all findings of one run."""

    bottleneck: str | None = None  # the first of the findings
    findings: tuple[Finding, ...] = ()
    measured: Mapping[str, float | None]  # limit → value; None: unknown or not applicable
    unjudged: Mapping[str, str]  # limit → the missing data


_RULES: Mapping[str, Callable[[DiagnosedRun], Measured]] = {
    "client": client,
    "preemptions": preemptions,
    "kv_room": kv_room,
    "idle_slots": idle_slots,
    "cache_unused": cache_unused,
    "hidden_prefix": hidden_prefix,
    "drafts": drafts,
    "launches": launches,
    "far_from_floor": far_from_floor,
    "arrivals": arrivals,
    "queue": queue,
    "prefill_stalls": prefill_stalls,
}


def diagnose_run(stored: StoredRun) -> RunDiagnosis:
    """Diagnose one run: compare the value of every rule with its limit."""
    metrics = run_metrics(stored.records, stored.manifest)
    run = DiagnosedRun(
        table=stored.records,
        metrics=metrics,
        manifest=stored.manifest,
        certificate=certify(metrics, stored.manifest),
    )
    measured = {limit.name: _RULES[limit.name](run) for limit in LIMITS}
    findings = tuple(
        Finding(
            name=limit.name,
            value=found.value,
            limit=limit.above,
            unit=limit.unit,
            evidence=found.evidence,
            next=found.remedy,
        )
        for limit in LIMITS
        for found in [measured[limit.name]]
        if found.value is not None and found.value > limit.above
    )
    return RunDiagnosis(
        bottleneck=findings[0].name if findings else None,
        findings=findings,
        measured={name: found.value for name, found in measured.items()},
        unjudged={name: found.why for name, found in measured.items() if found.why is not None},
    )
