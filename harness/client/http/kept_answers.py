"""Answers that wait, unread, until the clock has stopped."""

from __future__ import annotations

from collections.abc import Iterable

from harness.client.http.exchange import Exchange, record_of, unread_record
from harness.results.store import RequestRecord

# Answers are kept up to here. Beyond, each is read as it ends, while the clock runs.
KEEP_BYTES = 2 << 30


class KeptAnswers:
    """Keeps what came for each request, and reads it when the run is over."""

    def __init__(self, room_bytes: int = KEEP_BYTES) -> None:
        self.read_on_the_clock = 0  # answers for which there was no room
        self._room_bytes = room_bytes
        self._unread: dict[str, Exchange] = {}

    def keep(self, exchange: Exchange) -> RequestRecord:
        """Return the record that `exchange` gives unread; the whole one where there is no room."""
        size_bytes = _size_bytes(exchange)
        if size_bytes > self._room_bytes:
            self.read_on_the_clock += 1
            return record_of(exchange)
        self._room_bytes -= size_bytes
        self._unread[exchange.request.request_id] = exchange
        return unread_record(exchange)

    def settled(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return `records` in their order, the answers that were kept for them now read."""
        return [self._settled(record) for record in records]

    def _settled(self, record: RequestRecord) -> RequestRecord:
        exchange = self._unread.pop(record.request_id, None)
        if exchange is None:
            return record
        self._room_bytes += _size_bytes(exchange)
        return record_of(exchange)


def _size_bytes(exchange: Exchange) -> int:
    return sum(map(len, exchange.reads))
