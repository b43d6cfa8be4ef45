"""Plain questions to a server on this machine: readiness, counters, resets. Never the load."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# What a server that is not there, not ready or dying makes of a question.
NO_ANSWER = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said to one question."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as data; None when it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(url: str, path: str, body: Any = None, *, post: bool = False, timeout_s: float) -> Answer:
    """Return the answer to a GET, or to a POST of `body` as JSON.

    Takes no notice of proxies in the environment: the server is meant, not what stands between.
    Raises one of `NO_ANSWER`.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=timeout_s
    )
    data = None if body is None else json.dumps(body).encode()
    headers = {"Connection": "close", "Content-Type": "application/json"}
    try:
        connection.request("POST" if post or data else "GET", path, data, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    finally:
        connection.close()
