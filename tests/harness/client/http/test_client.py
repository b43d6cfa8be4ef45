"""The HTTP client against servers as they are: what it sends, and what it makes of answers."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from typing import Any

import pytest
from http_asking import GOOD, LOOPS, TOKENS, Run, ask, client_of, on_each_loop
from scripted_server import Script, ScriptedServer, serving
from streams import (
    DONE,
    MS,
    STREAM_HEAD,
    a_request,
    chunk,
    chunked,
    until_close,
    with_length,
)

from harness.adapters.base import Target
from harness.client.base import Request
from harness.client.http.client import HttpClient
from harness.client.http.connection import Connection, FlightBudget
from harness.client.http.exchange import READ_BYTES
from harness.client.http.wake_queue import WakeQueue
from harness.load.loadgen import play
from harness.load.schedule import ClosedLoop
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock, run_virtual
from harness.workloads.base import Conversation, Segment, Turn

pytestmark = pytest.mark.alone
run = pytest.fixture(params=LOOPS)(on_each_loop)


def test_a_request_goes_out_once_and_its_answer_becomes_a_record(run: Run) -> None:
    """Prepared bytes arrive as they were; events have their own times; the connection was there."""

    async def main() -> tuple[ScriptedServer, RequestRecord]:
        async with (
            serving(Script(writes=chunked(*TOKENS, DONE))) as server,
            client_of(server) as client,
        ):
            client.prepare([a_request("one")])
            assert await client.connect(1) == 1
            [record] = await ask(client)
            return server, record

    server, one = run(main())

    assert (one.error_kind, one.output_tokens, one.finish_reason) == (None, 3, "stop")
    assert one.connect_ns is None
    times = [0, one.sent_ns, one.first_byte_ns, *one.token_events[:, 0].tolist(), one.closed_ns]
    assert times == sorted(set(times))
    assert min(b - a for a, b in pairwise(times[2:])) > 2 * MS
    assert server.connections == 1
    assert server.heads[0].startswith("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.bodies[0]["max_tokens"] == 5


def test_a_record_waits_unread_until_it_is_settled(run: Run) -> None:
    """While the clock runs only times are known; reading an answer twice is not possible."""

    async def main() -> tuple[RequestRecord, list[RequestRecord]]:
        async with serving(GOOD) as server, client_of(server) as client:
            unread = await client.send(a_request("one"), 0)
            return unread, [*client.settled([unread]), *client.settled([unread])]

    unread, (settled, again) = run(main())

    assert (unread.error_kind, settled.error_kind) == ("unread", None)
    assert (unread.sent_ns, unread.closed_ns) == (settled.sent_ns, settled.closed_ns)
    assert again is unread


def test_answers_without_room_are_read_at_once_and_counted(run: Run) -> None:
    """Memory is bounded; that the reading took time from the run is known."""

    async def main() -> tuple[list[RequestRecord], int]:
        async with (
            serving(GOOD) as server,
            client_of(server, keep_bytes=len(GOOD.writes[0]) + READ_BYTES) as client,
        ):
            sent = [await client.send(a_request(name), 0) for name in "abc"]
            return sent, client.read_on_the_clock

    sent, count = run(main())

    assert [one.error_kind for one in sent] == ["unread", None, None]
    assert count == 2


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script(end="eof"), "connection_reset"),
        (Script(end="reset"), "connection_reset"),
        (Script(writes=[STREAM_HEAD + chunk(TOKENS[0])], end="reset"), "connection_reset"),
        (Script(writes=[STREAM_HEAD + chunk(TOKENS[0])], end="eof"), "truncated"),
        (Script(writes=[with_length(b"busy", "503 Busy")]), "http_503"),
        (Script(writes=[b"SSH-2.0-x\r\n"], end="hang"), "bad_body"),
    ],
)
def test_what_fails_is_not_asked_again(run: Run, script: Script, kind: str) -> None:
    """A failed request stays failed: the server sees each of two requests once."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord]]:
        async with serving(script) as server, client_of(server) as client:
            first = await client.send(a_request("a"), 0)
            return server, client.settled([first])

    server, [one] = run(main())

    assert (one.error_kind, len(server.bodies)) == (kind, 1)
    assert one.error


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_an_end_that_is_cut_into_reads_is_seen(run: Run, size: int) -> None:
    """The end of a chunked body may come in any pieces; the request ends with the last of them."""
    raw = b"".join(chunked(*TOKENS, DONE))
    tail = raw[-34:]
    pieces = [raw[:-34], *(tail[i : i + size] for i in range(0, 34, size))]

    async def main() -> tuple[int, list[RequestRecord]]:
        async with (
            serving(Script(writes=pieces, pause_s=0.002)) as server,
            client_of(server) as client,
        ):
            records = await ask(client, "a", "b")
            return server.connections, records

    connections, records = run(main())

    assert [one.error_kind for one in records] == [None, None]
    assert [len(one.token_events) for one in records] == [3, 3]
    assert connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"".join(chunked(*TOKENS)),  # no [DONE]
        b"".join(chunked(*(one.replace(b"\n", b"\r\n") for one in (*TOKENS, DONE)))),
        b"".join(chunked(*TOKENS, DONE))[:-2] + b"X-Cost: 1\r\nX-Sum: 2\r\n\r\n",  # trailers
        with_length(b"".join((*TOKENS, DONE)), kind="text/event-stream"),
        with_length(b'{"choices":[{"text":"a b c","finish_reason":"stop"}]}'),
        b"HTTP/1.1 100 Continue\r\n\r\n" + b"".join(chunked(*TOKENS, DONE)),
    ],
    ids=["no done", "CRLF", "trailers", "length", "JSON", "interim"],
)
def test_the_end_of_every_framing_is_seen(run: Run, answer: bytes) -> None:
    """In one read or in two, and the connection is good for the next request."""

    async def main() -> tuple[int, list[RequestRecord]]:
        cut = len(answer) // 2
        whole, halves = Script(writes=[answer]), Script(writes=[answer[:cut], answer[cut:]])
        async with (
            serving(lambda n: halves if n % 2 else whole) as server,
            client_of(server) as client,
        ):
            records = await ask(client, "a", "b", "c")
            return server.connections, records

    connections, records = run(main())

    assert [one.error_kind for one in records] == [None] * 3
    assert connections == 1


