"""A server for `harness load` whose answers are written byte by byte, in threads of its own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from streams import DONE, LAST_CHUNK, STREAM_HEAD, chunk, token, usage_event

Answer = Callable[[dict[str, Any]], bytes]  # the body asked → all bytes of the answer


def stream(*events: bytes) -> bytes:
    """A streamed answer of these events, chunk by chunk."""
    return STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK


def good(asked: dict[str, Any]) -> bytes:
    """As many tokens as were asked, counted rightly."""
    tokens, prompt = asked["max_tokens"], asked.get("prompt") or ""
    words = [token(" a", finish="length" if n == tokens - 1 else None) for n in range(tokens)]
    counted = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    usage = usage_event(tokens).replace(b'"prompt_tokens":20', b'"prompt_tokens":%d' % counted)
    return stream(*words, usage, DONE)


def refused(message: str, status: str = "400 Bad Request") -> bytes:
    """An error as the API writes it."""
    body = json.dumps({"error": {"message": message}}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class RawServer(http.server.ThreadingHTTPServer):
    """Knows one model, `m`, and what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer, pause_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.pause_s = pause_s
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[tuple[str, dict[str, str]]] = []  # path and headers of each request
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client has gone."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RawServer

    def do_GET(self) -> None:
        self.server.heads.append((self.path, dict(self.headers)))
        known = self.path == "/v1/models"
        body = b'{"data":[{"id":"m"}]}' if known else b"{}"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.heads.append((self.path, dict(self.headers)))
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(asked)
        self.server.ended.wait(self.server.pause_s)
        self.wfile.write(self.server.answer(asked))

    def log_message(self, *_: object) -> None: ...


@contextmanager
def raw_server(answer: Answer = good, pause_s: float = 0.0) -> Iterator[RawServer]:
    """A server that answers inside the block, each request after a pause."""
    with RawServer(answer, pause_s) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
