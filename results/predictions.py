"""What was predicted of a real engine's run, and how far the run is from the roof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.results.metrics import run_metrics
from harness.results.names import flatten
from harness.results.statistics import Ratio, geometric_mean
from harness.results.store import CounterMoves, RoofFacts, StoredRun
from harness.results.summary import AnalysedRun, RoofShares, RunPrediction, Values

# Those that mean something of a prediction: latencies and rates.
_SHOWN = ("output_tokens_per_s", "ttft_ms.p50", "scheduled_ttft_ms.p50", "tpot_ms.p50")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRatio:
    """The predicted ratio of two arms, and the band that the error of both predictions allows."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def predicted_values(run: StoredRun) -> Values:
    """Return every predicted metric of a run; empty where nothing was predicted.

    The server's counters are those of the run and prove nothing of its prediction.
    """
    if run.predicted is None or run.manifest.prediction is None:
        return {}
    manifest = run.manifest.model_copy(update={"counters": CounterMoves()})
    return dict(flatten(run_metrics(run.predicted, manifest).run))


def run_prediction(run: StoredRun, predicted: Values, measured: Values) -> RunPrediction | None:
    """Return the prediction of a run as summaries show it; None for a run without one."""
    facts = run.manifest.prediction
    if facts is None:
        return None
    return RunPrediction(
        absent=facts.absent,
        basis=facts.basis,
        error_share=facts.error_share,
        errors=facts.errors,
        values={name: predicted.get(name) for name in _SHOWN} if predicted else None,
        roof=roof_shares(facts.roof, measured),
    )


def roof_shares(roof: RoofFacts | None, measured: Values) -> RoofShares | None:
    """Return the least times that the hardware allows over the measured ones: 1 is the roof itself.

    `decode`: of a step, TPOT p50 times the tokens of a step. `prefill`: of TTFT p50, so that
    waiting counts against it. None where no roof is known.
    """
    if roof is None:
        return None
    tpot_ms, ttft_ms = measured.get("tpot_ms.p50"), measured.get("ttft_ms.p50")
    per_step = 1 + (measured.get("mean_accepted_length") or 0.0)
    decode_ms, prefill_ms = roof.decode_step_s * 1e3, roof.prefill_s * 1e3
    return RoofShares(
        decode_step_ms=decode_ms,
        decode_bound=roof.decode_bound,
        prefill_ms=prefill_ms,
        prefill_bound=roof.prefill_bound,
        decode=decode_ms / (tpot_ms * per_step) if tpot_ms else None,
        prefill=prefill_ms / ttft_ms if ttft_ms else None,
    )


def predicted_mean(runs: Sequence[AnalysedRun], metric: str) -> float | None:
    """Return the geometric mean over blocks of a predicted metric; None where one has none."""
    present = [value for run in runs if (value := run.predicted.get(metric))]
    return geometric_mean(present) if present and len(present) == len(runs) else None


def error_share(runs: Sequence[AnalysedRun]) -> float | None:
    """Return the largest known error of these runs' predictions; None where one is not known."""
    predictions = [run.row.prediction for run in runs if run.row.prediction is not None]
    known = [one.error_share for one in predictions if one.error_share is not None]
    return max(known) if known and len(known) == len(runs) else None


def predicted_ratio(
    above: Sequence[AnalysedRun], below: Sequence[AnalysedRun], metric: str
) -> PredictedRatio:
    """Return the predicted ratio and its band.

    For an error of e either way the ends are the ratio times (1 − e)/(1 + e) and its inverse.
    """
    over, under = predicted_mean(above, metric), predicted_mean(below, metric)
    if over is None or under is None:
        return PredictedRatio()
    ratio, share = over / under, error_share([*above, *below])
    if share is None or share >= 1:
        return PredictedRatio(ratio=ratio)
    wider = (1 + share) / (1 - share)
    return PredictedRatio(ratio=ratio, low=ratio / wider, high=ratio * wider)


def is_outside(measured: Ratio | None, predicted: PredictedRatio) -> bool | None:
    """Return whether all of a measured effect lies outside the predicted band; None: no band."""
    if predicted.low is None or predicted.high is None or measured is None:
        return None
    low = measured.ratio if measured.low is None else measured.low
    high = measured.ratio if measured.high is None else measured.high
    return high < predicted.low or low > predicted.high
