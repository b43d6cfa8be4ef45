"""A single request to a server has an end, whatever the server sends and however slowly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from harness.adapters import http_queries
from harness.adapters.http_queries import NO_REPLY, HttpReply, TooLongReplyError, query

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
Answer = Callable[[socket.socket], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Return the URL of a server that answers one connection so."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def again(head: bytes, piece: bytes, pause_s: float = 0.0) -> Answer:
    """Send `head`, then `piece` until the client has gone or three seconds are over."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s:
            connection.sendall(piece)
            time.sleep(pause_s)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        again(b"", b"", 0.05),
        again(b"HTTP/1.1 2", b"0", 0.05),
        again(OK + b"X: ", b"y", 0.05),
        again(OK, b"X: y\r\n", 0.05),
        again(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        again(OK + b"Content-Length: 9999\r\n\r\n", b"z", 0.05),
        again(OK + b"\r\n", b"z", 0.05),
        again(CHUNKED, b"1\r\nz\r\n", 0.05),
        again(CHUNKED, b"0", 0.05),
        again(b"HTTP/1.1 503 Busy\r\nContent-Length: 9999\r\n\r\n", b"z", 0.05),
    ],
)
def test_a_reply_that_drips_ends_at_its_time(answer: Answer) -> None:
    """Each read is in time, and the whole is not."""
    with answering(answer) as url:
        begin_s = time.monotonic()
        with pytest.raises(NO_REPLY):
            query(url, "/v1/models", timeout_s=0.5)
        took_s = time.monotonic() - begin_s

    assert took_s < 2


@pytest.mark.parametrize(
    "answer",
    [
        again(OK + b"\r\n", b"x" * 65_536),
        again(OK + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65_536),
        again(CHUNKED, b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
        again(b"HTTP/1.1 500 Oops\r\n\r\n", b"x" * 65_536),
    ],
)
def test_a_reply_without_end_is_too_long(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """Of a refusal too."""
    monkeypatch.setattr(http_queries, "_MOST_BYTES", 1 << 20)
    with answering(answer) as url, pytest.raises(TooLongReplyError, match="longer than 1 MiB"):
        query(url, "/metrics", timeout_s=20)


@pytest.mark.parametrize("line", [CHUNKED + b"5;" + b"x" * 200_000, OK + b"X: " + b"y" * 200_000])
def test_a_line_without_end_is_refused(line: bytes) -> None:
    """Of the framing and of the head."""
    with answering(lambda connection: connection.sendall(line)) as url, pytest.raises(NO_REPLY):
        query(url, "/version", timeout_s=20)


def test_a_reply_that_was_cut_is_none() -> None:
    """The connection was closed before the length that the head gives."""
    raw = OK + b"Content-Length: 10\r\n\r\nabc"
    with answering(lambda connection: connection.sendall(raw)) as url, pytest.raises(NO_REPLY):
        query(url, "/version", timeout_s=20)


@pytest.mark.parametrize(
    "body", [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 100_000 + b"]" * 100_000, b"1" * 5000]
)
def test_json_that_cannot_be_read_is_none(body: bytes) -> None:
    """Nested, or a number of more digits than Python reads: no traceback."""
    raw = OK + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with answering(lambda connection: connection.sendall(raw)) as url:
        reply = query(url, "/v1/models", timeout_s=20)

    assert reply == HttpReply(200, body)
    assert reply.json() is None
    assert reply.words()
