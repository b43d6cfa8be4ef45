"""Prefill interference: tokens that come late because other prompts are being computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured
from harness.results.metrics import event_gaps
from harness.results.units import significant

_LEAST_GAPS = 100  # fewer say nothing
_LEAST_ALONE = 0.01  # of all gaps, that must lie beside no prefill to be the measure of the others
_UNDISTURBED = 10  # percentile of all gaps that stands in for them


def prefill_stalls(run: DiagnosedRun) -> Measured:
    """Measure what gaps beside prefills have above a gap without, as a share of all gaps."""
    gaps_ms, beside = gaps_beside_prefills(run)
    if len(run.metrics.requests) < 2 or len(gaps_ms) < _LEAST_GAPS:
        return NOTHING_TO_SEE
    alone = gaps_ms[~beside]
    enough = len(alone) >= _LEAST_ALONE * len(gaps_ms)
    base_ms = float(np.median(alone) if enough else np.percentile(gaps_ms, _UNDISTURBED))
    lost_ms = float(np.maximum(0.0, gaps_ms[beside] - base_ms).sum())
    share = lost_ms / float(gaps_ms.sum())
    p50_ms, p99_ms = (float(one) for one in np.percentile(gaps_ms, (50, 99)))
    mixed, steps = run.counters.mixed_steps, run.counters.steps
    held = f"; {mixed / steps:.0%} of the steps held prompt tokens too" if mixed and steps else ""
    return Measured(
        value=share,
        evidence=f"{share:.0%} of the time between tokens is lost beside prefills: the median gap "
        f"without one takes {significant(base_ms)} ms; of all gaps the median is "
        f"{significant(p50_ms)} ms, P99 {significant(p99_ms)}{held}",
        remedy=_remedy(run),
    )


def gaps_beside_prefills(run: DiagnosedRun) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the measured gaps between tokens in ms, and which lie beside another's prefill."""
    answered = run.metrics.requests[run.metrics.requests["ok"]]
    starts_ns, ends_ns = _gaps(run)
    work = _prefills(answered["placed_ns"].to_numpy(), answered["first_token_ns"].to_numpy())
    return (ends_ns - starts_ns) / 1e6, _overlap(starts_ns, ends_ns, *work)


def _remedy(run: DiagnosedRun) -> str:
    if run.toggle("chunked_prefill") == "off":
        return "turn chunked_prefill on: a step then takes a part of a prompt and all who decode"
    return (
        f"{run.caching_next}lower max_batched_tokens (smaller chunks: shorter gaps, later "
        "first tokens), or prefill on servers of their own"
    )


def _gaps(run: DiagnosedRun) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return start and end of each gap between token events of answered, measured requests."""
    table, requests = run.table, run.metrics.requests
    chosen = (requests["ok"] & requests["measured"] & requests["in_order"]).to_numpy()
    _, inside = event_gaps(table, chosen)
    times = table.event_time_ns.astype(np.float64)
    return times[:-1][inside], times[1:][inside]


def _prefills(
    sent_ns: NDArray[np.float64], first_ns: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when prompts were computed, as intervals one after the other.

    Engines take prompts as they came. So the work for one begins when it was sent or, if that is
    later, when the one before had its first token, and ends with its own.
    """
    order = np.argsort(first_ns, kind="stable")
    ends = first_ns[order]
    before = np.concatenate([[-np.inf], ends[:-1]])
    return np.maximum(sent_ns[order], before), ends


def _overlap(
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    work_starts: NDArray[np.float64],
    work_ends: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which gaps overlap an interval of work; these do not overlap each other."""
    some = work_ends > work_starts
    work_starts, work_ends = work_starts[some], work_ends[some]
    if not len(work_ends):
        return np.zeros(len(starts), np.bool_)
    first = np.searchsorted(work_ends, starts, side="right")  # the first that ends after the start
    reached = first < len(work_ends)
    begins = work_starts[np.minimum(first, len(work_starts) - 1)]
    return np.asarray(reached & (begins < ends), np.bool_)
