"""Connections are kept, replaced, given up and closed; none is hidden or left."""

from __future__ import annotations

import asyncio
import socket

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
from harness.client.http.client import HttpClient
from harness.client.http.request_body import RequestOptions
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock

pytestmark = pytest.mark.alone
run = pytest.fixture(params=LOOPS)(on_each_loop)


def test_connections_are_kept_and_opened_beforehand(run: Run) -> None:
    """Requests that follow each other share one; the time to connect is with the first alone."""

    async def main() -> tuple[int, list[RequestRecord]]:
        async with serving(GOOD) as server, client_of(server) as client:
            records = await ask(client, "a", "b", "c")
            return server.connections, records

    connections, records = run(main())

    assert connections == 1
    assert records[0].connect_ns is not None
    assert records[0].sent_ns is not None
    assert 0 < records[0].connect_ns < records[0].sent_ns
    assert [one.connect_ns for one in records[1:]] == [None, None]
    assert {one.error_kind for one in records} == {None}


@pytest.mark.parametrize(
    "script",
    [
        Script(writes=[b"".join(until_close(*TOKENS, DONE))], end="eof"),
        Script(writes=until_close(*TOKENS), end="eof"),
        Script(writes=[STREAM_HEAD.replace(b"Transfer", b"Connection: close\r\nTransfer")
                       + b"".join(chunked(*TOKENS, DONE)[1:])], end="hang"),
    ],
)  # fmt: skip
def test_a_connection_that_the_server_ends_is_not_used_again(run: Run, script: Script) -> None:
    """Each answer is good, and the next request has a connection of its own."""

    async def main() -> tuple[int, list[RequestRecord], int]:
        async with serving(script) as server, client_of(server) as client:
            records = await ask(client, "a", "b")
            return server.connections, records, client.replaced_connections

    connections, records, replaced = run(main())

    assert [one.error_kind for one in records] == [None, None]
    assert (connections, replaced) == (2, 0)


def test_a_kept_connection_that_was_closed_meanwhile_is_noticed(run: Run) -> None:
    """Nothing is sent on it, so nothing has to be sent again."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord], int]:
        async with serving(GOOD) as server, client_of(server) as client:
            records = await ask(client, "a")
            server.close_idle()
            await asyncio.sleep(0.02)
            records += await ask(client, "b")
            return server, records, client.replaced_connections

    server, records, replaced = run(main())

    assert [one.error_kind for one in records] == [None, None]
    assert (len(server.bodies), replaced) == (2, 0)


@pytest.mark.parametrize("end", ["eof", "reset"])
def test_a_kept_connection_that_dies_under_a_request_is_replaced_once(run: Run, end: str) -> None:
    """Before one byte of an answer; counted, and timed from the first sending."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord], int]:
        dying = Script(end=end, first_after_s=0.01)
        async with (
            serving(lambda n: dying if n == 1 else GOOD) as server,
            client_of(server) as client,
        ):
            return server, await ask(client, "a", "b", "c"), client.replaced_connections

    server, records, replaced = run(main())

    assert [one.error_kind for one in records] == [None, None, None]
    assert (len(server.bodies), server.connections, replaced) == (4, 2, 1)
    sent_ns, first_byte_ns = records[1].sent_ns, records[1].first_byte_ns
    assert sent_ns is not None
    assert first_byte_ns is not None
    assert first_byte_ns - sent_ns > 8 * MS
    assert records[1].connect_ns is not None


def test_a_dead_server_refuses_each_request(run: Run) -> None:
    """The kept connections are lost with it, and new ones are refused."""

    async def main() -> tuple[int, list[RequestRecord]]:
        life = serving(GOOD)
        server = await life.__aenter__()
        async with client_of(server) as client:
            await client.connect(3)
            await life.__aexit__(None, None, None)
            records = await ask(client, "a", "b")
            return await client.connect(5), records

    opened, records = run(main())

    assert [one.error_kind for one in records] == ["connect_refused"] * 2
    assert all("ConnectionRefusedError" in (one.error or "") for one in records)
    assert opened == 0


def test_the_time_limit_keeps_its_name_and_the_tokens_before_it(run: Run) -> None:
    """The connection is closed at once, and the text names the limit."""

    async def main() -> tuple[RequestRecord, int]:
        script = Script(writes=[STREAM_HEAD, chunk(TOKENS[0]), chunk(TOKENS[1])], end="hang")
        async with (
            serving(script) as server,
            client_of(server, RequestOptions(timeout_s=0.05)) as client,
        ):
            [one] = await ask(client)
            await asyncio.sleep(0.01)
            return one, len(server.open)

    one, still_open = run(main())

    assert (one.error_kind, one.error) == ("timeout", "no end of the answer within 0.05 s")
    assert (len(one.token_events), one.output_tokens, still_open) == (2, None, 0)
    assert 40 * MS <= one.closed_ns - (one.sent_ns or 0) < 500 * MS


