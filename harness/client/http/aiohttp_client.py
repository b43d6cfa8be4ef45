"""The client for what plain HTTP does not reach: TLS and proxies, by way of aiohttp.

The records are the same, but dearer and later: a time is when aiohttp hands over what it has
decrypted and unpacked. Reports print `about`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Self

import aiohttp

from harness.adapters import Target
from harness.client.base import Request, network_error_kind
from harness.client.http.connection import most_answer_bytes
from harness.client.http.exchange import READ_BYTES, Exchange, ended_by
from harness.client.http.http1 import Head
from harness.client.http.recording_client import KEEP_BYTES, RecordingClient
from harness.client.http.request_body import RequestOptions, endpoint, request_headers
from harness.timing import Clock


class _TooLongError(Exception):
    """An answer beyond the limits."""


@dataclass(slots=True, kw_only=True)
class _AiohttpSending:
    """A request under way through aiohttp."""

    sent_ns: int | None = None
    connect_ns: int | None = None
    connecting_since_ns: int = 0
    reused: bool = False  # the latest try went out on a kept connection
    reads: list[bytes] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    limit_bytes: int
    read_bytes: int = 0
    held_bytes: int = 0  # of the budget of all answers in flight
    head: Head | None = None
    whole: bool = False


class AiohttpClient(RecordingClient):
    """Sends requests through aiohttp; used as `HttpClient` is.

    `through_proxy` takes the proxy that the environment names for the URL. `tls` replaces the
    authorities that this machine trusts.
    """

    kind = "aiohttp"

    def __init__(
        self,
        target: Target,
        clock: Clock,
        options: RequestOptions | None = None,
        *,
        through_proxy: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(target, clock, options, KEEP_BYTES)
        way = "a proxy" if through_proxy else "TLS"
        self.about: str | None = (
            f"asked through {way}: times are when aiohttp had unpacked the bytes, which is later "
            "than when they came"
        )
        self.opened_connections = 0
        self._last_read_ns: int | None = None
        self._url = endpoint(target).geturl()
        self._through_proxy = through_proxy
        self._tls: ssl.SSLContext | bool = tls or True
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=request_headers(self._target),
            trust_env=self._through_proxy,
            trace_configs=[self._stamps()],
            read_bufsize=1 << 22,  # no pause in reading while an answer is long
            auto_decompress=False,  # no packed answer was requested; a small one may unpack to GBs
        )
        return self

    def _open_reads_ns(self) -> Iterable[int]:
        return () if self._last_read_ns is None else (self._last_read_ns,)

    async def _close(self) -> None:
        await self._session.close()
        await asyncio.sleep(0)  # aiohttp closes its sockets in the loop's next round

    async def connect(self, count: int) -> int:  # noqa: ARG002 - as in HttpClient
        """Return 0: connections are opened when they are needed, and kept."""
        return 0

    async def _exchange(self, request: Request, message: bytes, scheduled_ns: int) -> Exchange:
        limit_bytes = most_answer_bytes(request.output_tokens)
        sending, failure = _AiohttpSending(limit_bytes=limit_bytes), None
        try:
            async with asyncio.timeout(self._options.timeout_s) as limit:
                await self._deliver(message, sending)
        except (aiohttp.ClientError, OSError) as error:
            limit_s = self._options.timeout_s if limit.expired() else None
            failure = ended_by(error, limit_s) if limit_s else _failure(error)
        except _TooLongError as error:
            failure = "too_long", str(error)
        finally:
            self._budget.free_bytes += sending.held_bytes
        return Exchange(
            request=request,
            scheduled_ns=scheduled_ns,
            sent_ns=sending.sent_ns,
            connect_ns=sending.connect_ns,
            reads=sending.reads,
            read_times_ns=sending.times_ns,
            closed_ns=self._clock.now_ns(),
            head=sending.head,
            eof=sending.whole,
            failure=failure,
        )

    async def _deliver(self, body: bytes, sending: _AiohttpSending) -> None:
        """Send `body`, once more where a kept connection was closed before a byte came."""
        try:
            await self._stream(body, sending)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not sending.reused or sending.reads:
                raise
            self.replaced_connections += 1  # it was closed before it answered a byte
            await self._stream(body, sending)

    async def _stream(self, body: bytes, sending: _AiohttpSending) -> None:
        sending.reused = False
        async with self._session.post(
            self._url, data=body, allow_redirects=False, trace_request_ctx=sending
        ) as response:
            sending.head = Head(
                status=response.status,
                reason=response.reason or "",
                headers={name.lower(): text for name, text in response.headers.items()},
                size_bytes=0,
                persistent=True,
            )
            self._take(sending, b"")  # the head: the first that came
            async for data in response.content.iter_any():
                self._take(sending, data)
            sending.whole = True

    def _take(self, sending: _AiohttpSending, data: bytes) -> None:
        self._last_read_ns = self._clock.now_ns()
        sending.times_ns.append(self._last_read_ns)
        sending.reads.append(data)
        sending.read_bytes += len(data)
        more_bytes = len(data) + READ_BYTES
        text = self._budget.failure(sending.read_bytes, sending.limit_bytes, more_bytes)
        if text is not None:
            raise _TooLongError(text)
        sending.held_bytes += more_bytes

    def _stamps(self) -> aiohttp.TraceConfig:
        """Return the callbacks by which aiohttp stamps the stages of a request."""

        async def connecting(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx.connecting_since_ns = self._clock.now_ns()

        async def connected(_: object, context: SimpleNamespace, __: object) -> None:
            self.opened_connections += 1
            sending = context.trace_request_ctx
            sending.connect_ns = self._clock.now_ns() - sending.connecting_since_ns

        async def reused(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx.reused = True

        async def chunk_sent(_: object, context: SimpleNamespace, __: object) -> None:
            sending = context.trace_request_ctx
            if sending.sent_ns is None:
                sending.sent_ns = self._clock.now_ns()

        stamps = aiohttp.TraceConfig()
        stamps.on_connection_create_start.append(connecting)
        stamps.on_connection_create_end.append(connected)
        stamps.on_connection_reuseconn.append(reused)
        stamps.on_request_chunk_sent.append(chunk_sent)
        return stamps


def _failure(error: Exception) -> tuple[str, str] | None:
    """Return kind and text of what aiohttp raised; None where the response itself shows it.

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
        reset = ConnectionResetError.__name__ in text  # reported nowhere else
        return ("connection_reset", text) if reset else None  # else cut: the body is not whole
    if isinstance(error, aiohttp.ClientResponseError):
        return "bad_body", text
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno and network_error_kind(cause) is None:
        cause = OSError(cause.errno, cause.strerror)  # aiohttp's own types hide what Python knows
    kind, why = ended_by(cause)
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        why = f"the proxy did not answer: {why}"
    return kind, why
