"""Whether requests pile up: an open loop that asks faster than the engine answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.results.window import Window, first_turn

_LEAST_REQUESTS = 12  # fewer say nothing of a trend
_WAIT_GROWS_SHARE = 0.05  # of the time looked at: what waits grow by from its start to its end
_WAIT_GROWS = 2.0  # and as a factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What piled up in a run whose requests came faster than they were answered."""

    in_flight_middle: int  # requests due and not ended, half-way to the last start
    in_flight_end: int  # when the last conversation was due to start
    drain_s: float  # from then to the last end
    answered_rps: float  # requests that ended a second: of the second half, or of all if more
    due_rps: float  # requests that were due a second of the second half


def backlog_of(requests: pd.DataFrame, window: Window) -> Backlog | None:
    """Return the backlog of an open loop; None where none grew, or too little was asked to tell.

    Looked at is the time in which conversations start; afterwards the load falls. A backlog grows
    when more requests are in flight at its end than half-way, and those due in its last third wait
    much longer for their first token than those due in its first. Either alone also shows while an
    idle engine fills up, or after a burst that it works off.
    """
    if window.kind != "steady" or window.start_ns is None:
        return None
    start_ns = window.start_ns
    end_ns = float(requests.loc[first_turn(requests), "scheduled_ns"].max())
    due_ns = requests["scheduled_ns"]
    looked_at = requests[(due_ns >= start_ns) & (due_ns <= end_ns)]
    if len(looked_at) < _LEAST_REQUESTS:
        return None
    middle_ns = (start_ns + end_ns) / 2
    at_middle, at_end = (_in_flight(requests, at_ns) for at_ns in (middle_ns, end_ns))
    if at_end <= at_middle or not _waits_grow(looked_at, end_ns - start_ns):
        return None
    last_ns, half_s = float(requests["closed_ns"].max()), (end_ns - middle_ns) / 1e9
    half_rps = _within(requests["closed_ns"], middle_ns, end_ns) / half_s
    whole_rps = len(requests) / (last_ns - start_ns) * 1e9
    return Backlog(
        in_flight_middle=at_middle,
        in_flight_end=at_end,
        drain_s=(last_ns - end_ns) / 1e9,
        answered_rps=max(half_rps, whole_rps),
        due_rps=_within(due_ns, middle_ns, end_ns) / half_s,
    )


def _in_flight(requests: pd.DataFrame, at_ns: float) -> int:
    return int(((requests["scheduled_ns"] <= at_ns) & (requests["closed_ns"] > at_ns)).sum())


def _within(times_ns: pd.Series[float], after_ns: float, until_ns: float) -> int:
    return int(((times_ns > after_ns) & (times_ns <= until_ns)).sum())


def _waits_grow(requests: pd.DataFrame, length_ns: float) -> bool:
    """Return whether the last third waits much longer for its first token than the first.

    By medians; a request that failed tells no time and is left out.
    """
    ordered = requests.sort_values("scheduled_ns", kind="stable")["scheduled_ttft_ms"].dropna()
    if len(ordered) < _LEAST_REQUESTS:
        return False
    first, _, last = (float(np.median(third)) for third in np.array_split(ordered.to_numpy(), 3))
    grown_ns = (last - first) * 1e6
    return last >= _WAIT_GROWS * first and grown_ns >= _WAIT_GROWS_SHARE * length_ns
