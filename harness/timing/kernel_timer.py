"""Kernel timers, which wake a loop like a socket, within about 50 µs and without polling.

The loop's own timers have millisecond precision. Linux only.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Self

_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_NS_PER_S = 1_000_000_000


class KernelTimer:
    """A timer on the running loop that calls `fired` with the number of expirations.

    The clock is `perf_counter_ns`. Create it with `kernel_timer`, and close it in the same loop.
    """

    def __init__(self, descriptor: int, fired: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._fired = fired
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def set(self, first_ns: int, period_ns: int = 0) -> None:
        """Expire at `first_ns`, or now if it has passed, and then every `period_ns`."""
        setting = _Setting(
            _Time(*divmod(period_ns, _NS_PER_S)), _Time(*divmod(first_ns, _NS_PER_S))
        )
        _system().timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(setting), None)

    def close(self) -> None:
        """Stop the timer."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        try:
            expired = os.read(self._descriptor, 8)
        except BlockingIOError:  # the timer was set again between waking and reading
            return
        self._fired(int.from_bytes(expired, sys.byteorder))


def kernel_timer(fired: Callable[[int], object]) -> KernelTimer | None:
    """Return a timer on the running loop; None on systems other than Linux.

    From Python 3.13, `os.timerfd_create` does the same.
    """
    if sys.platform != "linux":
        return None
    descriptor: int = _system().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return None if descriptor < 0 else KernelTimer(descriptor, fired)


class Alarm:
    """A context manager that wakes any number of sleepers of the running loop."""

    def __init__(self) -> None:
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []  # by time, then order
        self._order = count()
        self._timer: KernelTimer | None = None

    def __enter__(self) -> Self:
        self._timer = kernel_timer(self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    async def sleep_until_ns(self, when_ns: int) -> bool:
        """Sleep until `when_ns` of `perf_counter_ns` and return True; False without a timer."""
        if self._timer is None:
            return False
        asleep = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (when_ns, next(self._order), asleep))
        if self._sleepers[0][2] is asleep:
            self._timer.set(when_ns)
        await asleep
        return True

    def _wake(self, _: int) -> None:
        now_ns = time.perf_counter_ns()
        while self._sleepers and self._sleepers[0][0] <= now_ns:
            asleep = heapq.heappop(self._sleepers)[2]
            if not asleep.done():  # cancelled
                asleep.set_result(None)
        if self._sleepers and self._timer is not None:
            self._timer.set(self._sleepers[0][0])


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("period", _Time), ("first", _Time))


def _system() -> Any:
    return ctypes.CDLL(None, use_errno=True)
