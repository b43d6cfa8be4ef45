"""Silences of a run: stretches without a token on any stream, though requests were in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.results.store import RecordTable

LEAST_S = 2.0  # shorter silences are no warning
TPOTS = 20  # a silence is longer than so many times the median time per output token
TTFTS = 5  # and than so many median TTFTs, where every request waited for its first token


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One stretch without a token."""

    start_s: float  # since the run's origin
    length_s: float
    in_flight: int  # requests that had been sent and had not ended, when it ended


def silences(table: RecordTable, requests: pd.DataFrame) -> tuple[Silence, ...]:
    """Return the silences of a run that are too long for a server at work, in order.

    Longer than max(2 s, 20 × TPOT p50). Where no stream had begun, the server may have been busy
    with prompts: then longer than 5 × TTFT p50 as well. `requests` is the table that
    `metrics.per_request` makes.
    """
    answered = requests[requests["ok"]]
    if answered.empty or not len(table.event_time_ns):
        return ()
    limit_s = max(LEAST_S, TPOTS * _median_ms(answered["tpot_ms"]) / 1e3)
    waiting_s = max(limit_s, TTFTS * _median_ms(answered["ttft_ms"]) / 1e3)
    tokens_ns = np.sort(table.event_time_ns)  # `np.unique` takes 40 times as long
    marks_ns = np.append(tokens_ns, max(float(requests["closed_ns"].max()), tokens_ns[-1]))
    begins_ns = np.concatenate([[float(requests["placed_ns"].min())], tokens_ns])
    found = []
    for index in np.flatnonzero(marks_ns - begins_ns > limit_s * 1e9):
        silence, begun = _silence(requests, float(begins_ns[index]), float(marks_ns[index]))
        if silence is not None and silence.length_s > (limit_s if begun else waiting_s):
            found.append(silence)
    return tuple(found)


def _silence(requests: pd.DataFrame, begin_ns: float, end_ns: float) -> tuple[Silence | None, bool]:
    """Return the part of this stretch with requests in flight, and whether a stream had begun."""
    sent, closed = requests["sent_ns"].to_numpy(), requests["closed_ns"].to_numpy()
    over = (sent < end_ns) & (closed > begin_ns)
    if not over.any():
        return None, False
    start_ns = max(begin_ns, float(sent[over].min()))
    first, last = (requests[f"{one}_token_ns"].to_numpy() for one in ("first", "last"))
    silence = Silence(
        start_s=start_ns / 1e9,
        length_s=(min(end_ns, float(closed[over].max())) - start_ns) / 1e9,
        in_flight=int((over & (closed >= end_ns)).sum()),
    )
    return silence, bool(((first <= begin_ns) & (last >= end_ns)).any())


def _median_ms(column: pd.Series[float]) -> float:
    """Return the median of what is known; 0 where nothing is."""
    known = column.dropna()
    return float(known.median()) if len(known) else 0.0
