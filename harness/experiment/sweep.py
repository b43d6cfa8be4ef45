"""Runs a plan: start engines, measure, store, run by run. Nothing is decided here."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from harness.adapters import Endpoint, EngineAdapter, EngineError
from harness.adapters.process import hidden, hide_in_file, secret_values
from harness.experiment.manifest import Outcome, harness_facts, run_manifest
from harness.experiment.measurement import Measurement, error_line
from harness.experiment.prediction import predict
from harness.experiment.probe import probe
from harness.experiment.request_sets import RequestSets
from harness.plan import EMBEDDED, Plan, PlannedArm, PlannedRun
from harness.plan.printed import plan_document
from harness.results.store import create_sweep, write_run, write_sweep
from harness.sweep_file import text_without_headers
from harness.timing import only_new_garbage

_SHARED = "measured while {} measured on this machine too (--share-machine): times are disturbed"
_FAILED_STARTS = 2  # different arms of an engine, after which the others are not tried


class SweepProgress(Protocol):
    """Gets how far the sweep is."""

    def starting(self, arm: PlannedArm) -> None:
        """Note that an engine is being started, which may take minutes."""
        ...

    def started(self, run: PlannedRun, requests: int) -> None:
        """Note that `run` begins, with so many requests."""
        ...

    def requests_done(self, requests: int) -> None:
        """Note that so many more requests of the present run have ended."""
        ...

    def ended(self, run: PlannedRun, status: str) -> None:
        """Note that `run` is stored, with that status."""
        ...


class SweepRunner:
    """Runs one plan, and stores what it measures."""

    def __init__(
        self,
        plan: Plan,
        adapters: Mapping[str, EngineAdapter],
        directory: Path,
        *,
        disturbed_by: str | None = None,
    ) -> None:
        """`disturbed_by` names another sweep that measures on this machine; every run is marked."""
        self._marks = () if disturbed_by is None else (_SHARED.format(disturbed_by),)
        self._plan = plan
        self._adapters = adapters
        self._directory = directory
        self._request_sets = RequestSets()
        # Engine label → arm → why it did not start; None once one has started.
        self._starts: dict[str, dict[str, str] | None] = {}
        self._secrets = frozenset[str]().union(*(secret_values(arm.settings) for arm in plan.arms))
        spec = plan.spec
        self._shared = {  # by the manifests of all runs
            **harness_facts(),
            "history": spec.history,
            "hardware": asdict(spec.hardware),
            "sweep_seed": spec.seed,
            "slo": spec.slo.facts(),
            "price_per_gpu_hour": spec.price_per_gpu_hour,
        }

    def run(self, progress: SweepProgress) -> bool:
        """Run all that is planned and store it; return whether every run is ok.

        Each run is stored when it ends: an interrupt loses the one that it interrupts. Raises
        `StoreError` when the folder exists or cannot be written.
        """
        create_sweep(self._directory)
        write_sweep(self._directory, self._document())
        with only_new_garbage():
            statuses = [
                status
                for _, group in groupby(self._plan.planned, key=lambda run: run.group)
                for status in self._stored(list(group), progress)
            ]
        return all(status == "ok" for status in statuses)

    def _stored(self, runs: list[PlannedRun], progress: SweepProgress) -> Iterator[str]:
        """Run and store the runs of one server start, and yield the status of each."""
        for run, found in self._run_group(runs, progress):
            outcome = self._without_secrets(found)
            status = self._store(run, outcome)
            progress.ended(run, status)
            yield status

    def _without_secrets(self, outcome: Outcome) -> Outcome:
        """Return an outcome to be stored: engines and servers repeat what they were given."""
        records = [
            one if one.error is None else replace(one, error=hidden(one.error, self._secrets))
            for one in outcome.records
        ]
        return replace(
            outcome,
            records=records,
            reason=hidden(outcome.reason, self._secrets),
            facts=hidden(outcome.facts, self._secrets),
            notes=tuple(hidden(outcome.notes, self._secrets)),
        )

    def _store(self, run: PlannedRun, outcome: Outcome) -> str:
        """Store a run, with a prediction beside that of a real engine, and return its status."""
        request_set, predicted = self._request_sets.of(run), None
        manifest = run_manifest(run, request_set, outcome, self._shared)
        if outcome.records and run.arm.engine != EMBEDDED:
            prediction = predict(run, self._request_sets, outcome)
            manifest = manifest.model_copy(update={"prediction": prediction.facts})
            predicted = prediction.records
        write_run(self._directory, run.key, manifest, outcome.records, predicted)
        return manifest.status

    def _run_group(
        self, runs: list[PlannedRun], progress: SweepProgress
    ) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Yield the runs of one server start with their outcomes.

        An engine that dies in a run ends that run; the others get a new start. A bug ends the run
        that it is in, with its traceback, and not the sweep.
        """
        left, arm = list(runs), runs[0].arm
        while left:
            begun, facts = False, {}
            try:
                self._check_starts(arm)
                with self._started(arm, left[0].block, progress) as endpoint:
                    self._starts[arm.label] = None
                    found = probe(endpoint.transport, self._plan.spec.request_timeout_s)
                    while left and not begun:
                        run, begun = left[0], True
                        progress.started(run, self._request_sets.of(run).requests)
                        measurement = Measurement(
                            run, self._request_sets, endpoint, found.transport
                        )
                        outcome = measurement.take(progress.requests_done)
                        outcome = replace(
                            outcome, notes=(*self._marks, *found.notes, *outcome.notes)
                        )
                        left.pop(0)
                        begun = outcome.engine_died
                        yield run, outcome
                continue
            except EngineError as error:
                reason = error_line(error)
            except Exception as error:  # noqa: BLE001  the edge of a run
                reason = f"a bug of the harness, please report it: {type(error).__name__}: {error}"
                facts = {"traceback": traceback.format_exc()}
            ended = left[:1] if begun else left  # one that does not start, starts for nobody
            left = left[len(ended) :]
            if not begun:
                self._note_failed_start(arm, reason)
            for run in ended:
                yield run, Outcome(records=[], status="failed", reason=reason, facts=facts)

    def _check_starts(self, arm: PlannedArm) -> None:
        """Raise `EngineError` where other arms of this engine have failed to start, and none did.

        Another start would take minutes, and fail for the same reason.
        """
        failed = self._starts.get(arm.label) or {}
        if arm.name not in failed and len(failed) >= _FAILED_STARTS:
            names = ", ".join(failed)
            error = EngineError(f"not started, since no arm of {arm.label} was: {names} failed")
            error.add_note(f"the last: {next(reversed(failed.values()))}")
            raise error

    def _note_failed_start(self, arm: PlannedArm, reason: str) -> None:
        failed = self._starts.setdefault(arm.label, {})
        if failed is not None:  # None: an arm has started, so it is not the engine
            failed.setdefault(arm.name, reason)

    @contextmanager
    def _started(self, arm: PlannedArm, block: int, progress: SweepProgress) -> Iterator[Endpoint]:
        progress.starting(arm)
        log = self._directory / "logs" / f"{arm.label}.{arm.name}.block{block}.log"
        try:
            with self._adapters[arm.engine].start(replace(arm.settings, log_path=log)) as endpoint:
                yield endpoint
        finally:
            hide_in_file(log, self._secrets)

    def _document(self) -> dict[str, Any]:
        """Return `sweep.json`: what was planned, when, and the text that it was planned from."""
        document = {
            **plan_document(self._plan),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "sweep": text_without_headers(self._plan.spec.path),
        }
        found: dict[str, Any] = hidden(document, self._secrets)
        return found
