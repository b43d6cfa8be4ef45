"""The client for what plain HTTP does not reach: TLS and proxies, by way of aiohttp.

The records are the same, but dearer and later: a time is when aiohttp hands over what it has
decrypted and unpacked. `about` says so in reports.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace, TracebackType
from typing import Self

import aiohttp

from harness.adapters import Target
from harness.client.base import Request, network_error_kind
from harness.client.http.exchange import Exchange, ended_by
from harness.client.http.http1 import Head
from harness.client.http.kept_answers import KEEP_BYTES, KeptAnswers
from harness.client.http.live_history import LiveAnswers
from harness.client.http.request_body import RequestOptions, body_bytes, endpoint, request_headers
from harness.results.store import RequestRecord
from harness.timing import Clock


@dataclass(slots=True)
class _Attempt:
    """A request on its way, as far as it has come."""

    sent_ns: int | None = None
    connect_ns: int | None = None
    connecting_since_ns: int = 0
    reused: bool = False  # the latest try went out on a kept connection
    reads: list[bytes] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    head: Head | None = None
    whole: bool = False


class AiohttpClient:
    """Sends requests through aiohttp; used as `HttpClient` is.

    `through_proxy` takes the proxy that the environment names for the URL. `tls` replaces the
    authorities that this machine trusts.
    """

    kind = "aiohttp"

    def __init__(
        self,
        target: Target,
        clock: Clock,
        asking: RequestOptions | None = None,
        *,
        through_proxy: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        way = "a proxy" if through_proxy else "TLS"
        self.about: str | None = (
            f"asked through {way}: times are when aiohttp had unpacked the bytes, which is later "
            "than when they came"
        )
        self.replaced_connections = 0  # requests put on a new connection
        self.opened_connections = 0
        self._target = target
        self._asking = asking or RequestOptions()
        self._clock = clock
        self._url = endpoint(target).geturl()
        self._through_proxy = through_proxy
        self._tls: ssl.SSLContext | bool = tls or True
        self._bodies: dict[str, bytes] = {}
        self._kept = KeptAnswers(KEEP_BYTES)
        self._live = LiveAnswers()
        self._session: aiohttp.ClientSession

    @property
    def read_on_the_clock(self) -> int:
        """Answers that there was no room to keep: reading them took time from the run."""
        return self._kept.read_on_the_clock

    @property
    def recorded_turns(self) -> int:
        """Turns of live chats that hold a drawn answer, as the server returned no token ids."""
        return self._live.recorded_turns

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=request_headers(self._target),
            trust_env=self._through_proxy,
            trace_configs=[self._stamps()],
            read_bufsize=1 << 22,  # no pause in reading while an answer is long
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()
        await asyncio.sleep(0)  # aiohttp closes its sockets in the loop's next round

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make the bodies of `requests` now."""
        for request in requests:
            self._bodies[request.request_id] = self._body(request)

    async def connect(self, count: int) -> int:  # noqa: ARG002 - as in HttpClient
        """Return 0: connections are opened when they are needed, and kept."""
        return 0

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Send now and return the record once the answer has ended, as yet unread."""
        body = self._bodies.pop(request.request_id, None) or self._body(request)
        attempt, failure = _Attempt(), None
        try:
            async with asyncio.timeout(self._asking.timeout_s) as limit:
                await self._ask(body, attempt)
        except (aiohttp.ClientError, OSError) as error:
            limit_s = self._asking.timeout_s if limit.expired() else None
            failure = ended_by(error, limit_s) if limit_s else _failure(error)
        exchange = Exchange(
            request=request,
            scheduled_ns=scheduled_ns,
            sent_ns=attempt.sent_ns,
            connect_ns=attempt.connect_ns,
            reads=attempt.reads,
            read_times_ns=attempt.times_ns,
            closed_ns=self._clock.now_ns(),
            head=attempt.head,
            eof=attempt.whole,
            failure=failure,
        )
        self._live.keep(exchange)
        return self._kept.keep(exchange)

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the server's answer to `before`, and make its body."""
        made = self._live.continued(request, before)
        self._bodies[made.request_id] = self._body(made)
        return made

    def settled(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return `records` in their order, the answers that were kept for them now read."""
        return self._kept.settled(records)

    def _body(self, request: Request) -> bytes:
        return body_bytes(self._target, self._asking, request)

    async def _ask(self, body: bytes, attempt: _Attempt) -> None:
        try:
            await self._stream(body, attempt)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not attempt.reused or attempt.reads:
                raise
            self.replaced_connections += 1  # it was closed before it answered a byte
            await self._stream(body, attempt)

    async def _stream(self, body: bytes, attempt: _Attempt) -> None:
        attempt.reused = False
        async with self._session.post(
            self._url, data=body, allow_redirects=False, trace_request_ctx=attempt
        ) as response:
            attempt.head = Head(
                status=response.status,
                reason=response.reason or "",
                headers={name.lower(): text for name, text in response.headers.items()},
                size_bytes=0,
                persistent=True,
            )
            self._take(attempt, b"")  # the head: the first that came
            async for data in response.content.iter_any():
                self._take(attempt, data)
            attempt.whole = True

    def _take(self, attempt: _Attempt, data: bytes) -> None:
        attempt.times_ns.append(self._clock.now_ns())
        attempt.reads.append(data)

    def _stamps(self) -> aiohttp.TraceConfig:
        """Return what aiohttp calls on the way of a request: each stamps its attempt."""

        async def connecting(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx.connecting_since_ns = self._clock.now_ns()

        async def connected(_: object, context: SimpleNamespace, __: object) -> None:
            self.opened_connections += 1
            attempt = context.trace_request_ctx
            attempt.connect_ns = self._clock.now_ns() - attempt.connecting_since_ns

        async def reused(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx.reused = True

        async def sending(_: object, context: SimpleNamespace, __: object) -> None:
            attempt = context.trace_request_ctx
            if attempt.sent_ns is None:
                attempt.sent_ns = self._clock.now_ns()

        stamps = aiohttp.TraceConfig()
        stamps.on_connection_create_start.append(connecting)
        stamps.on_connection_create_end.append(connected)
        stamps.on_connection_reuseconn.append(reused)
        stamps.on_request_chunk_sent.append(sending)
        return stamps


def _failure(error: Exception) -> tuple[str, str] | None:
    """Return kind and text of what aiohttp raised; None where the answer itself tells.

    Raises `error` where no network can have caused it.
    """
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls", text
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"http_{error.status}", f"the proxy answered {error.status} {error.message}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "connection_reset", "the server closed the connection without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        reset = ConnectionResetError.__name__ in text  # told nowhere else
        return ("connection_reset", text) if reset else None  # else cut: the body is not whole
    if isinstance(error, aiohttp.ClientResponseError):
        return "bad_body", text
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno and network_error_kind(cause) is None:
        cause = OSError(cause.errno, cause.strerror)  # aiohttp's own types hide what Python knows
    return ended_by(cause)
