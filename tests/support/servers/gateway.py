"""A server of an API below a path of its own, whose model may need time and take other names."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_STREAM = (
    b'data: {"choices":[{"index":0,"text":"a","delta":{"content":"a"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"b","delta":{"content":"b"},"finish_reason":"length"}]}'
    b"\n\ndata: [DONE]\n\n"
)


@dataclass(slots=True, kw_only=True)
class Gateway:
    """How it answers, and which requests came: `GET /v1/models`."""

    prefix: str = "/v1"
    listed: tuple[str, ...] | None = ("m",)  # None: no list of models
    taken: tuple[str, ...] | None = None  # the names that it answers; None: any
    not_ready: int = 503
    listed_after_s: float = 0.0  # after the first request; until then all routes are not ready
    ready_after_s: float = 0.0  # after the first request; until then completions are not ready
    entry: Mapping[str, Any] = field(default_factory=dict)  # more of each entry of the list
    version: bytes | None = None  # body of /version
    url: str = ""
    requests: list[str] = field(default_factory=list)
    refused: int = 0
    begun_s: float | None = None

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return status and body of the answer to one request."""
        self.requests.append(f"{method} {path}")
        self.begun_s = self.begun_s or time.monotonic()
        age_s = time.monotonic() - self.begun_s
        if path == "/version" and self.version is not None:
            return 200, self.version
        if age_s < self.listed_after_s:
            return self._not_ready()
        if method == "GET" and path == f"{self.prefix}/models" and self.listed is not None:
            entries = [{"id": name, **self.entry} for name in self.listed]
            return 200, json.dumps({"data": entries}).encode()
        routes = (f"{self.prefix}/completions", f"{self.prefix}/chat/completions")
        if method != "POST" or path not in routes:
            return 404, json.dumps({"error": {"message": f"no such path {path}"}}).encode()
        if age_s < self.ready_after_s:
            return self._not_ready()
        unknown = self.taken is not None and body.get("model") not in self.taken
        return (404, b'{"error":{"message":"no such model"}}') if unknown else (200, _STREAM)

    def _not_ready(self) -> tuple[int, bytes]:
        self.refused += 1
        return self.not_ready, b"model is being loaded"

    @property
    def posts(self) -> list[str]:
        """The paths that completions were requested at."""
        return [line.removeprefix("POST ") for line in self.requests if line.startswith("POST")]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def do_GET(self) -> None:
        self._answer(*self.gateway.answer("GET", self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(*self.gateway.answer("POST", self.path, body))

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(gateway: Gateway) -> Iterator[Gateway]:
    """Serve `gateway` inside the block; its `url` is host and port."""
    handler = type("Handler", (_Handler,), {"gateway": gateway})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        gateway.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join()
