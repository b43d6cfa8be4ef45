"""One row for each run of a sweep: what the summary shows of it, and what effects are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.results.client import INVALID, certify, uncertified
from harness.results.metrics import RunMetrics, run_metrics
from harness.results.names import flatten
from harness.results.predictions import predicted_values, run_prediction
from harness.results.store import EngineFacts, RunFacts, RunManifest, StoredRun
from harness.results.summary import (
    AnalysedRun,
    Certificate,
    RequestCounts,
    RunRow,
    RunWarning,
    WindowFacts,
)
from harness.results.warnings import run_warnings, sample_failures, too_many_failed

# A certificate that states the first against a run states what the others would.
_SAME_AS = {"failed_share": ("failed_share", "some_failed")}
CHECKED = "checked: "  # before how far assumed times are off
_PLOTTED = (
    "ttft_ms", "scheduled_ttft_ms", "tpot_ms", "e2e_ms", "scheduled_e2e_ms", "measured", "ok",
)  # fmt: skip
# As the plan and the manifest of a run have them.
_PLANNED = (
    "key", "arm", "block", "engine", "label", "workload", "load", "seed", "engine_version",
    "engine_kind", "toggles", "flipped", "gpus",
)  # fmt: skip


def analysed_run(run: StoredRun) -> AnalysedRun:
    """Return a stored run with its metrics, its certificate and its warnings."""
    manifest, metrics = run.manifest, run_metrics(run.records, run.manifest)
    certified = certify(metrics, manifest)
    status, reason = _status(manifest, metrics, certified)
    sent = not metrics.requests.empty
    values = dict(flatten(metrics.run)) if sent else {}
    predicted = predicted_values(run)
    row = RunRow(
        **_planned(manifest),
        evidence=manifest.evidence,
        skipped_rows=manifest.skipped_rows,
        notes=manifest.notes,
        cache=manifest.cache,
        status=status,
        reason=reason,
        certificate=certified,
        metrics=metrics.run if sent else None,
        failure_samples=sample_failures(run.records),
        warnings=tuple(_beside(certified, run_warnings(metrics, manifest))),
        window=_window(metrics) if sent else None,
        counts=_counts(metrics),
        prediction=run_prediction(run, predicted, values),
    )
    return AnalysedRun(
        row=row,
        metrics=values,
        predicted=predicted,
        clock=manifest.clock,
        assumptions=_assumptions(manifest.facts),
        requests=metrics.requests[[*_PLOTTED]] if sent else None,
    )


def planned_run(plan: RunFacts) -> AnalysedRun:
    """Return a run that was planned and is not stored: skipped, or never reached."""
    skipped = plan.status == "skipped"
    row = RunRow(
        **_planned(plan),
        evidence={},
        skipped_rows={},
        notes=(),
        cache=None,
        status="skipped" if skipped else "interrupted",
        reason=plan.reason if skipped else "not run",
        certificate=uncertified("not_run", "not run"),
        metrics=None,
        failure_samples={},
        warnings=(),
        window=None,
        counts=None,
        prediction=None,
    )
    return AnalysedRun(row=row, metrics={}, predicted={}, clock=None, assumptions=(), requests=None)


def _planned(facts: RunFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in _PLANNED}


def _assumptions(facts: EngineFacts) -> tuple[str, ...]:
    """Return what simulated times rest on, and how far off they are known to be."""
    return (*facts.assumptions, *(f"{CHECKED}{text}" for text in facts.accuracy))


def _status(
    manifest: RunManifest, metrics: RunMetrics, certified: Certificate
) -> tuple[str, str | None]:
    """Return the status of a run, and where it is not ok the reason.

    A run that was stored as ok failed with too many failures in its records, and is invalid where
    its client cannot be trusted.
    """
    if manifest.status != "ok":
        return manifest.status, manifest.reason
    if (why := too_many_failed(metrics.requests, manifest)) is not None:
        return "failed", why
    if certified.verdict == INVALID:
        return "invalid", certified.reasons[0].message
    return "ok", manifest.reason


def _beside(certified: Certificate, found: Sequence[RunWarning]) -> list[RunWarning]:
    """Return the warnings that the certificate does not state already."""
    names = [reason.name for reason in certified.reasons]
    stated = {twin for name in names for twin in _SAME_AS.get(name, (name,))}
    return [warning for warning in found if warning.name not in stated]


def _window(metrics: RunMetrics) -> WindowFacts:
    """Return the window, and what its rates are made from.

    Requests that ended in it, and the tokens whose event lies in it; a prompt's lie with the first.
    """
    requests, window, values = metrics.requests, metrics.window, metrics.run
    ended = requests["ok"].to_numpy() & window.holds(requests["last_token_ns"].to_numpy())
    length_s, output = window.length_s, values.output_tokens_per_s
    total = values.total_tokens_per_s
    prompt = None if total is None or output is None else total - output
    return WindowFacts(
        kind=window.kind,
        start_s=_seconds(window.start_ns),
        end_s=_seconds(window.end_ns),
        reason=window.reason,
        length_s=length_s,
        requests_ended=int(ended.sum()),
        output_tokens=_tokens(output, length_s),
        prompt_tokens=_tokens(prompt, length_s),
    )


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _tokens(rate: float | None, length_s: float | None) -> int | None:
    return None if rate is None or length_s is None else round(rate * length_s)


def _counts(metrics: RunMetrics) -> RequestCounts:
    """Return the requests of the whole run, the tokens of the answered ones, its length."""
    requests = metrics.requests
    answered = requests[requests["ok"]]
    length_ns = requests["closed_ns"].max() - requests["placed_ns"].min()
    return RequestCounts(
        sent=len(requests),
        measured=int(requests["measured"].sum()),
        ok=len(answered),
        failed=len(requests) - len(answered),
        prompt_tokens=_total(answered["prompt_tokens"]),
        output_tokens=_total(answered["output_tokens"]),
        duration_s=None if requests.empty else float(length_ns) / 1e9,
    )


def _total(tokens: pd.Series[Any]) -> int | None:
    """Return the sum; None where one of them is not known, or there is none."""
    return None if tokens.empty or tokens.isna().any() else int(tokens.sum())
