"""A small HTTP server on 127.0.0.1 that answers as scripts say, read by read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

PAUSE_S = 0.004  # between two writes, so that they are read one by one


@dataclass(frozen=True, kw_only=True)
class Script:
    """How one request is answered."""

    writes: Sequence[bytes] = ()
    end: str = "keep"  # keep | eof | reset | hang
    pause_s: float = PAUSE_S
    first_after_s: float = 0.0


@dataclass(kw_only=True)
class ScriptedServer:
    """Answers request number n, counted over all connections, with `answer(n)`."""

    answer: Callable[[int], Script]
    port: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    most_at_once: int = 0
    in_flight: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        self.connections += 1
        self.open.add(writer)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            self.open.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"(?i)\r\ncontent-length: *(\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        script = self.answer(len(self.bodies))
        self.heads.append(head)
        self.bodies.append(json.loads(body))
        self.in_flight += 1
        self.most_at_once = max(self.most_at_once, self.in_flight)
        await asyncio.sleep(script.first_after_s)
        for number, data in enumerate(script.writes):
            if number:
                await asyncio.sleep(script.pause_s)
            writer.write(data)
        await writer.drain()
        self.in_flight -= 1
        return await self._end(script, reader, writer)

    async def _end(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if script.end == "hang":
            await reader.read()  # until the client gives up
        if script.end == "reset":
            await asyncio.sleep(script.pause_s)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return script.end == "keep"

    def close_idle(self) -> None:
        """Close all connections from the server's side, as one that tires of them does."""
        for writer in self.open:
            writer.close()


@asynccontextmanager
async def serving(
    answer: Callable[[int], Script] | Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """A server that runs inside the block and has closed everything behind it."""
    script = answer if callable(answer) else lambda _: answer
    server = ScriptedServer(answer=script)
    listener = await asyncio.start_server(
        server.serve, "127.0.0.1", 0, backlog=1024, limit=1 << 24, ssl=tls
    )
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for writer in list(server.open):
            writer.transport.abort()
        while server.open:  # noqa: ASYNC110 - it may never have had a connection
            await asyncio.sleep(0.001)
