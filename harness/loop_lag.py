"""How late the loop comes to a socket that is ready: measured by a timer that is one.

A timer of the loop's own counts milliseconds; one of the kernel's wakes it as a server's bytes do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from array import array
from types import TracebackType
from typing import Any, Self

import numpy as np

# No fraction of the ticks of common servers: readings fall on all parts of such a tick alike.
PERIOD_NS = 6_180_340
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_NS_PER_S = 1_000_000_000


class LoopLag:
    """While entered, inside a running loop, reads the loop's lag some 160 times a second.

    A loop that was away for long is late for every reading that it missed, not for one.
    """

    def __init__(self) -> None:
        self._lags_ns = array("q")
        self._timer: int | None = None
        self._due_ns = 0

    def __enter__(self) -> Self:
        self._due_ns = time.perf_counter_ns() + PERIOD_NS
        self._timer = _kernel_timer(self._due_ns, PERIOD_NS)
        if self._timer is not None:
            asyncio.get_running_loop().add_reader(self._timer, self._read, self._timer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            asyncio.get_running_loop().remove_reader(self._timer)
            os.close(self._timer)

    def facts(self) -> dict[str, int] | None:
        """Return p50, p99 and max in nanoseconds, with their number `n`; None when none is known.

        Unknown on systems other than Linux, and in a run that is shorter than one reading.
        """
        if not self._lags_ns:
            return None
        lags_ns = np.frombuffer(self._lags_ns, dtype=np.int64)
        p50, p99, most = (round(float(x)) for x in np.percentile(lags_ns, (50, 99, 100)))
        return {"p50": p50, "p99": p99, "max": most, "n": len(lags_ns)}

    def _read(self, timer: int) -> None:
        now_ns = time.perf_counter_ns()
        expired = int.from_bytes(os.read(timer, 8), sys.byteorder)
        for _ in range(expired):
            self._lags_ns.append(max(0, now_ns - self._due_ns))
            self._due_ns += PERIOD_NS


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("period", _Time), ("first", _Time))


def _kernel_timer(first_ns: int, period_ns: int) -> int | None:
    """Return a descriptor that becomes readable at `first_ns` and every `period_ns` after it.

    `os.timerfd_create` does the same from Python 3.13 on. None where the system has none.
    """
    if sys.platform != "linux":
        return None
    system: Any = ctypes.CDLL(None, use_errno=True)
    timer: int = system.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        return None
    setting = _TimerSetting(
        period=_Time(*divmod(period_ns, _NS_PER_S)), first=_Time(*divmod(first_ns, _NS_PER_S))
    )
    system.timerfd_settime(timer, _ABSOLUTE, ctypes.byref(setting), None)
    return timer
