"""Reading comes first: who waited for an answer goes on when no socket has bytes to read.

Answers often end together, since engines work in steps. To go on after each at once (waking a task,
making a record, sending the next request) would keep the others' last tokens waiting unread, and
the time that they wait would be taken for the server's.
"""

from __future__ import annotations

import asyncio
from collections import deque

from harness.timing import Clock

# Nobody waits longer for quiet sockets, and no more go on before the sockets are read again.
_LIMIT_NS = 2_000_000
_AT_ONCE = 8


class WakeQueue:
    """Wakes those whose answer has ended. Whoever reads a socket sets `quiet` to False."""

    __slots__ = ("_clock", "_ended", "_loop", "quiet")

    def __init__(self, clock: Clock) -> None:
        self.quiet = False  # nothing was read since the last look
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ended: deque[tuple[int, asyncio.Future[None]]] = deque()

    def wake(self, answered: asyncio.Future[None]) -> None:
        """Resolve `answered` when it is its turn, at most 2 ms and those before it from now."""
        if not self._ended:
            self.quiet = False
            self._loop.call_soon(self._look)
        self._ended.append((self._clock.now_ns(), answered))

    def _look(self) -> None:
        """Wake some where the loop read nothing since the last look, or the first is out of time.

        The loop polls its sockets once between two looks.
        """
        quiet, self.quiet = self.quiet, True
        if quiet or self._clock.now_ns() - self._ended[0][0] > _LIMIT_NS:
            for _ in range(min(_AT_ONCE, len(self._ended))):
                _, answered = self._ended.popleft()
                if not answered.done():
                    answered.set_result(None)
        if self._ended:
            self._loop.call_soon(self._look)
