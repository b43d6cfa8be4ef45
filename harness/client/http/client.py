"""The client of servers over plain HTTP: while the clock runs it sends, stamps and stores.

It never sends twice: a failed request stays failed. Only where a *kept* connection turns out to
have been closed by the server, before one byte of a response, is the request put on a new one: it
reached nobody. The record counts from the first sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from harness.adapters import Target
from harness.client.base import Request
from harness.client.http.connection import Connection, most_answer_bytes
from harness.client.http.descriptors import allow_open_files
from harness.client.http.exchange import Exchange, ended_by
from harness.client.http.pool import IDLE_LIMIT_S, Pool
from harness.client.http.recording_client import KEEP_BYTES, RecordingClient
from harness.client.http.request_body import RequestOptions, endpoint, head_bytes
from harness.timing import Clock


class HttpClient(RecordingClient):
    """Sends requests over kept connections.

    async with HttpClient(target, clock) as client:
        client.prepare(requests)            # bodies are made
        await client.connect(64)            # connections are opened
        records = client.settled(await play(client, clock, …))
    """

    kind = "http"
    about: str | None = None  # reports need no remark on it

    def __init__(
        self,
        target: Target,
        clock: Clock,
        options: RequestOptions | None = None,
        *,
        idle_limit_s: float = IDLE_LIMIT_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        super().__init__(target, clock, options, keep_bytes)
        parts = endpoint(target)
        if parts.scheme != "http":
            raise ValueError(f"only plain HTTP is spoken here, got {target.url!r}")
        host, port = parts.hostname or "", parts.port or 80
        self._pool = Pool(host, port, clock, self._budget, idle_limit_s=idle_limit_s)

    @property
    def opened_connections(self) -> int:
        """Connections opened so far, those that were replaced among them."""
        return self._pool.opened

    async def __aenter__(self) -> Self:
        allow_open_files()
        return self

    def _open_reads_ns(self) -> Iterable[int]:
        return self._pool.last_reads_ns()

    async def _close(self) -> None:
        await self._pool.close()

    async def connect(self, count: int) -> int:
        """Open connections until `count` are kept ready; return how many are open."""
        return await self._pool.fill(count)

    def _message(self, request: Request) -> bytes:
        """Return head and body of `request`."""
        body = super()._message(request)
        return head_bytes(self._target, len(body)) + body

    async def _exchange(self, request: Request, message: bytes, scheduled_ns: int) -> Exchange:
        sending = _Sending(limit_bytes=most_answer_bytes(request.output_tokens))
        try:
            failure = await self._within_limit(message, sending)
        except OSError as error:
            failure = ended_by(error)
        lent = sending.connection
        if failure is None and lent is not None:
            failure = lent.failure
        closed_ns = None if lent is None else lent.closed_ns
        exchange = Exchange(
            request=request,
            scheduled_ns=scheduled_ns,
            sent_ns=sending.sent_ns,
            connect_ns=sending.connect_ns,
            reads=lent.reads if lent else (),
            read_times_ns=lent.times_ns if lent else (),
            closed_ns=self._clock.now_ns() if closed_ns is None else closed_ns,
            eof=lent is not None and lent.eof,
            failure=failure,
            origin_ns=self._clock.origin_ns,
        )
        if lent is not None:
            self._pool.give_back(lent)  # last: the next request on it begins new lists
        return exchange

    async def _within_limit(self, message: bytes, sending: _Sending) -> tuple[str, str] | None:
        """Send; return the failure of a request that timed out. Raises `OSError` for any other."""
        limit_s = self._options.timeout_s
        if limit_s is None:
            await self._deliver(message, sending)
            return None
        try:
            async with asyncio.timeout(limit_s) as limit:
                await self._deliver(message, sending)
        except TimeoutError as error:
            return ended_by(error, limit_s if limit.expired() else None)
        return None

    async def _deliver(self, message: bytes, sending: _Sending) -> None:
        """Send on a kept connection, or on a new one where there is none or it was closed."""
        kept = self._pool.take()
        if kept is not None:
            await sending.on(kept, message)
            if kept.reads or not (kept.eof or kept.failure):
                return
            self.replaced_connections += 1  # it was closed before it answered a byte
            self._pool.give_back(kept)
        sending.connection = None
        fresh = await self._pool.open()
        sending.connect_ns = fresh.connect_ns
        await sending.on(fresh, message)


@dataclass(slots=True)
class _Sending:
    """A request under way on a connection of the pool."""

    limit_bytes: int  # of the answer
    connection: Connection | None = None  # the one that it is on
    sent_ns: int | None = None  # of the first connection that took it whole
    connect_ns: int | None = None

    async def on(self, connection: Connection, message: bytes) -> None:
        """Send `message` on `connection` and wait until the response or the connection ends."""
        self.connection = connection
        try:
            await connection.send(message, self.limit_bytes)
        except BaseException:
            connection.abort()  # cancelled or timed out: nobody may read its response as another's
            raise
        finally:
            if self.sent_ns is None:
                self.sent_ns = connection.sent_ns
