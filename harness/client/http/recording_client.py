"""What both HTTP clients share: bytes made beforehand, responses kept unread, live history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType

from harness.adapters import Target
from harness.client.base import Request
from harness.client.http.connection import FlightBudget
from harness.client.http.exchange import Exchange, record_of, unread_record
from harness.client.http.live_history import LiveAnswers
from harness.client.http.request_body import RequestOptions, body_bytes
from harness.results.store import RequestRecord
from harness.timing import Clock

# Responses are kept up to here. Beyond, each is read as it ends, while the clock runs.
KEEP_BYTES = 2 << 30
FLIGHT_BYTES = 2 << 30  # of memory for all answers in flight together


class RecordingClient(ABC):
    """Keeps every response unread until the run is over. A subclass sends the bytes.

    `send` returns the times of a request as soon as it has ended; `settled` reads the responses.
    """

    def __init__(
        self, target: Target, clock: Clock, options: RequestOptions | None, keep_bytes: int
    ) -> None:
        self.replaced_connections = 0  # requests put on a new connection
        self._target = target
        self._clock = clock
        self._options = options or RequestOptions()
        self._messages: dict[str, bytes] = {}
        self._kept = KeptAnswers(keep_bytes)
        self._live = LiveAnswers(keep_bytes)
        self._in_flight: dict[str, int] = {}  # request → when it was sent; the oldest first
        self._heard_ns: int | None = None  # the last read of the answers that ended
        # When the first request was sent after the last answer that brought a byte ended.
        self._unheard_since_ns: int | None = None
        self._budget = FlightBudget(FLIGHT_BYTES)

    def share_memory(self, processes: int) -> None:
        """Take one part of `processes` of the memory for answers; for before anything is sent."""
        for limited in (self._kept, self._live, self._budget):
            limited.free_bytes //= processes

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def read_on_the_clock(self) -> int:
        """Responses beyond `keep_bytes`: reading them took time from the run."""
        return self._kept.read_on_the_clock

    @property
    def recorded_turns(self) -> int:
        """Turns of live chats that hold a drawn answer, as the server returned no token ids."""
        return self._live.recorded_turns

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make the bytes of `requests` now, so that sending one only hands them to a socket."""
        for request in requests:
            self._messages[request.request_id] = self._message(request)

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Send now and return the record once the response has ended, as yet unread."""
        message = self._messages.pop(request.request_id, None) or self._message(request)
        now_ns = self._in_flight[request.request_id] = self._clock.now_ns()
        if self._unheard_since_ns is None:
            self._unheard_since_ns = now_ns
        try:
            exchange = await self._exchange(request, message, scheduled_ns)
        finally:
            del self._in_flight[request.request_id]
        if exchange.read_times_ns:
            last_ns = exchange.read_times_ns[-1] - exchange.origin_ns
            self._heard_ns = max(last_ns, self._heard_ns or last_ns)
            self._unheard_since_ns = None
        self._live.keep(exchange)
        return self._kept.keep(exchange)

    def waiting_since_ns(self) -> int | None:
        """Return since when requests wait for a byte; None: none is in flight.

        Those that ended without a byte count too: a short time-out hides no silence.
        """
        oldest_ns = next(iter(self._in_flight.values()), None)
        if oldest_ns is None or self._unheard_since_ns is None:
            return oldest_ns
        return min(oldest_ns, self._unheard_since_ns)

    def last_read_ns(self) -> int | None:
        """Return when the last byte of any answer was read; None: none was."""
        times_ns = [*self._open_reads_ns(), *([] if self._heard_ns is None else [self._heard_ns])]
        return max(times_ns, default=None)

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the server's answer to `before`, and make its bytes."""
        made = self._live.continued(request, before)
        self._messages[made.request_id] = self._message(made)
        return made

    def settled(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return `records` in their order, the responses that were kept for them now read."""
        return self._kept.settled(records)

    def _message(self, request: Request) -> bytes:
        """Return the bytes that `_exchange` sends for `request`: its body."""
        return body_bytes(self._target, self._options, request)

    @abstractmethod
    def _open_reads_ns(self) -> Iterable[int]:
        """Return the time of the last read of each answer in flight."""

    @abstractmethod
    async def _close(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def _exchange(self, request: Request, message: bytes, scheduled_ns: int) -> Exchange:
        """Send `message` and return the exchange once the response has ended, well or badly."""


class KeptAnswers:
    """Keeps what came for each request, and reads it when the run is over."""

    def __init__(self, capacity_bytes: int) -> None:
        self.read_on_the_clock = 0  # responses beyond the capacity
        self.free_bytes = capacity_bytes
        self._unread: dict[str, Exchange] = {}

    def keep(self, exchange: Exchange) -> RequestRecord:
        """Return the unread record of `exchange`; the whole one where the capacity is used up."""
        size_bytes = exchange.memory_bytes
        if size_bytes > self.free_bytes:
            self.read_on_the_clock += 1
            return record_of(exchange)
        self.free_bytes -= size_bytes
        self._unread[exchange.request.request_id] = exchange
        return unread_record(exchange)

    def settled(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return `records` in their order, the responses that were kept for them now read."""
        return [self._settled(record) for record in records]

    def _settled(self, record: RequestRecord) -> RequestRecord:
        exchange = self._unread.pop(record.request_id, None)
        if exchange is None:
            return record
        self.free_bytes += exchange.memory_bytes
        return record_of(exchange)
