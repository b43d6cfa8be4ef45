"""An asyncio loop whose timers go by microseconds: epoll's own count whole milliseconds."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        """Waits on the epoll itself with `select`, which takes fractions of a millisecond."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

else:
    _FineSelector = selectors.DefaultSelector  # kqueue counts nanoseconds


def fine_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that wakes within 0.1 ms of a timer, where epoll's may be 1 ms late."""
    return asyncio.SelectorEventLoop(_FineSelector())
