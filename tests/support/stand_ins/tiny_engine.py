"""The server that docs/adding-an-engine.md starts: no model, a prefix cache, two counters.

tiny_engine.py MODEL --port PORT --context TOKENS --tp GPUS [--no-prefix-cache]
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

LIFE_S = 120.0  # a test that failed leaves nothing behind for longer
STEP_S = 0.002
BLOCK_LETTERS = 64


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    lock = threading.Lock()
    cached: ClassVar[set[str]] = set()
    totals: ClassVar[dict[str, int]] = {"tinyserve_prompt_tokens": 0, "tinyserve_cached_tokens": 0}

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        known = {"version": "7.1", "engine_kind": "stand-in", "prefix_cache": self.options.cache}
        pages: dict[str, object] = {
            "/health": "",
            "/version": known,
            "/v1/models": {"data": [{"id": self.options.model}]},
            "/metrics": "".join(f"{name} {value}\n" for name, value in self.totals.items()),
        }
        self.answer(pages.get(self.path, ""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/flush":
            self.cached.clear()
            self.answer("")
            return
        asked = json.loads(body)
        prompt = self.read_prompt(asked["prompt"])
        usage = {"prompt_tokens": prompt, "completion_tokens": asked["max_tokens"]}
        if asked.get("stream"):
            self.stream(asked["max_tokens"], usage)
        else:
            choice = {"index": 0, "text": "t " * asked["max_tokens"], "finish_reason": "length"}
            self.answer({"choices": [choice], "usage": usage})

    def read_prompt(self, prompt: str) -> int:
        """Count words; those of leading blocks that were read before come from the cache."""
        ends = range(BLOCK_LETTERS, len(prompt), BLOCK_LETTERS)
        with self.lock:
            known = max((end for end in ends if prompt[:end] in self.cached), default=0)
            if self.options.cache:
                self.cached.update(prompt[:end] for end in ends)
            tokens = len(prompt.split())
            self.totals["tinyserve_prompt_tokens"] += tokens
            self.totals["tinyserve_cached_tokens"] += len(prompt[:known].split())
        return tokens

    def stream(self, tokens: int, usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(tokens):
            time.sleep(STEP_S)
            end = "length" if number == tokens - 1 else None
            self.event({"choices": [{"index": 0, "text": "t ", "finish_reason": end}]})
        self.event({"choices": [], "usage": usage})
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, content: object) -> None:
        self.chunk(f"data: {json.dumps(content)}\n\n")

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def answer(self, content: object) -> None:
        text = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--no-prefix-cache", dest="cache", action="store_false")
    Engine.options = parser.parse_args()
    threading.Timer(LIFE_S, lambda: os._exit(3)).start()
    ThreadingHTTPServer(("127.0.0.1", Engine.options.port), Engine).serve_forever()


if __name__ == "__main__":
    main()
