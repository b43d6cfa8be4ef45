"""The manifest of a run: what was planned, what its sweep shares, and the outcome."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from harness import __version__
from harness.environment import git_commit, host_facts
from harness.load import RequestSet
from harness.plan import PlannedRun
from harness.results.store import RequestRecord, RunManifest, manifest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run."""

    records: list[RequestRecord]
    status: str
    reason: str | None
    facts: dict[str, Any]  # for the manifest: known only after the run
    notes: tuple[str, ...] = ()
    engine_died: bool = False


def harness_facts() -> dict[str, Any]:
    """Return which harness measures, and on which machine."""
    return {
        "host": host_facts(),
        "harness_version": __version__,
        "git_commit": git_commit(),
    }


def run_manifest(
    run: PlannedRun, request_set: RequestSet, outcome: Outcome, shared: dict[str, Any]
) -> RunManifest:
    """Return the manifest of one run; `shared` is the same for all runs of its sweep."""
    own = {
        **run.facts(),
        **shared,
        "model": run.arm.settings.model,
        "max_failed_share": run.conditions.max_failed_share,
        "skipped_rows": request_set.skipped,
        "notes": [*run.arm.settings.shape.notes(), *request_set.notes, *outcome.notes],
    }
    ending = {"status": outcome.status, "reason": outcome.reason}
    try:
        return manifest_of({**own, **outcome.facts, **ending})
    except ValueError as cause:  # a server may report anything of itself
        found = _storable(own, outcome.facts)
        reason = f"the engine reported what cannot be stored: {cause}"
        return manifest_of({**own, **found, "status": "failed", "reason": reason})


def _storable(own: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return those of `facts` that a manifest can have, each tried by itself."""
    kept: dict[str, Any] = {}
    for name, value in facts.items():
        with contextlib.suppress(ValueError):
            manifest_of({**own, **kept, name: value, "status": "failed"})
            kept[name] = value
    return kept
