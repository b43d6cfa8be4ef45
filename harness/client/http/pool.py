"""The connections of a run: opened beforehand, kept, and replaced before a server tires of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from harness.client.base import network_error_kind
from harness.client.http.connection import Connection, FlightBudget, open_connection
from harness.client.http.wake_queue import WakeQueue
from harness.timing import NS_PER_S, Clock

# Common servers close a connection that was idle for 5 s (uvicorn, Node.js) or longer.
IDLE_LIMIT_S = 4.0
# Handshakes at once while a pool fills: some servers queue no more, and a lost one waits a second.
_AT_ONCE = 32
# While requests are under way so many are closed or opened between two breaths: a thousand in a row
# would keep requests that are due, and tokens, waiting for 40 ms.
_GENTLY, _BREATH_S = 4, 0.002
_SPARE = 8  # connections beyond twice those in use, for a burst of requests


class Pool:
    """Connections to one server. Lends each to one request at a time; there is no upper limit."""

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        budget: FlightBudget,
        *,
        idle_limit_s: float = IDLE_LIMIT_S,
    ) -> None:
        self._host, self._port, self._clock, self._budget = host, port, clock, budget
        self._idle_limit_ns = round(idle_limit_s * NS_PER_S)
        self._idle: list[Connection] = []  # the one used last is lent first: it is the freshest
        self._open: set[Connection] = set()
        self._wanted = 0
        self._lent = self._most_lent = 0  # the latter since connections were tended last
        self.opened = 0  # connections so far
        self._wake_queue = WakeQueue(clock)
        self._tending: asyncio.Task[None] | None = None

    async def fill(self, count: int) -> int:
        """Open connections until `count` are there, and keep so many; return how many there are.

        Fewer come where the server refuses them: the requests themselves will say so.
        """
        self._wanted = max(self._wanted, count)
        await self._top_up()
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend(), name="kept connections")
        return len(self._open)

    def take(self) -> Connection | None:
        """Return a kept connection that is fresh enough to be lent; None when there is none."""
        while self._idle:
            connection = self._idle.pop()
            if self._is_fresh(connection):
                self._lend()
                return connection
            connection.abort()
        return None

    async def open(self) -> Connection:
        """Return a new connection, lent at once. Raises `OSError`."""
        connection = await open_connection(
            self._host, self._port, self._clock, self._wake_queue, self._budget
        )
        self.opened += 1
        self._lend()
        self._open.add(connection)
        connection.gone.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take back a lent connection, for another request where it is kept."""
        self._lent -= 1
        if connection.kept:
            connection.idle_since_ns = self._clock.now_ns()
            self._idle.append(connection)

    def last_reads_ns(self) -> Iterator[int]:
        """Yield the time of the last read of each open connection, on the clock of the run."""
        for connection in self._open:
            if connection.times_ns:
                yield connection.times_ns[-1] - self._clock.origin_ns

    async def close(self) -> None:
        """Close all connections, lent ones too, and return when none is open."""
        if self._tending is not None:
            self._tending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tending
            self._tending = None
        self._idle.clear()
        gone = [connection.gone for connection in self._open]
        for connection in self._open:
            connection.abort()
        await asyncio.gather(*gone)

    def _is_fresh(self, connection: Connection) -> bool:
        idle_ns = self._clock.now_ns() - connection.idle_since_ns
        return connection.kept and idle_ns < self._idle_limit_ns

    def _lend(self) -> None:
        self._lent += 1
        self._most_lent = max(self._most_lent, self._lent)

    async def _tend(self) -> None:
        """Replace idle connections that grow old, as far as they are used, until cancelled."""
        while True:
            await asyncio.sleep(self._idle_limit_ns / NS_PER_S / 8)
            fresh = [connection for connection in self._idle if self._is_fresh(connection)]
            stale = list(set(self._idle) - set(fresh))
            self._idle = fresh
            for number, connection in enumerate(stale):
                connection.abort()
                if number % _GENTLY == 0:
                    await asyncio.sleep(_BREATH_S)
            used, self._most_lent = self._most_lent, self._lent
            if used:
                self._wanted = min(self._wanted, 2 * used + _SPARE)
            await self._top_up(_GENTLY, _BREATH_S)

    async def _top_up(self, at_once: int = _AT_ONCE, breath_s: float = 0.0) -> None:
        """Open what is missing, a few at a time; a refusal ends the attempt."""
        while (missing := self._wanted - len(self._open)) > 0:
            ends = await asyncio.gather(
                *(self.open() for _ in range(min(missing, at_once))), return_exceptions=True
            )
            opened = [end for end in ends if isinstance(end, Connection)]
            for end in ends:
                if isinstance(end, BaseException) and network_error_kind(end) is None:
                    raise end
            for connection in opened:
                self.give_back(connection)
            if len(opened) < len(ends):
                return
            await asyncio.sleep(breath_s)
