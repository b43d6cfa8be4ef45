"""Equations of step costs from the records of a run: one for each decode and each prefill.

The records contain the time of each token. All records of a run together give the number of steps
between the first and the last token of an answer, the sequences in these steps, and the prompts
prefilled in them. So each time span is a sum of step costs, and the costs can be fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.results.store import RecordTable

COSTS = ("step_s", "sequence_s", "context_token_s", "prompt_s", "prompt_token_s", "request_s")
_CURRENT_STEP = 0.5  # mean remaining share of the step that runs when a request arrives


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The step sizes of the engine of a run."""

    queries: int  # tokens that a decoding sequence processes in one step
    chunk_tokens: int  # maximum prompt tokens of one step


@dataclass(frozen=True, slots=True)
class Equations:
    """Time spans as sums of costs: `counts` (n, 6) of `COSTS`, `seconds` (n,)."""

    counts: NDArray[np.float64]
    seconds: NDArray[np.float64]


def equations(records: RecordTable, steps: Steps) -> Equations:
    """Return the equations of the answered requests of a run, without unknown token counts."""
    table = _CompletedRequests(records)
    spans = [
        *(table.decode(i, steps) for i in range(table.count)),
        *(table.prompt(i, steps) for i in range(table.count)),
    ]
    rows = [row for row in spans if row is not None and row[1] > 0]
    if not rows:
        return Equations(np.empty((0, len(COSTS))), np.empty(0))
    counts, seconds = zip(*rows, strict=True)
    return Equations(np.array(counts, dtype=float), np.array(seconds, dtype=float))


def together(parts: Sequence[Equations]) -> Equations:
    """Concatenate the equations of several runs."""
    return Equations(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.seconds for part in parts]),
    )


class _CompletedRequests:
    """The answered requests of one run as arrays, in seconds and tokens."""

    def __init__(self, records: RecordTable) -> None:
        columns, offsets = records.columns, records.offsets
        known = columns[["prompt_tokens", "output_tokens", "sent_ns"]].notna().all(axis=1)
        has = known & columns["error_kind"].isna() & (np.diff(offsets) > 0)
        index = np.flatnonzero(has.to_numpy())
        self.count = len(index)
        chosen = columns.iloc[index]
        first, last = offsets[index], offsets[index + 1] - 1
        self._first_s = records.event_time_ns[first] / 1e9
        self._last_s = records.event_time_ns[last] / 1e9
        self._events = offsets[index + 1] - offsets[index]
        self._sent_s = chosen["sent_ns"].to_numpy(dtype=float) / 1e9
        prompt = chosen["prompt_tokens"].to_numpy(dtype=float)
        output = chosen["output_tokens"].to_numpy(dtype=float)
        cached = chosen["cached_prompt_tokens"].fillna(0).to_numpy(dtype=float)
        self._new = np.maximum(prompt - cached, 1.0)
        self._output = output
        self._context = prompt + output / 2

    def decode(self, i: int, steps: Steps) -> tuple[list[float], float] | None:
        """Return the equation of the span from the first to the last token of answer `i`."""
        span_s = float(self._last_s[i] - self._first_s[i])
        if self._output[i] < 2 or span_s <= 0:
            return None
        by_events = steps.queries > 1
        count = float(self._events[i] - 1 if by_events else self._output[i] - 1)
        running, context = self._meanwhile(self._first_s[i], self._last_s[i])
        begun = (self._first_s > self._first_s[i]) & (self._first_s <= self._last_s[i])
        prompts, tokens = self._prompts(begun, steps)
        of_steps = [count, count * running * steps.queries, count * context]
        return [*of_steps, prompts, tokens, 0.0], span_s

    def prompt(self, i: int, steps: Steps) -> tuple[list[float], float] | None:
        """Return the equation of the span from sending request `i` to its first token."""
        span_s = float(self._first_s[i] - self._sent_s[i])
        if span_s <= 0:
            return None
        others, context = self._meanwhile(self._sent_s[i], self._first_s[i])
        begun = (self._first_s > self._sent_s[i]) & (self._first_s <= self._first_s[i])
        prompts, tokens = self._prompts(begun, steps)
        count = max(1.0, np.ceil(tokens / steps.chunk_tokens)) + _CURRENT_STEP * min(1.0, others)
        of_steps = [count, count * others * steps.queries, count * context]
        return [*of_steps, prompts, tokens, 1.0], span_s

    def _meanwhile(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the mean number of decoding answers between two times, and their context."""
        overlap = np.minimum(self._last_s, end_s) - np.maximum(self._first_s, start_s)
        share = np.maximum(overlap, 0.0) / (end_s - start_s)
        return float(share.sum()), float((share * self._context).sum())

    def _prompts(self, which: NDArray[np.bool_], steps: Steps) -> tuple[float, float]:
        """Return in how many parts these prompts were computed, and their new tokens."""
        new = self._new[which]
        return float(np.ceil(new / steps.chunk_tokens).sum()), float(new.sum())
