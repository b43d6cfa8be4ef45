"""What is seen of the client in a stored run: one value for each limit of the certificate.

From the records and from what the client noted of itself, `manifest["client"]`. Absent is None:
not known, or nothing that this run could show.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.results.client.limits import amount
from harness.results.metrics import RunFigures
from harness.results.names import is_open_loop
from harness.results.units import significant
from harness.results.window import first_turn

Floats = NDArray[np.float64]
_LEAST_WALL_S = 1.0  # of a load phase whose CPU is judged: in less, opening connections is most
_PORT_HELD_S = 60.0  # a closed connection keeps its port for so long (TIME_WAIT on Linux)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measured value, in the unit of its limit, and the same in words."""

    value: float | None  # None: not known, or not to be judged
    words: str = ""
    readings: int | None = None  # that a P99 rests on; None: it is no P99


def client_figures(figures: RunFigures, manifest: Mapping[str, Any]) -> dict[str, Seen]:
    """Return what was seen for each limit of `certificate_limits.LIMITS`, by its name."""
    return {name: measure(figures, manifest) for name, measure in _MEASURES.items()}


# What the records tell ---------------------------------------------------------------------------


def start_rates(figures: RunFigures, manifest: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return conversations started a second, as the schedule has them and as they were.

    None where there are too few to speak of a rate. Sends are held against the schedule, not
    against the rate asked for: a Poisson draw has a rate of its own.
    """
    first = first_turn(figures.requests)
    starts = figures.requests[first]
    sent_ns = starts["placed_ns"].to_numpy() - _waits_elsewhere_ns(figures, manifest)[first]
    if len(starts) < 2:
        return None
    wanted_ns, taken_ns = float(np.ptp(starts["scheduled_ns"])), float(np.ptp(sent_ns))
    if wanted_ns <= 0 or taken_ns <= 0:
        return None
    return (len(starts) - 1) / wanted_ns * 1e9, (len(starts) - 1) / taken_ns * 1e9


def _waits_elsewhere_ns(figures: RunFigures, manifest: Mapping[str, Any]) -> Floats:
    """Return what of each send's delay is not the client's: a cap held it, or it was connecting."""
    requests = figures.requests
    waits = cap_waits_ns(figures, manifest) + np.nan_to_num(requests["connect_ns"].to_numpy())
    delays = requests["placed_ns"].to_numpy() - requests["scheduled_ns"].to_numpy()
    own: Floats = np.minimum(waits, np.maximum(delays, 0.0))  # no wait is longer than its delay
    return own


def cap_waits_ns(figures: RunFigures, manifest: Mapping[str, Any]) -> Floats:
    """Return for how long a cap on conversations alive held each request back, in nanoseconds.

    Places are given in the order of the schedule: a conversation that is due while all are taken
    waits for the first of them to end. Later turns have their place already. Several workers have
    a part of the conversations and of the places each, dealt out one by one.
    """
    requests, cap = figures.requests, manifest["load"].get("max_concurrency")
    waits = np.zeros(len(requests))
    if cap is None:
        return waits
    parts = max(1, len(_workers(manifest)))
    places = [len(range(part, cap, parts)) for part in range(parts)]
    taken: list[list[float]] = [[] for _ in range(parts)]  # when those end that have a place
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


def _load_not_delivered(figures: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    rates = start_rates(figures, manifest)
    if not is_open_loop(manifest["load"]) or rates is None:
        return Seen(value=None)
    wanted, achieved = rates
    short = max(0.0, 1 - achieved / wanted)
    return Seen(value=short, words=f"{started_words(wanted, achieved)}: {_share(short)} less")


def started_words(wanted: float, achieved: float) -> str:
    """Return two rates of conversations in a sentence."""
    return f"{achieved:.4g} conversations/s were started, the schedule has {wanted:.4g}"


def _send_delay(figures: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    if not is_open_loop(manifest["load"]):
        return Seen(value=None)
    return _late(figures, manifest, np.zeros(len(figures.requests), np.bool_))


def _turn_round(figures: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    """In closed loop TTFT counts from the send: what a late one takes is a part of the slot."""
    if is_open_loop(manifest["load"]):
        return Seen(value=None)
    return _late(figures, manifest, _ramp(figures.requests, int(manifest["load"]["value"])))


def _late(figures: RunFigures, manifest: Mapping[str, Any], left_out: NDArray[np.bool_]) -> Seen:
    requests = figures.requests
    delays_ns = (requests["sent_ns"] - requests["scheduled_ns"]).to_numpy()
    delays_ns = delays_ns - _waits_elsewhere_ns(figures, manifest)
    judged = requests["measured"].to_numpy() & ~np.isnan(delays_ns) & ~left_out
    if not judged.any():
        return Seen(value=None)
    delay_ms = max(0.0, float(np.percentile(delays_ns[judged], 99)) / 1e6)
    return Seen(
        value=delay_ms,
        words=f"requests were sent {amount(delay_ms, 'ms')} late (p99)",
        readings=int(judged.sum()),
    )


def _ramp(requests: pd.DataFrame, slots: int) -> NDArray[np.bool_]:
    """Return which requests are the first of their slot: nobody asked for them at one moment."""
    first = first_turn(requests)
    order = np.argsort(requests["placed_ns"].to_numpy()[first], kind="stable")
    ramp = np.zeros(len(requests), np.bool_)
    ramp[np.flatnonzero(first)[order[:slots]]] = True
    return ramp


def _in_flight(figures: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    """A slot is empty between two of its conversations: while the client turns round."""
    load, window = manifest["load"], figures.window
    start, end = window.start_ns, window.end_ns
    if is_open_loop(load) or window.kind != "steady" or start is None or end is None:
        return Seen(value=None)
    spans = conversation_spans(figures.requests)
    lived_ns = spans["closed_ns"].clip(upper=end) - spans["placed_ns"].clip(lower=start)
    alive = float(lived_ns.clip(lower=0).sum()) / (end - start)
    target = min(int(load["value"]), len(spans))
    words = f"{significant(alive)} conversations were alive on average, {target} were asked"
    return Seen(value=max(0.0, 1 - alive / target), words=words)


def _failed_share(figures: RunFigures, _: Mapping[str, Any]) -> Seen:
    ok = figures.requests["ok"]
    failed = int((~ok).sum())
    kinds = ", ".join(f"{kind} {n}" for kind, n in figures.metrics["failures"].items())
    share = failed / len(ok)
    words = f"{failed} of {len(ok)} requests failed ({kinds}), {_share(share)}"
    return Seen(value=share, words=words)


def _usage_missing(figures: RunFigures, _: Mapping[str, Any]) -> Seen:
    answered = figures.requests[figures.requests["ok"]]
    if answered.empty:
        return Seen(value=None)
    missing = int((~answered["server_counted"]).sum())
    words = (
        f"the server told no token count that holds for {missing} of {len(answered)} answers; "
        "events were counted instead"
    )
    return Seen(value=missing / len(answered), words=words)


def _shorter_than_asked(figures: RunFigures, _: Mapping[str, Any]) -> Seen:
    answered = figures.requests[figures.requests["ok"]]
    asked, got = answered["asked_tokens"], answered["output_tokens"]
    total = float(asked.sum())
    if not total:
        return Seen(value=None)
    share = float((asked - got).clip(lower=0).sum()) / total
    short = int((got < asked).sum())
    words = (
        f"{short} of {len(answered)} answers are shorter than asked ({int(got.sum()):,} tokens of "
        f"{int(total):,})"
    )
    return Seen(value=share, words=words)


# What the client noted of itself -----------------------------------------------------------------


def _workers(manifest: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    workers: Sequence[Mapping[str, Any]] = (manifest.get("client") or {}).get("workers") or ()
    return workers


def wall_s(manifest: Mapping[str, Any]) -> float | None:
    """Return how long the load phase took, of the worker that took longest; None: not known."""
    return max((w["wall_s"] for w in _workers(manifest) if w.get("wall_s")), default=None)


def _loop_lag(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    lags = [worker.get("loop_lag_ns") or {} for worker in _workers(manifest)]
    known = [lag for lag in lags if lag.get("p99") is not None]
    if not known:
        return Seen(value=None)
    worst = max(known, key=lambda lag: float(lag["p99"]))
    lag_ms = worst["p99"] / 1e6
    return Seen(
        value=lag_ms,
        words=f"the client's event loop woke {amount(lag_ms, 'ms')} late (p99)",
        readings=worst.get("n"),
    )


def _cpu(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    shares = [
        worker["cpu_s"] / worker["wall_s"]
        for worker in _workers(manifest)
        if worker.get("cpu_s") is not None and (worker.get("wall_s") or 0) >= _LEAST_WALL_S
    ]
    busiest = max(shares, default=None)
    if busiest is None:
        return Seen(value=None)
    return Seen(value=busiest, words=f"the client used {_share(busiest)} of its CPU core")


def _open_files(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    files = (manifest.get("client") or {}).get("open_files") or {}
    most, limit = files.get("most"), files.get("limit")
    if most is None or not limit:
        return Seen(value=None)
    return Seen(value=most / limit, words=f"{most:,} files were open of {limit:,} allowed")


def _ports(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    """A closed connection keeps its port for a while; those of longer ago gave it back."""
    ports = (manifest.get("client") or {}).get("ports") or {}
    used, available = ports.get("used"), ports.get("available")
    if used is None or not available:
        return Seen(value=None)
    held = used * min(1.0, _PORT_HELD_S / (wall_s(manifest) or _PORT_HELD_S))
    words = f"about {held:,.0f} ports to one address were held at once, there are {available:,}"
    return Seen(value=held / available, words=words)


def _read_on_the_clock(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    told = [w for w in _workers(manifest) if w.get("read_on_the_clock") is not None]
    requests = sum(worker.get("requests") or 0 for worker in told)
    if not requests:
        return Seen(value=None)
    read = sum(worker["read_on_the_clock"] for worker in told)
    words = f"{read:,} of {requests:,} answers were read while the clock ran, for want of memory"
    return Seen(value=read / requests, words=words)


def _beyond_calibration(figures: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    calibration = (manifest.get("client") or {}).get("calibration") or {}
    most, rate = calibration.get("highest_tokens_per_s"), figures.metrics["output_tokens_per_s"]
    if not most or rate is None:
        return Seen(value=None)
    own = rate / max(1, len(_workers(manifest)))
    words = (
        f"{significant(own)} output tokens/s came to one client process, it was calibrated up to "
        f"{significant(float(most))}"
    )
    return Seen(value=own / most, words=words)


def _wall_clock(_: RunFigures, manifest: Mapping[str, Any]) -> Seen:
    step_ns = (manifest.get("client") or {}).get("wall_clock_step_ns")
    if step_ns is None:
        return Seen(value=None)
    step_ms = step_ns / 1e6
    words = f"the wall clock jumped {amount(step_ms, 'ms')} ahead of the monotonic one"
    return Seen(value=step_ms, words=words)


def _share(value: float) -> str:
    return amount(value, "share")


_MEASURES: Mapping[str, Callable[[RunFigures, Mapping[str, Any]], Seen]] = {
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
