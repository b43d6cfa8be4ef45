"""A server that wants an API key, and quotes it back in what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "their-model"


@contextmanager
def keyed_server(  # noqa: C901  a whole server
    key: str | None, *, fails_each: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of such a server and what was asked of it, in order.

    None takes every request. `fails_each` N answers 500 to every N-th completion.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            if self.refused():
                return
            if self.path == "/v1/models":
                models = {"data": [{"id": MODEL, "max_model_len": 4096}]}
                self.answer(200, json.dumps(models))
            elif self.path == "/metrics":
                self.answer(
                    200, "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total 1.0\n"
                )
            else:
                self.answer(404, "{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(f"POST {self.path} {body.get('prompt')}")
            if self.refused():
                return
            posts = sum(line.startswith("POST") for line in asked)
            if fails_each and posts % fails_each == 0:
                self.answer(500, json.dumps({"error": f"lost by {self.headers['Authorization']}"}))
                return
            usage = {"prompt_tokens": 8, "completion_tokens": body["max_tokens"]}
            events = [
                {"choices": [{"index": 0, "text": "t", "finish_reason": end}], "usage": usage}
                for end in [None] * (body["max_tokens"] - 1) + ["length"]
            ]
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            self.answer(200, "".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

        def refused(self) -> bool:
            given = self.headers.get("Authorization", "")
            if key is None or given == f"Bearer {key}":
                return False
            self.answer(401, json.dumps({"error": f"no such key: {given}"}))
            return True

        def answer(self, status: int, text: str, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
