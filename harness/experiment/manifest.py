"""The manifest of a run: what was planned, what its sweep shares, and the outcome."""

from __future__ import annotations

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
    facts = {
        **run.facts(),
        **shared,
        **outcome.facts,
        "model": run.arm.settings.model,
        "max_failed_share": run.conditions.max_failed_share,
        "status": outcome.status,
        "reason": outcome.reason,
        "skipped_rows": request_set.skipped,
        "notes": [*request_set.notes, *outcome.notes],
    }
    return manifest_of(facts)
