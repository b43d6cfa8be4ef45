"""One run held against every limit: its bottleneck, what else was found, what cannot be said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.results.client import certificate
from harness.results.diagnosis.drafts import drafts
from harness.results.diagnosis.host import far_from_floor, launches
from harness.results.diagnosis.kv_cache import kv_room, preemptions
from harness.results.diagnosis.limits import LIMITS
from harness.results.diagnosis.measured import Looked, Measured
from harness.results.diagnosis.prefixes import cache_unused, hidden_prefix
from harness.results.diagnosis.slots import idle_slots
from harness.results.diagnosis.stalls import prefill_stalls
from harness.results.diagnosis.waiting import arrivals, client, queue
from harness.results.metrics import run_figures
from harness.results.store import StoredRun

_RULES: Mapping[str, Callable[[Looked], Measured]] = {
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


def diagnose_run(stored: StoredRun) -> dict[str, Any]:
    """Return what was found in one run.

    bottleneck: the first of `findings`, or None
    findings:   each with `name`, `value`, `limit`, `unit`, `evidence` and `next`
    measured:   limit → value of all that was looked at; None: not known, or nothing to look at
    unjudged:   limit → why nothing can be said
    """
    figures = run_figures(stored.records, stored.manifest)
    run = Looked(
        table=stored.records,
        figures=figures,
        manifest=stored.manifest,
        certificate=certificate(figures, stored.manifest),
    )
    seen = {limit.name: _RULES[limit.name](run) for limit in LIMITS}
    findings = [
        {
            "name": limit.name,
            "value": measured.value,
            "limit": limit.above,
            "unit": limit.unit,
            "evidence": measured.evidence,
            "next": measured.remedy,
        }
        for limit in LIMITS
        for measured in [seen[limit.name]]
        if measured.value is not None and measured.value > limit.above
    ]
    return {
        "bottleneck": findings[0]["name"] if findings else None,
        "findings": findings,
        "measured": {name: measured.value for name, measured in seen.items()},
        "unjudged": {name: one.why for name, one in seen.items() if one.why is not None},
    }
