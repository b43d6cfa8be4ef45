"""Answers of an OpenAI-compatible server, byte by byte, and the record that they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.client.base import Request
from harness.client.http.exchange import Exchange, record_of
from harness.results.store.records import RequestRecord
from harness.workloads.base import Segment

MS = 1_000_000
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def a_request(name: str = "c00000-t00", output_tokens: int = 5) -> Request:
    """One request of 20 prompt tokens."""
    return Request(
        request_id=name,
        conversation="a",
        turn=0,
        prompt=(Segment(1, 12), Segment(2, 8)),
        output_tokens=output_tokens,
    )


def event(value: object, newline: str = "\n") -> bytes:
    """One event that holds `value` as JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}{newline}{newline}".encode()


def token(text: str, *, finish: str | None = None, total: int | None = None) -> bytes:
    """One event of a completion; `total` is the running count of output tokens."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-7", "choices": [choice], **usage(total)})


def delta(finish: str | None = None, total: int | None = None, **fields: object) -> bytes:
    """One event of a chat."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"id": "chat-7", "choices": [choice], **usage(total)})


def usage(total: int | None, prompt: int = 20) -> dict[str, Any]:
    """The usage field of an event; nothing where there is no total."""
    if total is None:
        return {}
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + total, "completion_tokens": total}
    return {"usage": counts}


def usage_event(total: int, cached: int | None = None) -> bytes:
    """The event without choices that tells the counts at the end."""
    told = usage(total)
    if cached is not None:
        told["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"id": "cmpl-7", "choices": [], **told})


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunked(*pieces: bytes) -> list[bytes]:
    """A whole streamed answer: head, a chunk for each piece, the last chunk; each one read."""
    return [STREAM_HEAD, *map(chunk, pieces), LAST_CHUNK]


def until_close(*pieces: bytes) -> list[bytes]:
    """An answer that the end of the connection ends."""
    return [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", *pieces]


def with_length(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole answer of known length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def exchange(
    reads: Sequence[bytes],
    times_ms: Iterable[float] | None = None,
    *,
    eof: bool = False,
    failure: tuple[str, str] | None = None,
) -> Exchange:
    """What a socket saw: the reads at these times after sending, a millisecond apart by default."""
    times = [round(ms * MS) for ms in (times_ms or range(1, len(reads) + 1))]
    return Exchange(
        request=a_request(),
        scheduled_ns=0,
        sent_ns=0,
        connect_ns=None,
        reads=reads,
        read_times_ns=times,
        closed_ns=times[-1] if times else 1,
        eof=eof,
        failure=failure,
    )


def record(
    reads: Sequence[bytes],
    times_ms: Iterable[float] | None = None,
    *,
    eof: bool = False,
    failure: tuple[str, str] | None = None,
) -> RequestRecord:
    """The record of `exchange`."""
    return record_of(exchange(reads, times_ms, eof=eof, failure=failure))


def events_ms(one: RequestRecord) -> list[tuple[float, int]]:
    """The token events of a record: time in ms, tokens."""
    return [(time_ns / MS, tokens) for time_ns, tokens in one.token_events.tolist()]
