"""One run on an attached server, measured and stored as a sweep of its own: `harness load`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.adapters import Endpoint
from harness.experiment.manifest import Outcome, harness_facts, run_manifest
from harness.experiment.measurement import Measurement, MeasurementInterrupted
from harness.experiment.probe import Probed, probe, refused
from harness.experiment.request_sets import RequestSets
from harness.interrupts import answering_interrupts
from harness.load import OnProgress
from harness.plan import PlannedRun
from harness.results import Summary, write_summary
from harness.results.store import create_sweep, run_folder, write_run, write_sweep

_HARDWARE = {"gpu": "unknown", "count": None}


def run_alone(
    run: PlannedRun,
    request_sets: RequestSets,
    endpoint: Endpoint,
    folder: Path,
    on_progress: OnProgress,
) -> Summary:
    """Measure one run, store it in `folder` as a sweep of its own, and return the summary.

    An interrupted run has the status `interrupted` and the metrics of the requests that had ended.
    Where none had, nothing is left, and `KeyboardInterrupt` is raised. Raises `WorkloadError`,
    `EngineError` or `StoreError` before anything is sent.
    """
    create_sweep(folder)
    try:
        outcome = _measured(run, request_sets, endpoint, on_progress)
        with answering_interrupts(lambda: None):  # an interrupt does not end the storing
            _store(run, request_sets, outcome, folder)
            return write_summary(folder).summary
    except BaseException:
        if not run_folder(folder, run.key).exists():
            shutil.rmtree(folder, ignore_errors=True)  # the same command may be given again
        raise


def _measured(
    run: PlannedRun, request_sets: RequestSets, endpoint: Endpoint, on_progress: OnProgress
) -> Outcome:
    """Return the result of the run with requests that the server takes.

    Where it refuses every request of a closed loop, which takes no time, it is probed for the
    fields that it does not take, and the run starts again without them. An open loop would be
    refused for its whole length, so its server is probed first.
    """
    found, timeout_s = Probed(transport=endpoint.transport), run.conditions.request_timeout_s
    if run.load.mode != "concurrency":
        found = probe(endpoint.transport, timeout_s)
    outcome = _taken(Measurement(run, request_sets, endpoint, found.transport), on_progress)
    if run.load.mode == "concurrency" and _all_refused(outcome):
        found = probe(endpoint.transport, timeout_s)
        if found.transport != endpoint.transport:
            again = Measurement(run, request_sets, endpoint, found.transport)
            outcome = _taken(again, lambda _: None)
    return replace(outcome, notes=(*found.notes, *outcome.notes))


def _all_refused(outcome: Outcome) -> bool:
    return outcome.status != "interrupted" and all(map(refused, outcome.records))


def _taken(measurement: Measurement, on_progress: OnProgress) -> Outcome:
    """Return the result of a run, also of one that the user ended early."""
    try:
        return measurement.take(on_progress)
    except MeasurementInterrupted as interrupted:
        return interrupted.outcome


def _store(run: PlannedRun, request_sets: RequestSets, outcome: Outcome, folder: Path) -> None:
    shared = {
        **harness_facts(),
        "history": "recorded",
        "hardware": _HARDWARE,
        "sweep_seed": run.seed,
    }
    document = {
        "name": run.key,
        "created": outcome.facts["started"],
        "model": run.arm.settings.model,
        "hardware": _HARDWARE,
        "seed": run.seed,
        "slo": None,
        "harness_version": __version__,
        "planned": [run.facts()],
    }
    write_sweep(folder, document)
    manifest = run_manifest(run, request_sets.of(run), outcome, shared)
    write_run(folder, run.key, manifest, outcome.records)
