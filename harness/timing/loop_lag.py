"""How late the loop comes to a socket that is ready: measured by a timer that is one.

A timer of the loop's own counts milliseconds; one of the kernel's wakes it as a server's bytes do.
"""

from __future__ import annotations

import time
from array import array
from typing import Self

import numpy as np

from harness.timing.kernel_timer import KernelTimer, kernel_timer

# No fraction of the ticks of common servers: readings fall evenly on all parts of such a tick.
PERIOD_NS = 16_180_340


class LoopLag:
    """While entered, inside a running loop, reads the loop's lag some 60 times a second.

    A loop that was away for long is late for every reading that it missed, not for one.
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
        """Return p50, p99 and max in nanoseconds, with their number `n`; None when none is known.

        Unknown on systems other than Linux, and in a run that is shorter than one reading.
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
