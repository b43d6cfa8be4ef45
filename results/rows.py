"""One row for each run of a sweep: what the summary says of it, and what effects are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.results.client import INVALID, certificate, uncertified
from harness.results.metrics import RunFigures, run_figures
from harness.results.names import flatten
from harness.results.predictions import prediction_row
from harness.results.store import StoredRun
from harness.results.warnings import RunWarning, doubts, failure_samples, too_many_failed

# A certificate that holds the first against a run says what the others would.
_TOLD_BY_CERTIFICATE = {"failed_share": ("failed_share", "some_failed")}
CHECKED = "checked: "  # before what says how far assumed times are off
_INNER = ("values", "requests", "assumptions", "clock")  # for the analysis only
_PLOTTED = (
    "ttft_ms", "scheduled_ttft_ms", "tpot_ms", "e2e_ms", "scheduled_e2e_ms", "measured", "ok",
)  # fmt: skip

Row = dict[str, Any]


def stored_row(run: StoredRun) -> Row:
    """Return the row of a run that was stored.

    Beside what the summary shows, `values` holds flat metric name → value, and `requests` a table
    of each request's latencies.
    """
    manifest, figures = run.manifest, run_figures(run.records, run.manifest)
    certified = certificate(figures, manifest)
    status, reason = _status(manifest, figures, certified)
    sent = not figures.requests.empty
    values = dict(flatten(figures.metrics)) if sent else {}
    return {
        **_described(manifest),
        "status": status,
        "reason": reason,
        "certificate": certified,
        "metrics": figures.metrics if sent else None,
        "failure_samples": failure_samples(run.records),
        "checks": [check(doubt) for doubt in _untold(doubts(figures, manifest), certified)],
        "window": _window(figures) if sent else None,
        "counts": _counts(figures),
        "values": values,
        "prediction": prediction_row(run, values),
        "requests": figures.requests[[*_PLOTTED]] if sent else None,
    }


def _described(manifest: Mapping[str, Any]) -> Row:
    """Return what a manifest, or an entry of the plan, says of a run."""
    return {
        **{name: manifest[name] for name in ("key", "arm", "block", "engine", "label", "workload")},
        "load": manifest["load"],
        "seed": manifest.get("seed"),
        "engine_version": manifest.get("engine_version"),
        "engine_kind": manifest.get("engine_kind"),
        "toggles": manifest.get("toggles") or {},
        "flipped": manifest.get("flipped") or {},
        "evidence": manifest.get("evidence") or {},
        "gpus": manifest.get("gpus"),
        "skipped_rows": manifest.get("skipped_rows") or {},
        "notes": manifest.get("notes") or [],
        "clock": manifest.get("clock"),
        "cache": manifest.get("cache"),
        "assumptions": _assumptions(manifest.get("facts") or {}),
    }


def _assumptions(facts: Mapping[str, Any]) -> list[str]:
    """Return what simulated times rest on, and how far off they are known to be."""
    checked = [f"{CHECKED}{text}" for text in facts.get("accuracy") or ()]
    return [*(facts.get("assumptions") or ()), *checked]


def _status(
    manifest: Mapping[str, Any], figures: RunFigures, certified: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Return the status of a run, and where it is not ok the reason.

    A run that was stored as ok failed with too many failures in its records, and is invalid where
    its client cannot be believed.
    """
    if manifest["status"] != "ok":
        return manifest["status"], manifest.get("reason")
    if (why := too_many_failed(figures.requests, manifest)) is not None:
        return "failed", why
    if certified["verdict"] == INVALID:
        return "invalid", certified["reasons"][0]["message"]
    return "ok", manifest.get("reason")


def _untold(found: Sequence[RunWarning], certified: Mapping[str, Any]) -> list[RunWarning]:
    """Return the doubts that the certificate does not tell already."""
    names = [reason["name"] for reason in certified["reasons"]]
    told = {twin for name in names for twin in _TOLD_BY_CERTIFICATE.get(name, (name,))}
    return [doubt for doubt in found if doubt.name not in told]


def check(doubt: RunWarning) -> dict[str, str]:
    """Return a doubt as the summary holds it."""
    return {"name": doubt.name, "message": doubt.message, "remedy": doubt.remedy}


def _window(figures: RunFigures) -> Row:
    window = figures.window
    start_s, end_s = (
        None if edge is None else edge / 1e9 for edge in (window.start_ns, window.end_ns)
    )
    return {
        "kind": window.kind,
        "start_s": start_s,
        "end_s": end_s,
        "reason": window.reason,
        **_inside(figures),
    }


def _inside(figures: RunFigures) -> Row:
    """Return what the rates of the window are made from: its length, and what it held.

    Requests that ended in it, and the tokens whose event lies in it; a prompt's lie with the first.
    """
    requests, window, metrics = figures.requests, figures.window, figures.metrics
    ended = requests["ok"].to_numpy() & window.holds(requests["last_token_ns"].to_numpy())
    length_s, output = window.length_s, metrics["output_tokens_per_s"]
    total = metrics["total_tokens_per_s"]
    held = {"length_s": length_s, "requests_ended": int(ended.sum())}
    if length_s is None or output is None:
        return {**held, "output_tokens": None, "prompt_tokens": None}
    prompt = None if total is None else round((total - output) * length_s)
    return {**held, "output_tokens": round(output * length_s), "prompt_tokens": prompt}


def _counts(figures: RunFigures) -> Row:
    """Return requests: sent = ok + failed over the whole run, measured those in the window.

    Beside them the tokens of the answered ones, and the whole run's length in seconds.
    """
    requests = figures.requests
    answered = requests[requests["ok"]]
    ok = len(answered)
    length_ns = requests["closed_ns"].max() - requests["placed_ns"].min()
    return {
        "sent": len(requests),
        "measured": int(requests["measured"].sum()),
        "ok": ok,
        "failed": len(requests) - ok,
        "prompt_tokens": _total(answered["prompt_tokens"]),
        "output_tokens": _total(answered["output_tokens"]),
        "duration_s": None if requests.empty else float(length_ns) / 1e9,
    }


def _total(tokens: pd.Series[Any]) -> int | None:
    """Return the sum; None where one of them is not known, or there is none."""
    return None if tokens.empty or tokens.isna().any() else int(tokens.sum())


def planned_row(plan: Mapping[str, Any]) -> Row:
    """Return the row of a run that was planned and is not stored: skipped, or never reached."""
    skipped = plan.get("status") == "skipped"
    return {
        **_described(plan),
        "status": "skipped" if skipped else "interrupted",
        "reason": plan.get("reason") if skipped else "not run",
        "certificate": uncertified("not_run", "not run"),
        "metrics": None,
        "failure_samples": {},
        "checks": [],
        "window": None,
        "counts": None,
        "values": {},
        "prediction": None,
        "requests": None,
    }


def public(row: Row) -> Row:
    """Return the part of a row that `summary.json` shows."""
    shown = {name: value for name, value in row.items() if name not in _INNER}
    if row["prediction"] is not None:
        values = row["prediction"]["values"]
        told = {**row["prediction"], "values": values and _predicted(values)}
        shown["prediction"] = told
    return shown


def _predicted(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the predicted metrics that mean something: latencies and rates."""
    names = ("output_tokens_per_s", "ttft_ms.p50", "scheduled_ttft_ms.p50", "tpot_ms.p50")
    return {name: values.get(name) for name in names}
