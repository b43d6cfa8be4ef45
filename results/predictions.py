"""What was to be expected of a real engine's run, and how far it is from the roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.results.metrics import run_figures
from harness.results.names import flatten
from harness.results.statistics import geometric_mean
from harness.results.store import StoredRun

Row = Mapping[str, Any]
# Of a prediction the server's counters and its certificate say nothing: they are the run's.
_OF_THE_LOAD = ("load", "slo", "gpus", "price_per_gpu_hour", "prefix_hit_ceiling")


def prediction_row(run: StoredRun, measured: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Return what is predicted of a run; None for a run that is none to predict.

    `values` are the metrics of the same requests on the embedded engine, or `absent` says why there
    are none. `measured` are the run's own.
    """
    told = run.manifest.get("prediction")
    if told is None:
        return None
    values = None
    if run.predicted is not None:
        facts = {name: run.manifest.get(name) for name in _OF_THE_LOAD}
        values = dict(flatten(run_figures(run.predicted, facts).metrics))
    return {
        **{name: told.get(name) for name in ("absent", "basis", "error_share")},
        "errors": told.get("errors") or [],
        "values": values,
        "roof": roof_shares(told.get("roof"), measured),
    }


def roof_shares(
    roof: Mapping[str, Any] | None, measured: Mapping[str, float | None]
) -> dict[str, Any] | None:
    """Return the least times that physics allows over the measured ones: 1 is the roof itself.

    `decode`: of a step, TPOT p50 times the tokens that a step brought. `prefill`: of TTFT p50, so
    that waiting counts against it. None where no roof is known.
    """
    if not roof:
        return None
    tpot_ms, ttft_ms = measured.get("tpot_ms.p50"), measured.get("ttft_ms.p50")
    per_step = 1 + (measured.get("mean_accepted_length") or 0.0)
    return {
        "decode_step_ms": roof["decode_step_s"] * 1e3,
        "decode_bound": roof.get("decode_bound"),
        "prefill_ms": roof["prefill_s"] * 1e3,
        "prefill_bound": roof.get("prefill_bound"),
        "decode": roof["decode_step_s"] * 1e3 / (tpot_ms * per_step) if tpot_ms else None,
        "prefill": roof["prefill_s"] * 1e3 / ttft_ms if ttft_ms else None,
    }


def predicted_mean(runs: Sequence[Row], metric: str) -> float | None:
    """Return the geometric mean over blocks of a predicted metric; None where one has none."""
    values = [predicted_value(run, metric) for run in runs]
    present = [value for value in values if value]
    return geometric_mean(present) if present and len(present) == len(values) else None


def predicted_value(run: Row, metric: str) -> float | None:
    """Return a predicted metric of one run; None where there is none."""
    values = (run.get("prediction") or {}).get("values") or {}
    value: float | None = values.get(metric)
    return value


def error_share(runs: Sequence[Row]) -> float | None:
    """Return the largest known error of these runs' predictions; None where one is not known."""
    shares = [(run.get("prediction") or {}).get("error_share") for run in runs]
    known = [share for share in shares if share is not None]
    return max(known) if known and len(known) == len(shares) else None


def predicted_ratio(
    above: Sequence[Row], below: Sequence[Row], metric: str
) -> dict[str, float | None]:
    """Return the predicted ratio and its band: what the error of both predictions may make of it.

    For an error of e either way the ends are the ratio times (1 − e)/(1 + e) and its inverse.
    """
    over, under = predicted_mean(above, metric), predicted_mean(below, metric)
    if over is None or under is None:
        return {"predicted": None, "predicted_low": None, "predicted_high": None}
    ratio, share = over / under, error_share([*above, *below])
    if share is None or share >= 1:
        return {"predicted": ratio, "predicted_low": None, "predicted_high": None}
    wider = (1 + share) / (1 - share)
    return {
        "predicted": ratio,
        "predicted_low": ratio / wider,
        "predicted_high": ratio * wider,
    }


def is_outside(effect: Row) -> bool | None:
    """Return whether all of a measured effect lies outside the predicted band; None: no band."""
    low, high = effect["predicted_low"], effect["predicted_high"]
    if low is None or high is None or effect["ratio"] is None:
        return None
    measured_low = effect["low"] if effect["low"] is not None else effect["ratio"]
    measured_high = effect["high"] if effect["high"] is not None else effect["ratio"]
    return bool(measured_high < low or measured_low > high)
