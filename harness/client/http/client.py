"""The client of servers over plain HTTP: while the clock runs it sends, stamps and stores.

It never asks twice: a failed request stays failed. Only where a *kept* connection turns out to have
been closed by the server, before one byte of an answer, is the request put on a new one: it reached
nobody. The record counts from the first sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from harness.adapters import Target
from harness.client.base import Request
from harness.client.http.connection import Connection
from harness.client.http.descriptors import allow_open_files
from harness.client.http.exchange import Exchange, ended_by
from harness.client.http.kept_answers import KEEP_BYTES, KeptAnswers
from harness.client.http.live_history import LiveAnswers
from harness.client.http.pool import IDLE_LIMIT_S, Pool
from harness.client.http.request_body import RequestOptions, body_bytes, endpoint, head_bytes
from harness.results.store import RequestRecord
from harness.timing import Clock


class HttpClient:
    """Sends requests over kept connections and keeps the answers unread until the run is over.

    async with HttpClient(target, clock) as client:
        client.prepare(requests)            # bodies are made
        await client.connect(64)            # connections are opened
        records = client.settled(await play(client, clock, …))

    `send` returns the times of a request as soon as it has ended; `settled` reads the answers.
    """

    kind = "http"
    about: str | None = None  # nothing that a report would have to say

    def __init__(
        self,
        target: Target,
        clock: Clock,
        asking: RequestOptions | None = None,
        *,
        idle_limit_s: float = IDLE_LIMIT_S,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self.replaced_connections = 0  # requests put on a new connection
        self._target = target
        self._asking = asking or RequestOptions()
        self._clock = clock
        parts = endpoint(target)
        if parts.scheme != "http":
            raise ValueError(f"only plain HTTP is spoken here, got {target.url!r}")
        self._pool = Pool(parts.hostname or "", parts.port or 80, clock, idle_limit_s=idle_limit_s)
        self._messages: dict[str, bytes] = {}
        self._kept = KeptAnswers(keep_bytes)
        self._live = LiveAnswers()

    @property
    def opened_connections(self) -> int:
        """Connections opened so far, those that were replaced among them."""
        return self._pool.opened

    @property
    def read_on_the_clock(self) -> int:
        """Answers for which `keep_bytes` had no room: reading them took time from the run."""
        return self._kept.read_on_the_clock

    @property
    def recorded_turns(self) -> int:
        """Turns of live chats that hold a drawn answer, as the server returned no token ids."""
        return self._live.recorded_turns

    async def __aenter__(self) -> Self:
        allow_open_files()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.close()

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make the bytes of `requests` now, so that sending one only hands them to a socket."""
        for request in requests:
            self._messages[request.request_id] = self._message(request)

    async def connect(self, count: int) -> int:
        """Open connections until `count` are kept ready; return how many there are."""
        return await self._pool.fill(count)

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Send now and return the record once the answer has ended, as yet unread."""
        exchange = await self._exchange(request, scheduled_ns)
        self._live.keep(exchange)
        return self._kept.keep(exchange)

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the server's answer to `before`, and make its bytes."""
        made = self._live.continued(request, before)
        self._messages[made.request_id] = self._message(made)
        return made

    def settled(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return `records` in their order, the answers that were kept for them now read."""
        return self._kept.settled(records)

    def _message(self, request: Request) -> bytes:
        body = body_bytes(self._target, self._asking, request)
        return head_bytes(self._target, len(body)) + body

    async def _exchange(self, request: Request, scheduled_ns: int) -> Exchange:
        message = self._messages.pop(request.request_id, None) or self._message(request)
        attempt = _Attempt()
        try:
            failure = await self._within_limit(message, attempt)
        except OSError as error:
            failure = ended_by(error)
        lent = attempt.connection
        if failure is None and lent is not None:
            failure = lent.failure
        closed_ns = None if lent is None else lent.closed_ns
        exchange = Exchange(
            request=request,
            scheduled_ns=scheduled_ns,
            sent_ns=attempt.sent_ns,
            connect_ns=attempt.connect_ns,
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

    async def _within_limit(self, message: bytes, attempt: _Attempt) -> tuple[str, str] | None:
        """Ask; return the failure of a request whose time is up. Raises `OSError` for any other."""
        limit_s = self._asking.timeout_s
        if limit_s is None:
            await self._ask(message, attempt)
            return None
        try:
            async with asyncio.timeout(limit_s) as limit:
                await self._ask(message, attempt)
        except TimeoutError as error:
            return ended_by(error, limit_s if limit.expired() else None)
        return None

    async def _ask(self, message: bytes, attempt: _Attempt) -> None:
        kept = self._pool.take()
        if kept is not None:
            await attempt.ask(kept, message)
            if kept.reads or not (kept.eof or kept.failure):
                return
            self.replaced_connections += 1  # it was closed before it answered a byte
            self._pool.give_back(kept)
        attempt.connection = None
        fresh = await self._pool.open()
        attempt.connect_ns = fresh.connect_ns
        await attempt.ask(fresh, message)


@dataclass(slots=True)
class _Attempt:
    """A request on its way."""

    connection: Connection | None = None  # the one that it is on
    sent_ns: int | None = None  # of the first connection that took it whole
    connect_ns: int | None = None

    async def ask(self, connection: Connection, message: bytes) -> None:
        self.connection = connection
        try:
            await connection.ask(message)
        except BaseException:
            connection.abort()  # cancelled or out of time: nobody may read its answer as another's
            raise
        finally:
            if self.sent_ns is None:
                self.sent_ns = connection.sent_ns
