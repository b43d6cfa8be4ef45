"""The result of a calibration: rungs, their verdicts, and the highest trusted rate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.results import percentiles

SCHEMA_VERSION = 1
LIMIT_MS = 1.0  # maximum P99 error of a timestamp
# If the server's own P99 lateness reaches this limit, the client's error is unknown.
SERVER_LIMIT_MS = 1.0

Verdict = Literal["good", "client", "server"]


@dataclass(frozen=True, slots=True)
class MedianAndP99:
    """Two percentiles in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values_ms: NDArray[np.float64]) -> MedianAndP99:
        """Return the percentiles of `values_ms`, which must not be empty."""
        return cls(*percentiles(values_ms, (0.5, 0.99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The measurements at one load. Errors are the client's minus the server's timestamps."""

    streams: int
    requests: int
    tokens: int
    tokens_per_s: float  # while all streams ran
    client_cores: float | None  # CPU time of the client per second of the load
    client_queued: float | None  # share of the time that the client waited for a CPU
    first_ms: MedianAndP99
    last_ms: MedianAndP99
    each_ms: MedianAndP99
    wait_ms: MedianAndP99  # from the client's send to the server's read; not an error of the client
    server_late_ms: MedianAndP99  # lateness of the server's ticks
    server_sending_ms: MedianAndP99  # time that the server spends on one token

    @property
    def error_ms(self) -> float:
        """The worst P99 of the client's errors."""
        return max(self.first_ms.p99, self.last_ms.p99, self.each_ms.p99)

    @property
    def server_fell_behind(self) -> bool:
        """Whether the server missed its own token times."""
        return max(self.server_late_ms.p99, self.server_sending_ms.p99) >= SERVER_LIMIT_MS

    @property
    def verdict(self) -> Verdict:
        """`good`, `client` (its timestamps are wrong) or `server` (the server was late as well).

        Timestamps that agree with those of a late server are still good.
        """
        if self.error_ms < LIMIT_MS:
            return "good"
        return "server" if self.server_fell_behind else "client"

    def facts(self) -> dict[str, Any]:
        """Return the rung as a JSON document."""
        return {
            **asdict(self),
            "server_fell_behind": self.server_fell_behind,
            "verdict": self.verdict,
        }


def highest_tokens_per_s(rungs: Sequence[Rung]) -> float | None:
    """Return the highest rate of a good rung below the first bad one; None without a good rung."""
    trusted = None
    for rung in sorted(rungs, key=lambda one: one.streams):
        if rung.verdict == "client":
            break
        if rung.verdict == "good":
            trusted = max(trusted or 0.0, rung.tokens_per_s)
    return trusted


def calibration_document(
    rungs: Sequence[Rung], host: Mapping[str, Any], *, date: str, pinned: bool
) -> dict[str, Any]:
    """Return the calibration as stored in the cache and in manifests."""
    rate = highest_tokens_per_s(rungs)
    return {
        "schema_version": SCHEMA_VERSION,
        "date": date,
        "host": dict(host),
        "server_on_its_own_core": pinned,
        "limit_ms": LIMIT_MS,
        "highest_tokens_per_s": None if rate is None else round(rate, 1),
        "rungs": [rung.facts() for rung in rungs],
    }
