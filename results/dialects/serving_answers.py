"""What `vllm bench serve` and SGLang's client, which stems from it, take from the answers."""

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
    """The answered requests, one entry each but where said otherwise."""

    chosen: NDArray[np.bool_]  # which of all requests they are
    ttft_ms: Floats
    latency_ms: Floats  # to the end that the tool takes
    tokens: Floats

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.chosen.sum())

    @property
    def tpot_ms(self) -> Floats:
        """(latency - TTFT) / (tokens - 1) of those with more than one token; others have none."""
        several = self.tokens > 1
        return (self.latency_ms - self.ttft_ms)[several] / (self.tokens[several] - 1)

    def good(self, limits: Limits) -> int:
        """Return how many keep all limits; the TPOT of a single token counts as 0."""
        tpot_ms = np.zeros(self.count)
        tpot_ms[self.tokens > 1] = self.tpot_ms
        seen = {"ttft_ms": self.ttft_ms, "tpot_ms": tpot_ms, "e2e_ms": self.latency_ms}
        return int(meeting(limits, seen).sum())


def serving_spread(statistics: Mapping[str, tuple[Statistic, str]]) -> Spread:
    """Return these statistics as both tools print them: 0 where there is no sample."""
    return Spread(
        statistics={word: (zero_of_nothing(how), ours) for word, (how, ours) in statistics.items()}
    )


def busiest_second(requests: Requests, chosen: NDArray[np.bool_]) -> float:
    """Return the token events in the fullest second of the run, counted from the first start.

    Both tools print this as peak tokens a second, though a chunk may hold several tokens.
    """
    times_ms = requests.chunk_times_ms(chosen)
    if not len(times_ms):
        return 0.0
    second = (times_ms - np.nanmin(requests.start_ms[chosen])) // 1e3
    return float(np.unique(second, return_counts=True)[1].max())
