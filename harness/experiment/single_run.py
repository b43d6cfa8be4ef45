"""One run on an attached server, measured and stored as a sweep of its own: `harness load`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.adapters import Endpoint, EngineError
from harness.experiment.manifest import Outcome, harness_facts, run_manifest
from harness.experiment.measurement import Measurement, MeasurementInterrupted
from harness.experiment.probe import Probed, probe, refused, without_route
from harness.experiment.request_sets import RequestSets
from harness.interrupts import answering_interrupts
from harness.load import OnProgress
from harness.plan import PlannedRun
from harness.results import Summary, write_summary
from harness.results.store import create_sweep, run_folder, write_run, write_sweep

_HARDWARE = {"gpu": "unknown", "count": None}
_WAS_NOT_READY = (
    "the model was not ready: all requests failed ({}); it generated a token {:.1f} s later, and "
    "the load was sent again"
)
_NOT_READY = ("http_502", "http_503", "http_504")

# Waits until the model generates and returns the seconds; raises `EngineError` where it does not.
UntilReady = Callable[[], float]


def run_alone(
    run: PlannedRun,
    request_sets: RequestSets,
    endpoint: Endpoint,
    folder: Path,
    on_progress: OnProgress,
    until_ready: UntilReady = lambda: 0.0,
) -> Summary:
    """Measure one run, store it in `folder` as a sweep of its own, and return the summary.

    An interrupted run has the status `interrupted` and the metrics of the requests that had ended.
    Where none had, nothing is left, and `KeyboardInterrupt` is raised. Raises `WorkloadError`,
    `EngineError` or `StoreError` before anything is sent.
    """
    create_sweep(folder)
    try:
        outcome = _measured(run, request_sets, endpoint, on_progress, until_ready)
        with answering_interrupts(lambda: None):  # an interrupt does not end the storing
            _store(run, request_sets, outcome, folder)
            return write_summary(folder).summary
    except BaseException:
        if not run_folder(folder, run.key).exists():
            shutil.rmtree(folder, ignore_errors=True)  # the same command may be given again
        raise


def _measured(
    run: PlannedRun,
    request_sets: RequestSets,
    endpoint: Endpoint,
    on_progress: OnProgress,
    until_ready: UntilReady,
) -> Outcome:
    """Return the result of the run with requests that the server takes.

    Where it refuses every request of a closed loop, which takes no time, it is probed for the
    fields that it does not take, and the run starts again without them. An open loop would be
    refused for its whole length, so its model must generate, and is probed, first. A model that is
    not ready yet refuses them all too: it is waited for, and the run starts again.
    """
    found, timeout_s = Probed(transport=endpoint.transport), run.conditions.request_timeout_s
    if run.load.mode != "concurrency":
        until_ready()
        found = probe(endpoint.transport, timeout_s)
    outcome = _taken(Measurement(run, request_sets, endpoint, found.transport), on_progress)
    if run.load.mode == "concurrency" and _all_refused(outcome):
        found = probe(endpoint.transport, timeout_s)
        if found.transport != endpoint.transport:
            again = Measurement(run, request_sets, endpoint, found.transport)
            outcome = _taken(again, lambda _: None)
    notes = found.notes
    if run.load.mode == "concurrency" and _none_ready(outcome):
        try:
            notes = (*notes, _WAS_NOT_READY.format(_kinds(outcome), until_ready()))
        except EngineError:  # what failed is the result
            return replace(outcome, notes=(*notes, *outcome.notes))
        again = Measurement(run, request_sets, endpoint, found.transport)
        outcome = _taken(again, lambda _: None)
    return replace(outcome, notes=(*notes, *outcome.notes))


def _kinds(outcome: Outcome) -> str:
    return ", ".join(sorted({str(record.error_kind) for record in outcome.records}))


def _none_ready(outcome: Outcome) -> bool:
    kinds = {record.error_kind for record in outcome.records}
    return outcome.status != "interrupted" and bool(kinds) and kinds <= {*_NOT_READY}


def _all_refused(outcome: Outcome) -> bool:
    ended = outcome.status != "interrupted"
    return ended and all(refused(one) or without_route(one) for one in outcome.records)


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
