"""The run of a real engine once more, on the embedded engine: what that predicts for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.adapters import EngineError, EngineSettings
from harness.adapters.embedded import (
    ReportedValues,
    as_scheduled,
    predicted_endpoint,
    prediction_basis,
    roof_sides_s,
)
from harness.experiment.manifest import Outcome
from harness.experiment.measurement import Measurement, error_line
from harness.experiment.request_sets import RequestSets
from harness.plan import PlannedRun
from harness.results.store import PredictionFacts, RequestRecord, RoofFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted run; where nothing can be predicted, no records, and the reason."""

    records: Sequence[RequestRecord] | None
    facts: PredictionFacts


def predict(run: PlannedRun, request_sets: RequestSets, measured: Outcome) -> Prediction:
    """Predict the run: play it on the embedded engine, on virtual time.

    By the profile that the sweep names for the engine, else by the roofline of its GPUs. What the
    server reported of its cache and its drafts is taken from `measured`; the roof is beside it.
    """
    settings = as_scheduled(run.arm.settings)
    reported = _reported(measured.facts.get("facts") or {}, measured.facts.get("counters") or {})
    try:
        endpoint = predicted_endpoint(settings, reported)
        as_planned = replace(run, arm=replace(run.arm, settings=settings))
        measurement = Measurement(as_planned, request_sets, endpoint, endpoint.transport)
        outcome = measurement.take(lambda _: None)
        basis = prediction_basis(settings)
        facts = PredictionFacts(
            basis=basis["basis"],
            errors=tuple(basis["errors"]),
            error_share=basis["error_share"],
            roof=_roof(settings, measured.records),
        )
        return Prediction(records=outcome.records, facts=facts)
    except EngineError as error:
        return Prediction(records=None, facts=PredictionFacts(absent=error_line(error)))
    except Exception as error:  # noqa: BLE001  a prediction never costs a measurement
        reason = f"a bug of the harness, please report it: {type(error).__name__}: {error}"
        return Prediction(records=None, facts=PredictionFacts(absent=reason))


def _reported(facts: Mapping[str, Any], counters: Mapping[str, Any]) -> ReportedValues:
    """Return what a real engine reported of its cache and its drafts, from its manifest."""
    steps, accepted = counters.get("verify_steps"), counters.get("accepted_tokens")
    return ReportedValues(
        kv_tokens=facts.get("kv_tokens"),
        block_tokens=facts.get("block_size"),
        tokens_per_step=1 + accepted / steps if steps and accepted is not None else None,
    )


def _roof(settings: EngineSettings, records: Sequence[RequestRecord]) -> RoofFacts | None:
    """Return the least times that physics allows for what was measured; None: no roof is known.

    `decode_step_s` of the mean number of answers in flight at the mean context, `prefill_s` of the
    mean prompt, what was cached of it left out.
    """
    answered = [one for one in records if one.error_kind is None and len(one.token_events)]
    counted = [one for one in answered if one.prompt_tokens and one.output_tokens]
    if not counted:
        return None
    spans = [(int(one.token_events[0, 0]), int(one.token_events[-1, 0])) for one in counted]
    whole_ns = max(end for _, end in spans) - min(start for start, _ in spans)
    running = sum(end - start for start, end in spans) / whole_ns if whole_ns else 1.0
    prompt = sum(one.prompt_tokens or 0 for one in counted) / len(counted)
    output = sum(one.output_tokens or 0 for one in counted) / len(counted)
    cached = sum(one.cached_prompt_tokens or 0 for one in counted) / len(counted)
    new, earlier = max(1, round(prompt - cached)), round(cached)
    running, context = max(1.0, running), prompt + output / 2
    try:
        decode, prefill = roof_sides_s(settings, running, running * context, (new, earlier))
    except EngineError:
        return None
    return RoofFacts(
        decode_step_s=max(decode),
        decode_bound=_bound(decode),
        prefill_s=max(prefill),
        prefill_bound=_bound(prefill),
        running=running,
        context_tokens=context,
        new_prompt_tokens=new,
    )


def _bound(sides: tuple[float, float]) -> str:
    """Return which side of the roof binds, of (bytes, arithmetic)."""
    return "memory" if sides[0] >= sides[1] else "compute"
