"""Fitting of step costs to measured runs, and their errors on held-out runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from harness.adapters import EngineError
from harness.adapters.embedded import SCHEDULED_TOGGLES, StepCosts, StepProfile
from harness.experiment import Outcome, Prediction
from harness.plan import PlannedRun, labels
from harness.prediction.observations import COSTS, Equations, Steps, equations, together
from harness.results import flatten, run_metrics
from harness.results.store import StoredRun, table_of
from harness.sweep_file import BASELINE_ARM, CONTROL_ARM

METRICS = ("output_tokens_per_s", "ttft_ms.p50", "tpot_ms.p50")
_FEWEST = 3 * len(COSTS)  # minimum number of equations
_FAR = 3.0  # median deviations above which the second fit leaves an equation out

Predict = Callable[[PlannedRun, Outcome], Prediction]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One stored run, its plan and the equations of its records."""

    planned: PlannedRun
    stored: StoredRun
    equations: Equations

    @property
    def cell(self) -> tuple[str, str, str]:
        """Arm, workload and load, which repeats share. The control repeats the baseline."""
        planned = self.planned
        arm = BASELINE_ARM if planned.arm.name == CONTROL_ARM else planned.arm.name
        return arm, planned.workload.name, planned.load.label


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutMetric:
    """One metric of one run: the measurement, and the prediction fitted to the other cells."""

    cell: tuple[str, str, str]
    block: int
    metric: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted ÷ measured − 1."""
        return self.predicted / self.measured - 1


def measured_run(planned: PlannedRun, stored: StoredRun) -> MeasuredRun:
    """Return a stored run with the step equations of its records."""
    settings = planned.arm.settings
    speculative = settings.toggles["speculative"]
    drafts = int(dict(speculative.options).get("tokens", 5)) if speculative.kind != "off" else 0
    chunked = settings.toggles["chunked_prefill"].kind == "on"
    chunk = settings.max_batched_tokens if chunked else settings.max_model_len
    steps = Steps(queries=1 + drafts, chunk_tokens=chunk)
    return MeasuredRun(planned, stored, equations(stored.records, steps))


def fixed_toggles(runs: Sequence[MeasuredRun]) -> dict[str, str]:
    """Return toggle → value of the baseline, for the toggles that change step times."""
    base = next((run for run in runs if run.planned.arm.name == "baseline"), runs[0])
    return {
        name: label
        for name, label in labels(base.planned.arm.settings.toggles).items()
        if name not in SCHEDULED_TOGGLES
    }


def fitted_costs(parts: Sequence[Equations]) -> StepCosts:
    """Fit non-negative costs to the equations. Raises `EngineError` if there are too few.

    The fit minimizes relative errors. A second fit leaves out the equations with large errors, such
    as a stall of the machine.
    """
    found = together(parts)
    if len(found.seconds) < _FEWEST:
        raise EngineError(
            f"too few answered requests to fit {len(COSTS)} costs: found "
            f"{len(found.seconds)} time spans, need {_FEWEST}"
        )
    costs = _solved(found)
    errors = np.abs(found.counts @ costs / found.seconds - 1)
    near = errors <= max(_FAR * float(np.median(errors)), 0.05)
    return StepCosts(**dict(zip(COSTS, map(float, _solved(_kept(found, near))), strict=True)))


def held_out_metrics(
    runs: Sequence[MeasuredRun], profile: StepProfile, predict: Predict
) -> list[HeldOutMetric]:
    """Return each run's metrics with their prediction from the runs of all other cells.

    A single cell gives an empty list.
    """
    cells = dict.fromkeys(run.cell for run in runs)
    found: list[HeldOutMetric] = []
    for cell in cells if len(cells) > 1 else ():
        others = [run.equations for run in runs if run.cell != cell]
        costs = fitted_costs(others)
        for run in runs:
            if run.cell == cell:
                found += _compared(run, replace(profile, costs=costs), predict)
    return found


def median_errors(found: Sequence[HeldOutMetric]) -> dict[str, float]:
    """Return metric → median absolute error, as a share."""
    metrics = dict.fromkeys(one.metric for one in found)
    return {
        metric: float(np.median([abs(one.error) for one in found if one.metric == metric]))
        for metric in metrics
    }


def _solved(found: Equations) -> Any:
    """Solve for the least relative errors. Columns are scaled, because costs differ by 10^6."""
    relative = found.counts / found.seconds[:, None]
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    solved, _ = nnls(relative / scale, np.ones(len(found.seconds)))
    return solved / scale


def _kept(found: Equations, which: Any) -> Equations:
    return Equations(found.counts[which], found.seconds[which])


def _compared(run: MeasuredRun, profile: StepProfile, predict: Predict) -> Iterator[HeldOutMetric]:
    settings = replace(run.planned.arm.settings, step_profile=profile.facts())
    planned = replace(run.planned, arm=replace(run.planned.arm, settings=settings))
    prediction = predict(planned, _outcome(run.stored))
    if prediction.records is None:
        raise EngineError(f"{planned.arm.name}: {prediction.facts.absent}")
    manifest = run.stored.manifest
    measured = dict(flatten(run_metrics(run.stored.records, manifest).run))
    predicted = dict(flatten(run_metrics(table_of(list(prediction.records)), manifest).run))
    for metric in METRICS:
        ours, theirs = predicted.get(metric), measured.get(metric)
        if ours and theirs:
            yield HeldOutMetric(
                cell=run.cell,
                block=run.planned.block,
                metric=metric,
                measured=theirs,
                predicted=ours,
            )


def _outcome(stored: StoredRun) -> Outcome:
    """Return the input of a prediction: the engine's reported facts and counters, no records."""
    facts = stored.manifest.model_dump(include={"facts", "counters"})
    return Outcome(records=[], status="ok", reason=None, facts=facts)
