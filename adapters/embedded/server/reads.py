"""Times at which bytes arrive on connections. A request's time starts there, before parsing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from harness.adapters.embedded.server.real_time import RealTimeEngine


class Reads:
    """The last read time of each connection. Each read also notifies the engine."""

    def __init__(self, engine: RealTimeEngine) -> None:
        self._engine = engine
        self._last_ns: dict[asyncio.BaseTransport, int] = {}

    def watch(self, protocol_factory: Callable[[], asyncio.Protocol]) -> _Watched:
        """Return a new protocol from `protocol_factory` that records its reads here."""
        return _Watched(protocol_factory(), self)

    def last_ns(self, connection: asyncio.BaseTransport | None) -> int:
        """Return the time of the last read from `connection`; the current time if it is closed."""
        known = None if connection is None else self._last_ns.get(connection)
        return time.monotonic_ns() if known is None else known

    def note(self, connection: asyncio.BaseTransport) -> None:
        """Record a read from `connection` at the current time."""
        now_ns = time.monotonic_ns()
        self._last_ns[connection] = now_ns
        self._engine.expect(connection, now_ns)

    def forget(self, connection: asyncio.BaseTransport) -> None:
        """Remove the closed `connection`."""
        self._last_ns.pop(connection, None)
        self._engine.settle(connection)


class _Watched(asyncio.Protocol):
    """A protocol that records reads and forwards all calls to `inner`."""

    def __init__(self, inner: asyncio.Protocol, reads: Reads) -> None:
        self._inner = inner
        self._reads = reads
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._reads.note(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._reads.forget(self._transport)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
