"""The lag of an event loop: the delay from a ready socket to its callback.

A kernel timer measures it, because it wakes the loop like the bytes of a server. The loop's own
timers have only millisecond precision.
"""

from __future__ import annotations

import time
from array import array
from typing import Self

import numpy as np

from harness.timing.kernel_timer import KernelTimer, kernel_timer

# Not a simple fraction of common server ticks, so that readings cover all parts of a tick evenly.
PERIOD_NS = 16_180_340


class LoopLag:
    """A context manager that measures the lag of the running loop about 60 times a second.

    A long pause of the loop counts for every reading that it missed.
    """

    def __init__(self) -> None:
        self._lags_ns = array("q")
        self._timer: KernelTimer | None = None
        self._due_ns = 0

    def __enter__(self) -> Self:
        self._timer = kernel_timer(self._read)
        if self._timer is not None:
            self._due_ns = time.perf_counter_ns() + PERIOD_NS
            self._timer.set(self._due_ns, PERIOD_NS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.close()

    def facts(self) -> dict[str, int] | None:
        """Return p50, p99 and max in nanoseconds and the number of readings `n`.

        None on systems other than Linux, and for a run shorter than one reading.
        """
        if not self._lags_ns:
            return None
        lags_ns = np.frombuffer(self._lags_ns, dtype=np.int64)
        p50, p99, most = (round(float(x)) for x in np.percentile(lags_ns, (50, 99, 100)))
        return {"p50": p50, "p99": p99, "max": most, "n": len(lags_ns)}

    def _read(self, expired: int) -> None:
        now_ns = time.perf_counter_ns()
        for _ in range(expired):
            self._lags_ns.append(max(0, now_ns - self._due_ns))
            self._due_ns += PERIOD_NS
