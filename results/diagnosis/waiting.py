"""Waiting: for a late client, for capacity that is not there, in the engine's queue."""

from __future__ import annotations

from harness.results.client import DEGRADED, INVALID
from harness.results.diagnosis.kv_cache import kv_room
from harness.results.diagnosis.limits import LIMIT_BY_NAME
from harness.results.diagnosis.measured import NOTHING_TO_SEE, DiagnosedRun, Measured, not_stored
from harness.results.units import significant
from harness.results.warnings import backlog_of, more_sequences, peak_in_flight


def client(run: DiagnosedRun) -> Measured:
    """Measure how much stands against the client of the run."""
    certificate = run.certificate
    if run.manifest.client is None:
        virtual = run.manifest.clock == "virtual"
        return NOTHING_TO_SEE if virtual else not_stored("what the client noted of itself")
    against = [one for one in certificate.reasons if one.verdict in (DEGRADED, INVALID)]
    if not against:
        known = certificate.verdict is not None
        return Measured(value=0) if known else not_stored("how late the client's loop was")
    worst = against[0]
    return Measured(
        value=len(against),
        evidence=f"{worst.verdict}: {worst.message}",
        remedy=worst.remedy or "see docs/certificate.md",
    )


def arrivals(run: DiagnosedRun) -> Measured:
    """Measure what piled up in an open loop whose waits grow."""
    if not run.open_loop:
        return NOTHING_TO_SEE
    backlog = backlog_of(run.metrics.requests, run.metrics.window)
    if backlog is None:
        return Measured(value=0)
    return Measured(
        value=backlog.in_flight_end - backlog.in_flight_middle,
        evidence=f"{backlog.in_flight_middle:,} requests in flight half-way, "
        f"{backlog.in_flight_end:,} at the last start; {significant(backlog.due_rps)} requests/s "
        f"were due, {significant(backlog.answered_rps)} were answered, and "
        f"{significant(backlog.drain_s)} s were left to do",
        remedy=f"ask for at most {significant(backlog.answered_rps)} requests/s, or add GPUs or "
        "servers: every further second of this load waits longer",
    )


def queue(run: DiagnosedRun) -> Measured:
    """Measure the share of the TTFT that the engine's queue took, in the measured window.

    The engine counts over the whole run, its ramp included, in which all ask at once. What is not
    waiting in it, prefill and the way of the answer, is taken to be the same in the window.
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
        evidence=f"{share:.0%} of the TTFT is the engine's queue: {significant(mean_ms)} ms of "
        f"{significant(mean_ttft_ms)} ms on average; {cause}",
        remedy=remedy,
    )


def _cause(run: DiagnosedRun) -> tuple[str, str]:
    """Return what those who wait wait for, as far as it is known, and what to try."""
    running, limit = run.counters.peak_running, run.facts.running_limit
    if run.toggle("batching") in ("static", "none"):
        return (
            f"batching is {run.toggle('batching')}, so they wait for a batch to end",
            "turn batching to continuous",
        )
    in_flight = peak_in_flight(run.metrics.requests)
    if limit is not None and (in_flight if running is None else running) >= limit:
        return (
            f"all {limit:,} slots are taken",
            f"{more_sequences(run.manifest, in_flight)}; or ask for less",
        )
    room = kv_room(run)
    prefill = (
        f"{run.caching_next}raise max_batched_tokens (more prompt tokens a step, but longer gaps), "
        "or add GPUs"
    )
    if room.value is None:
        return "neither slots nor KV room are known to be short", prefill
    if room.value > LIMIT_BY_NAME["kv_room"].above:
        return "the KV cache is full", room.remedy
    return "slots and KV room are left, so prompts wait for each other's prefill", prefill
