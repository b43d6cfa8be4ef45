"""The measured window of a run: from when to when it is believed, and which requests count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.results.store import LoadFacts
from harness.results.units import count as count_of

_LEAST_MEASURED = 3  # measured requests per slot, below which a closed loop has no steady state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The part of a run that its rates are taken from.

    steady:    events in (start, end], measured requests are those sent in it
    whole-run: first send to last end, all requests are measured; `reason` says why
    """

    kind: Literal["steady", "whole-run"]
    start_ns: float | None  # None: the run has no request
    end_ns: float | None
    reason: str | None  # of a whole run
    measured: NDArray[np.bool_]  # per request, in the order of the records

    @property
    def length_s(self) -> float | None:
        """Length in seconds; None when there is none to divide by."""
        if self.start_ns is None or self.end_ns is None or self.end_ns <= self.start_ns:
            return None
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, times_ns: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of these times lie inside; an absent time (NaN) does not."""
        if self.start_ns is None or self.end_ns is None:
            return np.zeros(len(times_ns), np.bool_)
        after = times_ns > self.start_ns if self.kind == "steady" else times_ns >= self.start_ns
        return np.asarray(after & (times_ns <= self.end_ns), np.bool_)


def measured_window(requests: pd.DataFrame, load: LoadFacts) -> Window:
    """Return the measured window of a run, from the table that `metrics.per_request` makes.

    Closed loop: slots start spread over one service time. The window starts when as many
    conversations are alive as there are slots, and ends with the last send, or when a slot runs
    empty for good, if that comes first: from then on the load falls. The N-th first turn is no
    start: where first answers are slow, a fast slot begins its second conversation before that.
    Open loop: from the end of the warm-up to the last send.
    Where that leaves too little, the whole run, with the reason.
    """
    if requests.empty:
        return _whole_run(requests, "nothing was sent")
    steady = _open_window(requests, load) if load.is_open_loop else _closed_window(requests, load)
    return _whole_run(requests, steady) if isinstance(steady, str) else steady


def _closed_window(requests: pd.DataFrame, load: LoadFacts) -> Window | str:
    placed = requests["placed_ns"].to_numpy()
    conversations = _Conversations.of(requests)
    slots = min(load.concurrency, conversations.count)
    start, last = conversations.first_all_alive_ns(slots), float(placed.max())
    if start is None:
        return f"there were never {count_of(slots, 'conversation')} alive at once"
    end = min(last, conversations.last_all_alive_ns(slots))
    measured = (placed > start) & (placed <= end)
    count, least = int(measured.sum()), least_measured(load)
    if count < least:
        return (
            f"only {count_of(count, 'request')} sent between ramp and drain, a steady window needs "
            f"{least}"
        )
    return Window(kind="steady", start_ns=start, end_ns=end, reason=None, measured=measured)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Conversations:
    """When the conversations of a closed loop were due, began and ended, in ns of the run.

    One is due at the very end of the one before it in its slot, so between the two the slot counts
    as busy. Several load processes have a queue each, and one may be left with idle slots while
    another still has conversations to start: busy slots are counted, not computed.
    """

    due_ns: NDArray[np.float64]  # sorted
    begun_ns: NDArray[np.float64]  # of the same conversations: when the first turn was sent
    ended_ns: NDArray[np.float64]  # sorted by itself

    @classmethod
    def of(cls, requests: pd.DataFrame) -> _Conversations:
        """Read the conversations from the table of requests."""
        grouped = requests.groupby("conversation", sort=False)
        due = grouped["scheduled_ns"].min().to_numpy()
        order = np.argsort(due, kind="stable")
        return cls(
            due_ns=due[order],
            begun_ns=grouped["placed_ns"].min().to_numpy()[order],
            ended_ns=np.sort(grouped["closed_ns"].max().to_numpy()),
        )

    @property
    def count(self) -> int:
        """Return how many conversations the run holds."""
        return len(self.due_ns)

    def first_all_alive_ns(self, slots: int) -> float | None:
        """Return when `slots` conversations were alive for the first time; None for never.

        That is when the last of them sent its first turn.
        """
        before = np.searchsorted(self.ended_ns, self.due_ns, side="right")
        alive = np.arange(1, self.count + 1) - before
        full = np.flatnonzero(alive >= slots)
        return float(self.begun_ns[: full[0] + 1].max()) if len(full) else None

    def last_all_alive_ns(self, slots: int) -> float:
        """Return when all slots were busy for the last time; -inf where they never were."""
        begun = np.searchsorted(self.due_ns, self.ended_ns, side="left")
        alive = begun - np.searchsorted(self.ended_ns, self.ended_ns, side="left")
        busy = np.flatnonzero(alive >= slots)  # just before each end
        return float(self.ended_ns[busy[-1]]) if len(busy) else -math.inf


def least_measured(load: LoadFacts) -> int:
    """Return from how many measured requests on a closed loop counts as steady."""
    return _LEAST_MEASURED * load.concurrency


def least_requests(requests: pd.DataFrame, load: LoadFacts, measured: int = 0) -> int:
    """Return how many requests give a closed loop a steady window of at least `measured` requests.

    With T turns a conversation and C slots, the first turns of C conversations are the ramp. When
    the first slot runs empty, each of the other C - 1 has at most T - 1 requests left.
    """
    turns = math.ceil(len(requests) / requests["conversation"].nunique())
    outside = load.concurrency + (turns - 1) * (load.concurrency - 1)
    return max(measured, least_measured(load)) + outside


def _open_window(requests: pd.DataFrame, load: LoadFacts) -> Window | str:
    placed = requests["placed_ns"].to_numpy()
    warmup_ns = float(load.warmup or 0) * 1e9  # seconds
    start = float(requests["scheduled_ns"].min()) + warmup_ns
    end = float(placed.max())
    measured = placed >= start
    if not measured.any() or end <= start:
        return "no time passed between the end of the warm-up and the last send"
    ended = requests["last_token_ns"].to_numpy()
    if not (ended[measured] <= end).any():
        return "a burst: no answer had ended when the last request was sent"
    return Window(kind="steady", start_ns=start, end_ns=end, reason=None, measured=measured)


def _whole_run(requests: pd.DataFrame, reason: str) -> Window:
    empty = requests.empty
    return Window(
        kind="whole-run",
        start_ns=None if empty else float(requests["placed_ns"].min()),
        end_ns=None if empty else float(requests["closed_ns"].max()),
        reason=reason,
        measured=np.ones(len(requests), np.bool_),
    )


def first_turn(requests: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which requests are the first of their conversation."""
    first = requests.groupby("conversation", sort=False)["turn"].transform("min")
    return np.asarray(requests["turn"] == first, np.bool_)
