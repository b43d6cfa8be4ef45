"""The stored requests of one run as arrays, the input of every tool's formulas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.results.metrics import chunk_gaps_ms, per_request
from harness.results.store import RecordTable

Floats = NDArray[np.float64]
Chosen = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Arrays with one entry per request; times in ms since the run's origin, NaN if absent."""

    table: RecordTable
    failure: tuple[str | None, ...]  # kind of failure; None: the stream ended normally with output
    due_ms: Floats
    start_ms: Floats  # sent time minus the time to open a connection
    sent_ms: Floats
    first_ms: Floats  # first token event
    last_ms: Floats  # last token event
    closed_ms: Floats
    tokens: Floats  # output tokens: the server's count, or the count of the events
    asked_tokens: Floats
    prompt_tokens: Floats
    several_turns: bool  # whether a conversation has more than one turn

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.failure)

    def answered(self, *forgiven: str) -> Chosen:
        """Return which requests a tool counts as answered.

        These are requests without a failure, or with a kind in `forgiven`, which the tool does not
        detect.
        """
        return np.array([kind is None or kind in forgiven for kind in self.failure], np.bool_)

    def chunk_gaps_ms(self, chosen: Chosen) -> Floats:
        """Return the gaps between token events of the chosen requests."""
        return chunk_gaps_ms(self.table, chosen)[0]

    def chunk_times_ms(self, chosen: Chosen) -> Floats:
        """Return the times of all token events of the chosen requests."""
        inside = np.repeat(chosen, np.diff(self.table.offsets))
        return self.table.event_time_ns[inside] / 1e6

    def bundled(self, chosen: Chosen) -> bool:
        """Return whether an event of the chosen requests contains several tokens."""
        inside = np.repeat(chosen, np.diff(self.table.offsets))
        return bool((self.table.event_tokens[inside] > 1).any())

    def ends_late(self, chosen: Chosen) -> bool:
        """Return whether a stream of the chosen requests ended after its last token event."""
        return bool((self.closed_ms[chosen] > self.last_ms[chosen]).any())

    def connecting(self, chosen: Chosen) -> str:
        """Return a note if a chosen request opened a connection, else an empty text."""
        waited = self.sent_ms[chosen] > self.start_ms[chosen]
        return "includes connecting" if waited.any() else ""

    def second_ms(self, chosen: Chosen) -> Floats:
        """Return the time from first to second token event of the requests that have both."""
        begin = self.table.offsets[:-1][chosen & (np.diff(self.table.offsets) >= 2)]
        return (self.table.event_time_ns[begin + 1] - self.table.event_time_ns[begin]) / 1e6


def requests_of(table: RecordTable) -> Requests:
    """Return the requests of a stored run."""
    seen = per_request(table, open_loop=False)
    times = {name: _ms(seen[f"{name}_ns"]) for name in ("scheduled", "sent", "closed")}
    connect_ms = table.columns["connect_ns"].to_numpy(dtype=np.float64, na_value=0.0) / 1e6
    turns = seen.groupby("conversation", sort=False).size()
    return Requests(
        table=table,
        failure=tuple(None if pd.isna(kind) else str(kind) for kind in seen["failure"]),
        due_ms=times["scheduled"],
        start_ms=times["sent"] - connect_ms,
        sent_ms=times["sent"],
        first_ms=_ms(seen["first_token_ns"]),
        last_ms=_ms(seen["last_token_ns"]),
        closed_ms=times["closed"],
        tokens=seen["output_tokens"].to_numpy(),
        asked_tokens=seen["asked_tokens"].to_numpy(),
        prompt_tokens=seen["prompt_tokens"].to_numpy(),
        several_turns=bool((turns > 1).any()),
    )


def _ms(column: pd.Series[float]) -> Floats:
    return np.asarray(column, np.float64) / 1e6


def whole_length_s(requests: Requests) -> float | None:
    """Return the time from first due to last end, with failed requests; None without requests."""
    if not len(requests):
        return None
    return float(requests.closed_ms.max() - requests.due_ms.min()) / 1e3


def most_at_once(starts_ms: Floats, ends_ms: Floats) -> int:
    """Return the maximum number of overlapping spans; spans that only touch do not overlap."""
    times = np.concatenate([ends_ms, starts_ms])
    steps = np.concatenate([-np.ones(len(ends_ms)), np.ones(len(starts_ms))])
    return int(np.cumsum(steps[np.argsort(times, kind="stable")]).max(initial=0))
