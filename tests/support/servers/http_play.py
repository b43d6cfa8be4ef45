"""Plays a load against an HTTP server with a small client of the tests' own, and virtually."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from harness.adapters.base import EngineSettings
from harness.adapters.embedded.adapter import EmbeddedEndpoint
from harness.adapters.embedded.server.server import fine_loop
from harness.client.base import Request, failed_record
from harness.client.virtual import VirtualClient
from harness.load.loadgen import play, requests_of
from harness.load.schedule import ClosedLoop, Schedule
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock, VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Conversation
from harness.workloads.prompts.token_ids import draw_token_ids

END = b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """A kept connection: keeps the pieces of one answer, each with its time."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.ended: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter_ns(), data))
        if data.endswith(END) and self.ended:
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended and not self.ended.done():
            self.ended.set_exception(exc or ConnectionResetError("closed"))


class PlainClient:
    """Completions over HTTP/1.1, with usage in every event; as many connections as it needs.

    Bodies are made before the run and answers read after it, so that a client that was answered
    asks again as fast as it can.
    """

    def __init__(self, url: str, model: str, asked: Sequence[Conversation]) -> None:
        self._url = urlsplit(url)
        self._idle: list[Connection] = []
        self._bodies = {
            request.request_id: request_bytes(model, request)
            for requests in requests_of(asked)
            for request in requests
        }
        self._seen: dict[str, list[tuple[int, bytes]]] = {}
        self.clock = MonotonicClock()

    async def connect(self, count: int) -> None:
        """Open `count` connections before the run."""
        self._idle += [await self._connect() for _ in range(count)]

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Return when `request` was sent and answered; `read` tells the rest after the run."""
        connection = self._idle.pop() if self._idle else await self._connect()
        connection.ended = asyncio.get_running_loop().create_future()
        connection.pieces = []
        sent_ns = self.clock.now_ns()
        assert connection.transport is not None
        connection.transport.write(self._bodies[request.request_id])
        await connection.ended
        self._seen[request.request_id] = connection.pieces
        connection.ended = None
        self._idle.append(connection)
        empty = failed_record(
            request, scheduled_ns, closed_ns=self.clock.now_ns(), kind="unread", text=""
        )
        return replace(empty, sent_ns=sent_ns)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            assert connection.transport is not None
            connection.transport.close()

    def read(self, record: RequestRecord) -> RequestRecord:
        """Return the whole record of a request that has been answered."""
        pieces, origin = self._seen[record.request_id], self.clock.origin_ns
        seen = [(at_ns - origin, data["usage"]) for at_ns, raw in pieces for data in events(raw)]
        counts = np.array([usage["completion_tokens"] for _, usage in seen[:-1]], dtype=np.int64)
        times = np.array([at_ns for at_ns, _ in seen[:-1]], dtype=np.int64)
        last = seen[-1][1]
        return replace(
            record,
            first_byte_ns=pieces[0][0] - origin,
            token_events=np.column_stack([times, np.diff(counts, prepend=0)]),
            closed_ns=pieces[-1][0] - origin,
            prompt_tokens=last["prompt_tokens"],
            cached_prompt_tokens=last["prompt_tokens_details"]["cached_tokens"],
            output_tokens=last["completion_tokens"],
            error_kind=None,
            error=None,
        )

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = self._url.hostname or "", self._url.port or 0
        _, connection = await loop.create_connection(Connection, host, port)
        return connection


def request_bytes(model: str, request: Request) -> bytes:
    """Return the whole HTTP request."""
    body = json.dumps(
        {
            "model": model,
            "prompt": draw_token_ids(request.prompt).tolist(),
            "max_tokens": request.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def events(raw: bytes) -> list[Any]:
    """Return the JSON of each event whose data stands whole in `raw`."""
    lines = [line.strip() for line in raw.splitlines()]
    data = [line[5:] for line in lines if line.startswith(b"data:") and b"[DONE]" not in line]
    return [json.loads(one) for one in data]


def play_http(
    url: str, model: str, schedule: Schedule, asked: list[Conversation]
) -> list[RequestRecord]:
    """Return the records of a load over HTTP, in real time."""

    async def main() -> list[RequestRecord]:
        client = PlainClient(url, model, asked)
        await client.connect(schedule.concurrency if isinstance(schedule, ClosedLoop) else 16)
        records = await play(client, client.clock, schedule, asked)
        client.close()
        return [client.read(record) for record in records]

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        return runner.run(main())


def play_virtually(
    settings: EngineSettings, schedule: Schedule, asked: list[Conversation]
) -> list[RequestRecord]:
    """Return the records of the same load on virtual time."""

    async def main() -> list[RequestRecord]:
        loop = virtual_loop()
        client = VirtualClient(EmbeddedEndpoint(settings).transport, loop)
        return await play(client, VirtualClock(loop), schedule, asked)

    return run_virtual(main())
