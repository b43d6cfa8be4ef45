"""Formulas shared by `vllm bench serve` and SGLang's client, which is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.results.dialects.requests import Requests
from harness.results.dialects.tool_metric import (
    Floats,
    Limits,
    Spread,
    Statistic,
    meeting,
    zero_of_nothing,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingAnswers:
    """The answered requests, one entry per request."""

    chosen: NDArray[np.bool_]  # mask over all requests
    ttft_ms: Floats
    latency_ms: Floats  # until the end of a request as the tool defines it
    tokens: Floats

    @property
    def count(self) -> int:
        """The number of answered requests."""
        return int(self.chosen.sum())

    @property
    def tpot_ms(self) -> Floats:
        """(latency - TTFT) / (tokens - 1) of the requests with more than one token."""
        several = self.tokens > 1
        return (self.latency_ms - self.ttft_ms)[several] / (self.tokens[several] - 1)

    def good(self, limits: Limits) -> int:
        """Return how many requests meet all limits; the TPOT of a single token counts as 0."""
        tpot_ms = np.zeros(self.count)
        tpot_ms[self.tokens > 1] = self.tpot_ms
        seen = {"ttft_ms": self.ttft_ms, "tpot_ms": tpot_ms, "e2e_ms": self.latency_ms}
        return int(meeting(limits, seen).sum())


def serving_spread(statistics: Mapping[str, tuple[Statistic, str]]) -> Spread:
    """Return the statistics as both tools print them: 0 without a sample."""
    return Spread(
        statistics={word: (zero_of_nothing(how), ours) for word, (how, ours) in statistics.items()}
    )


def busiest_second(requests: Requests, chosen: NDArray[np.bool_]) -> float:
    """Return the highest number of token events in one second, counted from the first start.

    Both tools print it as peak tokens per second, although a chunk may contain several tokens.
    """
    times_ms = requests.chunk_times_ms(chosen)
    if not len(times_ms):
        return 0.0
    second = (times_ms - np.nanmin(requests.start_ms[chosen])) // 1e3
    return float(np.unique(second, return_counts=True)[1].max())
