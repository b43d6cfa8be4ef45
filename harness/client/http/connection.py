"""One kept connection to a server: stamps and stores what its socket reads, and nothing else."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Generator
from typing import Any, cast

from harness.client.base import network_error_kind
from harness.client.http.exchange import READ_BYTES
from harness.client.http.http1 import BodyEnd, NotHttpError, read_head
from harness.client.http.wake_queue import WakeQueue
from harness.timing import Clock

# A read that holds the end of a chunked answer ends in one of these ways, or is shorter than this.
_MAYBE_END = (b"\r\n\r\n", b"[DONE]\n\n\r\n", b"[DONE]\n\n")
_SHORT_BYTES = 16
_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]\s*(?P<last_chunk>\r\n0\r\n\r\n)?\Z")
_DONE_BYTES = 40  # as much as `_DONE` has to see
# How late the end of a body may be when [DONE] has come; then the answer is taken as it is.
_LINGER_S = 0.25
_MOST_BYTES = 64 << 20  # of one answer, or so many for each requested token where that is more
_MOST_TOKEN_BYTES = 64 << 10
_LEASE_BYTES = 64 << 10  # that a connection may read between two looks at the limits


def most_answer_bytes(output_tokens: int) -> int:
    """Return the limit of the answer to a request for so many tokens, head and framing included."""
    return max(_MOST_BYTES, _MOST_TOKEN_BYTES * output_tokens)


class FlightBudget:
    """The memory that all answers in flight may take together."""

    __slots__ = ("free_bytes",)

    def __init__(self, most_bytes: int) -> None:
        self.free_bytes = most_bytes

    def failure(self, used_bytes: int, limit_bytes: int, more_bytes: int) -> str | None:
        """Take `more_bytes` for an answer of which `used_bytes` came; return why that is too much.

        None: it is within both limits.
        """
        if used_bytes > limit_bytes:
            return f"the answer is longer than {limit_bytes >> 20} MiB"
        if more_bytes > self.free_bytes:
            return "the answers in flight together take more memory than this client may use"
        self.free_bytes -= more_bytes
        return None


class Connection(asyncio.BaseProtocol):
    """Sends one request at a time and keeps what its socket reads.

    While an answer comes, a read costs one stamp, two appends and a look at its last bytes.
    `reads`, `times_ns`, `sent_ns`, `closed_ns`, `eof` and `failure` are of the latest request, as
    in `Exchange`. `kept`: another request may follow.
    """

    data_received: Callable[[bytes | None], None]  # what the loop calls with each read

    def __init__(
        self,
        clock: Clock,
        wake_queue: WakeQueue,
        budget: FlightBudget,
        sock: socket.socket,
        connect_ns: int,
    ) -> None:
        self.connect_ns = connect_ns
        self.idle_since_ns = clock.now_ns()
        self.gone = asyncio.get_running_loop().create_future()
        self.kept = True
        self._clock = clock
        self._now_ns = clock.now_ns
        self._wake_queue = wake_queue
        self._budget = budget
        self._held_bytes = 0  # of the budget
        self._socket = sock
        self._transport: asyncio.Transport | None = None
        self._begin()
        receiver = self._receive()
        next(receiver)
        self.data_received = receiver.send

    def _begin(self) -> None:
        self.reads: list[bytes] = []
        self.times_ns: list[int] = []  # raw, as the clock has them
        self.sent_ns: int | None = None
        self.closed_ns: int | None = None
        self.eof = False
        self.failure: tuple[str, str] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._head = b""  # what came of it, while it is not whole
        self._end: BodyEnd | None = None  # None: the head has not come yet
        self._persistent = False
        self._fed = 0  # reads that `_end` has taken
        self._every_read = True  # whether each read may be the last, whatever it ends with
        self._leased_bytes = _LEASE_BYTES  # that may be read before the next look at the limits

    def send(self, message: bytes, limit_bytes: int) -> asyncio.Future[None]:
        """Send `message` now; the future is done when the answer or the connection has ended.

        An answer of more than `limit_bytes` ends the connection, as `too_long`.
        """
        self._begin()
        self._limit_bytes = limit_bytes
        self.data_received(None)
        self._answered = answered = asyncio.get_running_loop().create_future()
        if self.kept:
            self._write(message)
        else:
            self._lose(ConnectionResetError("the kept connection was closed"))
        return answered

    def _write(self, message: bytes) -> None:
        """Hand `message` to the socket itself: a transport may hold it back for a while.

        Stamped just before, so that no server can have read it earlier.
        """
        now_ns = self._now_ns()
        try:
            sent = self._socket.send(message)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(error)
            return
        if sent < len(message) and self._transport is not None:
            self._transport.write(message[sent:])
            if self._transport.get_write_buffer_size():
                return  # resume_writing stamps
        self.sent_ns = now_ns

    def abort(self) -> None:
        """Close the connection at once; nobody waits for its answer any more."""
        self._answered = None
        self.kept = False
        self._release()
        if self._linger is not None:
            self._linger.cancel()
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; it reports when its buffer is empty."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)

    def resume_writing(self) -> None:
        """Stamp: the rest of a request that the socket did not take at once has gone."""
        if self.sent_ns is None:
            self.sent_ns = self._now_ns()

    def eof_received(self) -> None:
        """Take the end of the connection; it ends an answer, whole or not."""
        self.eof = True
        self.kept = False
        self._finish(self._now_ns())

    def connection_lost(self, error: Exception | None) -> None:
        """Take the loss of the connection; where an answer was awaited it is its failure."""
        self.kept = False
        if self._answered is not None and error is not None:
            self._lose(error)
        self._finish(self._now_ns())
        if not self.gone.done():
            self.gone.set_result(None)

    def _receive(self) -> Generator[None, bytes | None, None]:
        """Stamp and store each read; look closer only where an answer may have ended.

        None: another response begins. A generator, since this is run once a token: its
        names need no looking up, its frame stays.
        """
        raw_ns, wake_queue = self._clock.raw_ns, self._wake_queue
        while True:
            stamp, keep = self.times_ns.append, self.reads.append
            left_bytes = _LEASE_BYTES
            while (data := (yield)) is not None:
                stamp(raw_ns())
                keep(data)
                wake_queue.quiet = False
                left_bytes -= len(data)
                if left_bytes < 0:
                    left_bytes = self._lease(left_bytes)
                if self._every_read or data.endswith(_MAYBE_END) or len(data) < _SHORT_BYTES:
                    self._look()

    # The limits of an answer.

    def _lease(self, left_bytes: int) -> int:
        """Return how much may be read until the next look; end an answer beyond the limits."""
        used_bytes = self._leased_bytes - left_bytes
        taken_bytes = used_bytes + _LEASE_BYTES + READ_BYTES * len(self.reads)
        more_bytes = taken_bytes - self._held_bytes
        text = self._budget.failure(used_bytes, self._limit_bytes, more_bytes)
        if text is not None:
            self.failure, self.kept = ("too_long", text), False
            self._finish(self._now_ns())
            return _LEASE_BYTES
        self._held_bytes = taken_bytes
        if b"\n" not in self.reads[-1]:  # perhaps a line of the framing that never ends
            self._look()
        more = min(_LEASE_BYTES, self._limit_bytes - used_bytes)
        self._leased_bytes = used_bytes + more
        return more

    def _release(self) -> None:
        self._budget.free_bytes += self._held_bytes
        self._held_bytes = 0

    # The end of an answer.

    def _look(self) -> None:
        if self._answered is None:
            self.abort()  # unrequested bytes would be read as a part of the next response
            return
        try:
            reached = self._end_reached()
        except NotHttpError:  # reading it afterwards finds what is wrong
            reached = True
            self._persistent = False
        if reached:
            surplus = self._end is not None and self._end.surplus
            self.kept = self.kept and self._persistent and not surplus
            self._finish(self.times_ns[-1] - self._clock.origin_ns)
        elif self._linger is None and self._done() is not None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(_LINGER_S, self._end_without_end, len(self.reads))

    def _end_reached(self) -> bool:
        if self._end is None:
            return self._head_reached()
        done = self._done() if self._end.chunked else None
        if done is not None and done["last_chunk"]:
            return True  # what nearly every stream ends with: no need to walk over its chunks
        unseen = b"".join(self.reads[self._fed :])
        self._fed = len(self.reads)
        return self._end.feed(unseen)

    def _head_reached(self) -> bool:
        raw = self._head = self._head + self.reads[-1]
        head = read_head(raw)
        if head is None:
            return False
        self._end = BodyEnd(head)
        self._persistent = head.persistent
        self._every_read = not (self._end.chunked or self._end.by_connection)
        self._fed = len(self.reads)
        return self._end.feed(raw[head.size_bytes :])

    def _done(self) -> re.Match[bytes] | None:
        """Return the match of [DONE] at the end of what has come."""
        end = self.reads[-1]
        if len(end) < _DONE_BYTES:
            end = b"".join([one[-_DONE_BYTES:] for one in self.reads[-_DONE_BYTES:]])
        return _DONE.search(end[-_DONE_BYTES:])

    def _end_without_end(self, reads: int) -> None:
        """End a response whose [DONE] came but whose body is left open."""
        self._linger = None
        if len(self.reads) == reads and self._answered is not None:
            self.kept = False
            self._finish(self.times_ns[-1] - self._clock.origin_ns)

    def _lose(self, error: Exception) -> None:
        kind = network_error_kind(error) or "connection_reset"
        self.failure = kind, f"{type(error).__name__}: {error}".removesuffix(": ")
        self.kept = False
        self._finish(self._now_ns())

    def _finish(self, closed_ns: int) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        answered, self._answered = self._answered, None
        self._every_read = True
        self._release()
        if answered is None:
            return
        self.closed_ns = closed_ns
        self._wake_queue.wake(answered)
        if not self.kept and self._transport is not None:
            self._transport.abort()


async def open_connection(
    host: str, port: int, clock: Clock, wake_queue: WakeQueue, budget: FlightBudget
) -> Connection:
    """Return a new connection to the first address of `host` that takes one.

    `connect_ns` is what the handshake with it took. Raises `OSError`, as the last address did.
    """
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(addresses, start=1):
        sock = socket.socket(family, kind, protocol)
        try:
            return await _connected(sock, address, clock, wake_queue, budget)
        except OSError:
            sock.close()
            if number == len(addresses):
                raise
        except BaseException:
            sock.close()
            raise
    raise ConnectionRefusedError(f"{host} has no address")


async def _connected(
    sock: socket.socket,
    address: Any,
    clock: Clock,
    wake_queue: WakeQueue,
    budget: FlightBudget,
) -> Connection:
    loop = asyncio.get_running_loop()
    sock.setblocking(False)  # noqa: FBT003 - the standard library's own call
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begin_ns = clock.now_ns()
    await loop.sock_connect(sock, address)
    connect_ns = clock.now_ns() - begin_ns
    _, connection = await loop.create_connection(
        lambda: Connection(clock, wake_queue, budget, sock, connect_ns), sock=sock
    )
    return connection
