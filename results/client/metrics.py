"""The measurements of the client of a stored run: one value for each limit of the certificate.

The inputs are the records and the client's own measurements, `manifest.client`. A value is None if
it is unknown or does not apply to the run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.results.client.limits import amount
from harness.results.metrics import RunMetrics
from harness.results.store import ClientFacts, RunManifest, WorkerFacts
from harness.results.units import significant
from harness.results.window import first_turn

Floats = NDArray[np.float64]
_LEAST_WALL_S = 1.0  # shorter load phases mostly open connections, so their CPU is not judged
_PORT_HELD_S = 60.0  # time for which a closed connection keeps its port (TIME_WAIT on Linux)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetric:
    """One measured value in the unit of its limit, and the same value as text."""

    value: float | None  # None: unknown or not applicable
    words: str = ""
    readings: int | None = None  # number of readings behind a P99; None: not a P99


def client_metrics(metrics: RunMetrics, manifest: RunManifest) -> dict[str, ClientMetric]:
    """Return limit name → measured value, for each limit of `LIMITS`."""
    return {name: measure(metrics, manifest) for name, measure in _MEASURES.items()}


# Measured from the records -----------------------------------------------------------------------


def start_rates(metrics: RunMetrics, manifest: RunManifest) -> tuple[float, float] | None:
    """Return conversations started per second: the scheduled and the achieved rate.

    None if fewer than two conversations started. The scheduled rate is used instead of the
    requested rate, because the two differ for a Poisson draw.
    """
    first = first_turn(metrics.requests)
    starts = metrics.requests[first]
    sent_ns = starts["placed_ns"].to_numpy() - _waits_elsewhere_ns(metrics, manifest)[first]
    if len(starts) < 2:
        return None
    wanted_ns, taken_ns = float(np.ptp(starts["scheduled_ns"])), float(np.ptp(sent_ns))
    if wanted_ns <= 0 or taken_ns <= 0:
        return None
    return (len(starts) - 1) / wanted_ns * 1e9, (len(starts) - 1) / taken_ns * 1e9


def _waits_elsewhere_ns(metrics: RunMetrics, manifest: RunManifest) -> Floats:
    """Return the part of each send delay that a cap on conversations or connecting caused."""
    requests = metrics.requests
    waits = cap_waits_ns(metrics, manifest) + np.nan_to_num(requests["connect_ns"].to_numpy())
    delays = requests["placed_ns"].to_numpy() - requests["scheduled_ns"].to_numpy()
    bounded: Floats = np.minimum(waits, np.maximum(delays, 0.0))  # at most the whole delay
    return bounded


def cap_waits_ns(metrics: RunMetrics, manifest: RunManifest) -> Floats:
    """Return how long each request waited for the cap on conversations alive, in nanoseconds.

    Slots are assigned in the order of the schedule. If all slots are taken, the next conversation
    waits until the first one ends. Later turns keep the slot of their conversation. Conversations
    and slots are distributed over the workers in turn.
    """
    requests, cap = metrics.requests, manifest.load.max_concurrency
    waits = np.zeros(len(requests))
    if cap is None:
        return waits
    parts = max(1, len(_workers(manifest)))
    places = [len(range(part, cap, parts)) for part in range(parts)]
    taken: list[list[float]] = [[] for _ in range(parts)]  # end times of conversations with a slot
    ends_ns = requests.groupby("conversation", sort=False)["closed_ns"].transform("max").to_numpy()
    due_ns, starts = requests["scheduled_ns"].to_numpy(), np.flatnonzero(first_turn(requests))
    for i, row in enumerate(starts[np.argsort(due_ns[starts], kind="stable")]):
        own = taken[i % parts]
        if len(own) >= places[i % parts]:
            waits[row] = max(0.0, heapq.heappop(own) - due_ns[row])
        heapq.heappush(own, float(ends_ns[row]))
    return waits


def conversation_spans(requests: pd.DataFrame) -> pd.DataFrame:
    """Return first send and last end of each conversation: `placed_ns`, `closed_ns`."""
    return requests.groupby("conversation", sort=False).agg(
        {"placed_ns": "min", "closed_ns": "max"}
    )


def _load_not_delivered(metrics: RunMetrics, manifest: RunManifest) -> ClientMetric:
    rates = start_rates(metrics, manifest)
    if not manifest.load.is_open_loop or rates is None:
        return ClientMetric(value=None)
    wanted, achieved = rates
    short = max(0.0, 1 - achieved / wanted)
    return ClientMetric(
        value=short, words=f"{started_words(wanted, achieved)}: {_share(short)} less"
    )


def started_words(wanted: float, achieved: float) -> str:
    """Return a sentence with the achieved and the scheduled rate of conversations."""
    return f"{achieved:.4g} conversations/s were started, {wanted:.4g} were scheduled"


def _send_delay(metrics: RunMetrics, manifest: RunManifest) -> ClientMetric:
    if not manifest.load.is_open_loop:
        return ClientMetric(value=None)
    return _late(metrics, manifest, np.zeros(len(metrics.requests), np.bool_))


def _turn_round(metrics: RunMetrics, manifest: RunManifest) -> ClientMetric:
    """Return the P99 send delay in closed loop, where a late send leaves the slot empty."""
    if manifest.load.is_open_loop:
        return ClientMetric(value=None)
    return _late(metrics, manifest, _ramp(metrics.requests, manifest.load.concurrency))


def _late(metrics: RunMetrics, manifest: RunManifest, left_out: NDArray[np.bool_]) -> ClientMetric:
    requests = metrics.requests
    delays_ns = (requests["sent_ns"] - requests["scheduled_ns"]).to_numpy()
    delays_ns = delays_ns - _waits_elsewhere_ns(metrics, manifest)
    judged = requests["measured"].to_numpy() & ~np.isnan(delays_ns) & ~left_out
    if not judged.any():
        return ClientMetric(value=None)
    delay_ms = max(0.0, float(np.percentile(delays_ns[judged], 99)) / 1e6)
    return ClientMetric(
        value=delay_ms,
        words=f"requests were sent {amount(delay_ms, 'ms')} late (p99)",
        readings=int(judged.sum()),
    )


def _ramp(requests: pd.DataFrame, slots: int) -> NDArray[np.bool_]:
    """Return which requests are the first of their slot; these have no due time."""
    first = first_turn(requests)
    order = np.argsort(requests["placed_ns"].to_numpy()[first], kind="stable")
    ramp = np.zeros(len(requests), np.bool_)
    ramp[np.flatnonzero(first)[order[:slots]]] = True
    return ramp


def _in_flight(metrics: RunMetrics, manifest: RunManifest) -> ClientMetric:
    """Return the share of slots that are empty because the client has not sent the next request."""
    load, window = manifest.load, metrics.window
    start, end = window.start_ns, window.end_ns
    if load.is_open_loop or window.kind != "steady" or start is None or end is None:
        return ClientMetric(value=None)
    spans = conversation_spans(metrics.requests)
    lived_ns = spans["closed_ns"].clip(upper=end) - spans["placed_ns"].clip(lower=start)
    alive = float(lived_ns.clip(lower=0).sum()) / (end - start)
    target = min(load.concurrency, len(spans))
    words = f"on average {significant(alive)} of {target} requested conversations were alive"
    return ClientMetric(value=max(0.0, 1 - alive / target), words=words)


def _failed_share(metrics: RunMetrics, _: RunManifest) -> ClientMetric:
    ok = metrics.requests["ok"]
    failed = int((~ok).sum())
    kinds = ", ".join(f"{kind} {n}" for kind, n in metrics.run.failures.items())
    share = failed / len(ok)
    words = f"{failed} of {len(ok)} requests failed ({kinds}), {_share(share)}"
    return ClientMetric(value=share, words=words)


def _usage_missing(metrics: RunMetrics, _: RunManifest) -> ClientMetric:
    answered = metrics.requests[metrics.requests["ok"]]
    if answered.empty:
        return ClientMetric(value=None)
    missing = int((~answered["server_counted"]).sum())
    words = (
        f"the server returned no usable token count for {missing} of {len(answered)} answers; "
        "events were counted instead"
    )
    return ClientMetric(value=missing / len(answered), words=words)


def _shorter_than_asked(metrics: RunMetrics, _: RunManifest) -> ClientMetric:
    answered = metrics.requests[metrics.requests["ok"]]
    requested, received = answered["asked_tokens"], answered["output_tokens"]
    total = float(requested.sum())
    if not total:
        return ClientMetric(value=None)
    share = float((requested - received).clip(lower=0).sum()) / total
    short = int((received < requested).sum())
    words = (
        f"{short} of {len(answered)} answers are shorter than requested "
        f"({int(received.sum()):,} of {int(total):,} output tokens)"
    )
    return ClientMetric(value=share, words=words)


# Measured by the client --------------------------------------------------------------------------


def _client(manifest: RunManifest) -> ClientFacts:
    return manifest.client or ClientFacts()


def _workers(manifest: RunManifest) -> Sequence[WorkerFacts]:
    return _client(manifest).workers


def wall_s(manifest: RunManifest) -> float | None:
    """Return the load phase of the slowest worker in seconds; None if it is unknown."""
    return max((worker.wall_s for worker in _workers(manifest) if worker.wall_s), default=None)


def _loop_lag(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    lags = [worker.loop_lag_ns for worker in _workers(manifest) if worker.loop_lag_ns]
    known = [(lag.p99, lag.n) for lag in lags if lag.p99 is not None]
    if not known:
        return ClientMetric(value=None)
    worst_ns, readings = max(known, key=lambda lag: lag[0])
    lag_ms = worst_ns / 1e6
    return ClientMetric(
        value=lag_ms,
        words=f"the client's event loop woke {amount(lag_ms, 'ms')} late (p99)",
        readings=readings,
    )


def _cpu(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    shares = [
        worker.cpu_s / worker.wall_s
        for worker in _workers(manifest)
        if worker.cpu_s is not None and worker.wall_s is not None and worker.wall_s >= _LEAST_WALL_S
    ]
    busiest = max(shares, default=None)
    if busiest is None:
        return ClientMetric(value=None)
    return ClientMetric(value=busiest, words=f"the client used {_share(busiest)} of its CPU core")


def _open_files(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    files = _client(manifest).open_files
    if files is None or files.most is None or not files.limit:
        return ClientMetric(value=None)
    most, limit = files.most, files.limit
    return ClientMetric(value=most / limit, words=f"{most:,} of {limit:,} allowed files were open")


def _ports(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    """Return the share of ports in use; a connection holds its port for a minute after closing."""
    ports = _client(manifest).ports
    if ports is None or ports.used is None or not ports.available:
        return ClientMetric(value=None)
    used, available = ports.used, ports.available
    held = used * min(1.0, _PORT_HELD_S / (wall_s(manifest) or _PORT_HELD_S))
    words = f"about {held:,.0f} of {available:,} ports to one address were in use at once"
    return ClientMetric(value=held / available, words=words)


def _read_on_the_clock(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    counted = [
        (worker.read_on_the_clock, worker.requests or 0)
        for worker in _workers(manifest)
        if worker.read_on_the_clock is not None
    ]
    requests = sum(number for _, number in counted)
    if not requests:
        return ClientMetric(value=None)
    read = sum(number for number, _ in counted)
    words = (
        f"{read:,} of {requests:,} answers were parsed during the measurement, because the "
        "memory for unread answers was full"
    )
    return ClientMetric(value=read / requests, words=words)


def _beyond_calibration(metrics: RunMetrics, manifest: RunManifest) -> ClientMetric:
    calibration = _client(manifest).calibration
    most = calibration.highest_tokens_per_s if calibration else None
    rate = metrics.run.output_tokens_per_s
    if not most or rate is None:
        return ClientMetric(value=None)
    own = rate / max(1, len(_workers(manifest)))
    words = (
        f"one client process received {significant(own)} output tokens/s; it is calibrated up to "
        f"{significant(most)}"
    )
    return ClientMetric(value=own / most, words=words)


def _wall_clock(_: RunMetrics, manifest: RunManifest) -> ClientMetric:
    step_ns = _client(manifest).wall_clock_step_ns
    if step_ns is None:
        return ClientMetric(value=None)
    step_ms = step_ns / 1e6
    words = f"the wall clock jumped {amount(step_ms, 'ms')} ahead of the monotonic clock"
    return ClientMetric(value=step_ms, words=words)


def _share(value: float) -> str:
    return amount(value, "share")


_MEASURES: Mapping[str, Callable[[RunMetrics, RunManifest], ClientMetric]] = {
    "load_not_delivered": _load_not_delivered,
    "send_delay": _send_delay,
    "turn_round": _turn_round,
    "loop_lag": _loop_lag,
    "cpu": _cpu,
    "in_flight": _in_flight,
    "open_files": _open_files,
    "ports": _ports,
    "failed_share": _failed_share,
    "usage_missing": _usage_missing,
    "shorter_than_asked": _shorter_than_asked,
    "read_on_the_clock": _read_on_the_clock,
    "beyond_calibration": _beyond_calibration,
    "wall_clock_stepped": _wall_clock,
}
