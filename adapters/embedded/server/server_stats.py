"""Counts of a server in addition to the core's: latency histograms and ends of requests."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

# vLLM's buckets, so that one diagram can show both engines.
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ANSWER_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LATE_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1.0)


class Histogram:
    """A histogram with the bucket limits `bounds`, the number of values and their sum."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total: float = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.total += value
        self._counts[bisect_left(self.bounds, value)] += 1

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound; the last number counts all values."""
        return list(accumulate(self._counts))


class ServerStats:
    """Running totals of one server."""

    def __init__(self) -> None:
        self.step_tokens = Histogram(_STEP_TOKENS)  # prompt and output tokens of each step
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.answer_s = Histogram(_ANSWER_S)
        self.queued_s = Histogram(_ANSWER_S)  # from arrival to the first step of a request
        self.late_s = Histogram(_LATE_S)  # from a step's end until all its tokens were sent
        self.finished = 0
        self.aborted = 0
        self.accepted_at: dict[int, int] = {}  # position in the draft → accepted tokens
