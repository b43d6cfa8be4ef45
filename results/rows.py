"""One row for each run of a sweep: what the summary says of it, and what effects are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from results.checks import doubts, too_many_failed
from results.doubt import Doubt
from results.metrics import RunFigures, run_figures
from results.names import flatten
from results.store import StoredRun

_NO_CERTIFICATE: dict[str, Any] = {"verdict": None, "reasons": []}
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
    status, reason = _status(manifest, figures)
    sent = not figures.requests.empty
    return {
        **_described(manifest),
        "status": status,
        "reason": reason,
        "metrics": figures.metrics if sent else None,
        "checks": [check(doubt) for doubt in doubts(figures, manifest)],
        "window": _window(figures) if sent else None,
        "counts": _counts(figures),
        "values": dict(flatten(figures.metrics)) if sent else {},
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
        "certificate": manifest.get("certificate") or _NO_CERTIFICATE,
        "evidence": manifest.get("evidence") or {},
        "gpus": manifest.get("gpus"),
        "skipped_rows": manifest.get("skipped_rows") or {},
        "notes": manifest.get("notes") or [],
        "clock": manifest.get("clock"),
        "assumptions": (manifest.get("facts") or {}).get("assumptions") or [],
    }


def _status(manifest: Mapping[str, Any], figures: RunFigures) -> tuple[str, str | None]:
    """Return the stored status; a run that passed with too many failures in its records failed."""
    why = too_many_failed(figures.requests, manifest)
    if manifest["status"] == "ok" and why is not None:
        return "failed", why
    return manifest["status"], manifest.get("reason")


def check(doubt: Doubt) -> dict[str, str]:
    """Return a doubt as the summary holds it."""
    return {"name": doubt.name, "message": doubt.message, "remedy": doubt.remedy}


def _window(figures: RunFigures) -> Row:
    window = figures.window
    start_s, end_s = (
        None if edge is None else edge / 1e9 for edge in (window.start_ns, window.end_ns)
    )
    return {"kind": window.kind, "start_s": start_s, "end_s": end_s, "reason": window.reason}


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
        "metrics": None,
        "checks": [],
        "window": None,
        "counts": None,
        "values": {},
        "requests": None,
    }


def public(row: Row) -> Row:
    """Return the part of a row that `summary.json` shows."""
    return {name: value for name, value in row.items() if name not in _INNER}