@pytest.mark.parametrize("reads", [chunked(*TOKENS, DONE)[:-1], until_close(*TOKENS, DONE)])
def test_a_body_left_open_behind_done_does_not_hang(run: Run, reads: list[bytes]) -> None:
    """The answer is taken as it is, closed when [DONE] came; its connection is not used again."""

    async def main() -> list[RequestRecord]:
        async with serving(Script(writes=reads, end="hang")) as server, client_of(server) as client:
            return await ask(client, "a", "b")

    records = run(main())

    assert [one.error_kind for one in records] == [None, None]
    for one in records:
        assert one.closed_ns - one.token_events[-1, 0] < 100 * MS
    second = records[1]
    assert second.sent_ns is not None
    assert second.sent_ns - records[0].closed_ns >= 200 * MS


def test_a_large_request_is_sent_when_its_last_byte_is(run: Run) -> None:
    """The socket takes some of 8 MB at once; the stamp waits for a server that reads slowly."""

    async def main() -> RequestRecord:
        target_request = Request(
            request_id="large",
            conversation="a",
            turn=0,
            prompt=(Segment(1, 1_500_000),),
            output_tokens=3,
        )
        asked = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await asyncio.sleep(0.15)
            await reader.readexactly(length)
            writer.write(GOOD.writes[0])
            await writer.drain()
            await asked.wait()
            writer.close()

        listener = await asyncio.start_server(slow, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        target = Target(url=f"http://127.0.0.1:{port}", model="m", vocabulary=100_000)
        async with HttpClient(target, MonotonicClock()) as client:
            client.prepare([target_request])
            await client.connect(1)
            begin_ns = client._clock.now_ns()
            [one] = client.settled([await client.send(target_request, begin_ns)])
            asked.set()
        listener.close()
        await asyncio.sleep(0.01)
        return one

    one = run(main())

    assert one.error_kind is None
    assert one.sent_ns is not None
    assert one.sent_ns - one.scheduled_ns > 140 * MS
    assert one.first_byte_ns is not None
    assert one.first_byte_ns >= one.sent_ns


def test_the_load_generator_plays_on_it(run: Run) -> None:
    """Conversations of two turns over four slots: every turn has a good record, in order."""
    asked = [
        Conversation(
            conversation_id=f"user-{number}",
            turns=tuple(Turn(prompt=(Segment(number, 10),), output_tokens=3) for _ in range(2)),
        )
        for number in range(12)
    ]

    async def main() -> tuple[int, list[RequestRecord]]:
        async with serving(GOOD) as server, client_of(server) as client:
            await client.connect(4)
            clock = client._clock
            records = await play(client, clock, ClosedLoop(concurrency=4), asked)
            return server.connections, client.settled(records)

    connections, records = run(main())

    assert connections == 4
    assert [one.error_kind for one in records] == [None] * 24
    assert [one.request_id for one in records] == sorted(one.request_id for one in records)


def test_a_server_of_another_kind_of_url_is_refused() -> None:
    """TLS is not spoken here; a URL without a host, or an unknown API, is nobody's."""
    for url, api in (("https://x", "chat"), ("x:1", "chat"), ("http://x", "embeddings")):
        with pytest.raises(ValueError, match=r"HTTP|URL|api"):
            HttpClient(Target(url=url, model="m", api=api), MonotonicClock())


def test_a_request_is_stamped_before_any_server_can_have_read_it() -> None:
    """The socket takes 5 µs here, in which a server on another core may answer already."""

    class Clock(MonotonicClock):
        ns = 100

        def now_ns(self) -> int:
            return self.ns

    class Socket(socket.socket):
        def send(self, data: Any, flags: int = 0) -> int:
            clock.ns += 5_000
            return len(data)

    async def main() -> int | None:
        with Socket() as sock:
            connection = Connection(clock, WakeQueue(clock), FlightBudget(0), sock, 0)
            connection.send(b"POST", 1 << 20)
            return connection.sent_ns

    clock = Clock()
    assert run_virtual(main()) == 100
