"""The rule for prefill interference: tokens delayed by the prefill of other requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured
from harness.results.metrics import event_gaps
from harness.results.units import significant

_LEAST_GAPS = 100  # with fewer gaps the rule does not apply
_LEAST_ALONE = 0.01  # share of gaps without a prefill from which their median is the reference
_UNDISTURBED = 10  # percentile of all gaps, the reference below that share


def prefill_stalls(run: DiagnosedRun) -> Measured:
    """Return the extra time of token gaps during other prefills, as a share of all gap time."""
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
    both = f"; {mixed / steps:.0%} of the steps also prefill" if mixed and steps else ""
    return Measured(
        value=share,
        evidence=f"prefills of other requests take {share:.0%} of the time between tokens: the "
        f"median gap without a prefill is {significant(base_ms)} ms; over all gaps p50 is "
        f"{significant(p50_ms)} ms and p99 {significant(p99_ms)} ms{both}",
        remedy=_remedy(run),
    )


def gaps_beside_prefills(run: DiagnosedRun) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the measured token gaps in ms, and which of them overlap another prefill."""
    answered = run.metrics.requests[run.metrics.requests["ok"]]
    starts_ns, ends_ns = _gaps(run)
    work = _prefills(answered["placed_ns"].to_numpy(), answered["first_token_ns"].to_numpy())
    return (ends_ns - starts_ns) / 1e6, _overlap(starts_ns, ends_ns, *work)


def _remedy(run: DiagnosedRun) -> str:
    if run.toggle("chunked_prefill") == "off":
        return "turn chunked_prefill on: a step then prefills part of a prompt and decodes the rest"
    return (
        f"{run.caching_next}lower max_batched_tokens (smaller chunks: shorter gaps, higher TTFT), "
        "or run prefill on separate servers"
    )


def _gaps(run: DiagnosedRun) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return start and end of each gap between token events of the measured requests."""
    table, requests = run.table, run.metrics.requests
    chosen = (requests["ok"] & requests["measured"] & requests["in_order"]).to_numpy()
    _, inside = event_gaps(table, chosen)
    times = table.event_time_ns.astype(np.float64)
    return times[:-1][inside], times[1:][inside]


def _prefills(
    sent_ns: NDArray[np.float64], first_ns: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the estimated prefill intervals, which do not overlap.

    Engines prefill in order of arrival. A prefill starts when the request is sent or, if later,
    when the previous request has its first token. It ends at the request's own first token.
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
    """Return which gaps overlap a work interval; work intervals do not overlap each other."""
    some = work_ends > work_starts
    work_starts, work_ends = work_starts[some], work_ends[some]
    if not len(work_ends):
        return np.zeros(len(starts), np.bool_)
    first = np.searchsorted(work_ends, starts, side="right")  # the first that ends after the start
    reached = first < len(work_ends)
    begins = work_starts[np.minimum(first, len(work_starts) - 1)]
    return np.asarray(reached & (begins < ends), np.bool_)
