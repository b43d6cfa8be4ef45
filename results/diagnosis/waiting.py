"""The rules for waiting: a late client, a rate above capacity, the engine's queue."""

from __future__ import annotations

from harness.results.client import DEGRADED, INVALID
from harness.results.diagnosis.kv_cache import kv_room
from harness.results.diagnosis.limits import LIMIT_BY_NAME
from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import significant
from harness.results.warnings import backlog_of, more_sequences, peak_in_flight


def client(run: DiagnosedRun) -> Measured:
    """Return how many reasons make the client of the run DEGRADED or INVALID."""
    certificate = run.certificate
    if run.manifest.client is None:
        virtual = run.manifest.clock == "virtual"
        return NOTHING_TO_SEE if virtual else not_stored("the client's own measurement")
    against = [one for one in certificate.reasons if one.verdict in (DEGRADED, INVALID)]
    if not against:
        known = certificate.verdict is not None
        return Measured(value=0) if known else not_stored("the lag of the client's event loop")
    worst = against[0]
    return Measured(
        value=len(against),
        evidence=f"{worst.verdict}: {worst.message}",
        remedy=worst.remedy or "see docs/certificate.md",
    )


def arrivals(run: DiagnosedRun) -> Measured:
    """Return how many requests piled up in an open loop with growing waiting times."""
    if not run.open_loop:
        return NOTHING_TO_SEE
    backlog = backlog_of(run.metrics.requests, run.metrics.window)
    if backlog is None:
        return Measured(value=0)
    return Measured(
        value=backlog.in_flight_end - backlog.in_flight_middle,
        evidence=f"{backlog.in_flight_middle:,} requests in flight half-way, "
        f"{backlog.in_flight_end:,} at the last send; {significant(backlog.due_rps)} requests/s "
        f"were due and {significant(backlog.answered_rps)} were answered; the backlog took "
        f"{significant(backlog.drain_s)} s to finish",
        remedy=f"lower the rate to at most {significant(backlog.answered_rps)} requests/s, or add "
        "GPUs or servers",
    )


def queue(run: DiagnosedRun) -> Measured:
    """Return the share of the TTFT spent in the engine's queue, in the measured window.

    The engine counts queue time over the whole run, ramp-up included. The rest of the TTFT (prefill
    and transfer) is assumed to be the same in the window, and everything above it is queue time.
    """
    queued_ns = run.counters.queued_ns
    if queued_ns is None:
        return not_stored("the time in the engine's queue")
    requests = run.metrics.requests
    ttft_ms = float(requests["ttft_ms"].sum())
    if not ttft_ms > 0:
        return not_stored("any TTFT")
    service_ms = max(0.0, ttft_ms - queued_ns / 1e6) / max(1, run.answered)
    mean_ttft_ms = float(requests.loc[requests["measured"], "ttft_ms"].mean())
    if not mean_ttft_ms > 0:
        return not_stored("any TTFT")
    mean_ms = max(0.0, mean_ttft_ms - service_ms)
    share = mean_ms / mean_ttft_ms
    cause, remedy = _cause(run)
    return Measured(
        value=share,
        evidence=f"{share:.0%} of the TTFT is queue time: {significant(mean_ms)} ms of "
        f"{significant(mean_ttft_ms)} ms on average; {cause}",
        remedy=remedy,
    )


def _cause(run: DiagnosedRun) -> tuple[str, str]:
    """Return the probable cause of the waiting, and the remedy."""
    running, limit = run.counters.peak_running, run.facts.running_limit
    if run.toggle("batching") in ("static", "none"):
        return (
            f"batching is {run.toggle('batching')}, so requests wait for a batch to end",
            "set batching to continuous",
        )
    in_flight = peak_in_flight(run.metrics.requests)
    if limit is not None and (in_flight if running is None else running) >= limit:
        return (
            f"all {limit:,} slots are in use",
            f"{more_sequences(run.manifest, in_flight)}; or lower the load",
        )
    shortage = kv_room(run)
    prefill = (
        f"{run.caching_next}raise max_batched_tokens (more prompt tokens per step, longer token "
        "gaps), or add GPUs"
    )
    if shortage.value is None:
        return "the cause is unknown: the KV demand of the requests is not stored", prefill
    if shortage.value > LIMIT_BY_NAME["kv_room"].above:
        return "the KV cache is full", shortage.remedy
    return "slots and KV blocks are free, so requests wait for the prefill of others", prefill