def test_a_limit_counts_connecting_too(run: Run) -> None:
    """A server whose queue is full never answers the handshake; the request ends all the same."""

    async def main() -> RequestRecord:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            stuck = [socket.socket() for _ in range(3)]
            try:
                for one in stuck:
                    one.setblocking(False)  # noqa: FBT003 - the standard library's own call
                    one.connect_ex(address)
                target = Target(url=f"http://127.0.0.1:{address[1]}", model="m")
                async with HttpClient(
                    target, MonotonicClock(), RequestOptions(timeout_s=0.05)
                ) as client:
                    return (await ask(client))[0]
            finally:
                for one in stuck:
                    one.close()

    one = run(main())

    assert (one.error_kind, one.sent_ns) == ("timeout", None)


def test_a_cancelled_request_leaves_no_connection(run: Run) -> None:
    """The cancellation passes through; what was in flight is closed, the client stays of use."""

    async def main() -> tuple[int, list[RequestRecord]]:
        hanging = Script(writes=[STREAM_HEAD, chunk(TOKENS[0])], end="hang")
        async with (
            serving(lambda n: hanging if n == 0 else GOOD) as server,
            client_of(server) as client,
        ):
            task = asyncio.create_task(client.send(a_request("a"), 0))
            await asyncio.sleep(0.03)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.01)
            return len(server.open), await ask(client, "b")

    still_open, [one] = run(main())

    assert (still_open, one.error_kind) == (0, None)


def test_an_interrupted_run_leaves_no_socket(run: Run) -> None:
    """Thirty streams in flight and ten idle connections: the fixture counts what is open after."""

    async def thirty(server: ScriptedServer) -> None:
        async with client_of(server) as client:
            await client.connect(40)
            await asyncio.gather(*(client.send(a_request(str(n)), 0) for n in range(30)))

    async def main() -> int:
        async with serving(Script(writes=[STREAM_HEAD], end="hang")) as server:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(thirty(server), 0.1)
            await asyncio.sleep(0.02)
            return len(server.open)

    assert run(main()) == 0


def test_there_is_no_limit_to_connections(run: Run) -> None:
    """Three hundred requests are with the server at once, though none was connected before."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord]]:
        script = Script(writes=GOOD.writes, first_after_s=0.5)
        async with serving(script) as server, client_of(server) as client:
            sent = await asyncio.gather(*(client.send(a_request(str(n)), 0) for n in range(300)))
            return server, client.settled(sent)

    server, records = run(main())

    assert {one.error_kind for one in records} == {None}
    assert server.most_at_once == 300


def test_idle_connections_are_replaced_before_servers_tire_of_them(run: Run) -> None:
    """They are closed and opened anew while nobody waits: a request finds a fresh one."""

    async def main() -> tuple[int, int, list[RequestRecord]]:
        async with serving(GOOD) as server, client_of(server, idle_limit_s=0.08) as client:
            await client.connect(2)
            await asyncio.sleep(0.2)
            before = server.connections
            return before, len(server.open), await ask(client, "a")

    opened, still_open, [one] = run(main())

    assert opened >= 4
    assert still_open == 2
    assert (one.error_kind, one.connect_ns) == (None, None)


def test_idle_connections_that_nobody_uses_are_closed_and_not_replaced(run: Run) -> None:
    """Of many opened for an open loop as many stay as its requests need, and some to spare."""

    async def main() -> tuple[int, int]:
        async with serving(GOOD) as server, client_of(server, idle_limit_s=0.08) as client:
            before = await client.connect(40)
            for _ in range(6):
                await ask(client, "a")
                await asyncio.sleep(0.05)
            opened = client.opened_connections
            await asyncio.sleep(0.4)
            return before, client.opened_connections - opened

    before, opened_again = run(main())

    assert before == 40
    assert (
        opened_again <= 6 * 10
    )  # of five rounds or so; all of the 40 would be opened again in each


def test_connections_that_a_server_drops_are_opened_again(run: Run) -> None:
    """A server that closes after each answer meets its next request with a ready connection."""

    async def main() -> tuple[int, list[RequestRecord]]:
        once = Script(writes=until_close(*TOKENS, DONE), end="eof")
        async with serving(once) as server, client_of(server, idle_limit_s=0.4) as client:
            await client.connect(1)
            records = await ask(client, "a")
            await asyncio.sleep(0.2)
            return server.connections, records + await ask(client, "b")

    connections, records = run(main())

    assert connections >= 2
    assert [(one.error_kind, one.connect_ns) for one in records] == [(None, None)] * 2


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    "answer", [GOOD.writes[0], b"".join(chunked(*TOKENS)), with_length(b"".join((*TOKENS, DONE)))]
)
def test_bytes_that_nobody_asked_for_end_a_kept_connection(
    run: Run, answer: bytes, apart: bool
) -> None:
    """They could be taken for the next answer: a server's farewell 408, read apart or together."""
    farewell = with_length(b"", "408 Request Timeout")

    async def main() -> list[RequestRecord]:
        twice = Script(writes=[answer, farewell] if apart else [answer + farewell])
        async with serving(lambda n: GOOD if n else twice) as server, client_of(server) as client:
            first = await ask(client, "a")
            await asyncio.sleep(0.03)
            return first + await ask(client, "b")

    records = run(main())

    assert [one.error_kind for one in records] == [None, None]
    assert records[1].connect_ns is not None
