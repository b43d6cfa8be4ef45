"""An answer without an end costs its own request, and neither the memory nor the other requests."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import replace

import pytest
from http_asking import GOOD, TOKENS, Run, on_each_loop
from scripted_server import Script, ScriptedServer, serving
from streams import DONE, STREAM_HEAD, a_request, chunk, chunked, with_length

from harness.adapters.base import Target
from harness.client.http import connection
from harness.client.http.aiohttp_client import AiohttpClient
from harness.client.http.client import HttpClient
from harness.client.http.http1 import BodyEnd, NotHttpError, chunk_size, read_head
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock

pytestmark = pytest.mark.alone
run = pytest.fixture(params=["uvloop"])(on_each_loop)
LIMIT = 1 << 18
PIECE = b"x" * 4096
Both = HttpClient | AiohttpClient
CHUNKED_HEAD = STREAM_HEAD
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
FAILED_HEAD = b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"


@pytest.fixture(params=[HttpClient, AiohttpClient])
def client_of(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[ScriptedServer], Both]:
    """Each client, with an answer limited to 256 KiB."""
    monkeypatch.setattr(connection, "_MOST_BYTES", LIMIT)
    monkeypatch.setattr(connection, "_MOST_TOKEN_BYTES", 1 << 12)
    kind = request.param

    def made(server: ScriptedServer) -> Both:
        client: Both = kind(Target(url=server.url, model="m"), MonotonicClock())
        return client

    return made


def endless(head: bytes, piece: bytes, *, many: int = 200) -> Script:
    """An answer of `head`, then `piece` again and again, at most 200 times."""
    return Script(writes=[head, *[piece] * many], end="hang", pause_s=0)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (endless(CHUNKED_HEAD + chunk(b"data: "), chunk(PIECE)), "too_long"),
        (endless(CHUNKED_HEAD, chunk(TOKENS[0] * 20)), "too_long"),
        (endless(CHUNKED_HEAD, chunk(b": ping\n\n" * 400)), "too_long"),
        (endless(CHUNKED_HEAD, chunk(b'data: {"choices":[' + b"[" * 4000)), "too_long"),
        (endless(PLAIN_HEAD + b'{"choices":[{"text":"', PIECE), "too_long"),
        (endless(LONG_HEAD, PIECE), "too_long"),
        (endless(FAILED_HEAD, chunk(PIECE)), "http_500"),
        (endless(b"HTTP/1.1 200 OK\r\nX: ", PIECE), "bad_body"),
    ],
)
def test_an_answer_without_end_fails_by_its_limit(
    run: Run, client_of: Callable[[ScriptedServer], Both], script: Script, kind: str
) -> None:
    """It fails within seconds, and the request after it is answered."""

    async def main() -> list[RequestRecord]:
        scripts = [script, GOOD]
        async with serving(lambda n: scripts[n]) as server, client_of(server) as client:
            async with asyncio.timeout(10):
                ended = [await client.send(a_request(name), 0) for name in "ab"]
            assert client._budget.free_bytes == 2 << 30
            return client.settled(ended)

    endless_one, good = run(main())

    assert (endless_one.error_kind, good.error_kind) == (kind, None)
    if kind == "too_long":
        assert endless_one.error == "the answer is longer than 0 MiB"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [(b"", b"0" * 4096), (b"5;", PIECE), (b"5", b" " * 512)],
)
def test_a_chunk_line_without_end_is_refused_early(
    run: Run, client_of: Callable[[ScriptedServer], Both], begin: bytes, piece: bytes
) -> None:
    """It is no HTTP, whatever the line is made of."""
    many = (40 << 10) // len(piece)
    script = endless(STREAM_HEAD + chunk(TOKENS[0]) + begin, piece, many=min(many, 20_000))

    async def main() -> list[RequestRecord]:
        async with serving(replace(script, end="eof")) as server, client_of(server) as client:
            async with asyncio.timeout(20):
                return client.settled([await client.send(a_request("a"), 0)])

    [one] = run(main())

    assert one.error_kind in {"bad_body", "truncated"}
    assert one.error


@pytest.mark.parametrize("line", [b"0" * 20_000, b"1;" + b"x" * 20_000, b"f" + b" " * 20_000])
def test_the_framing_keeps_no_long_line(line: bytes) -> None:
    """Neither while it comes in pieces, nor as a whole."""
    head = read_head(STREAM_HEAD)
    assert head is not None
    end = BodyEnd(head)

    pieces = (line[at : at + 100] for at in range(0, len(line), 100))
    with pytest.raises(NotHttpError, match="no end"):
        list(map(end.feed, pieces))
    with pytest.raises(NotHttpError, match="no end"):
        chunk_size(line)


def test_more_requested_tokens_may_bring_more_bytes(
    run: Run, client_of: Callable[[ScriptedServer], Both]
) -> None:
    """The limit grows with the requested tokens: one size fails for few and passes for many."""
    body = chunked(*[TOKENS[0] * 10] * 800, TOKENS[-1], DONE)

    async def main() -> list[RequestRecord]:
        script = Script(writes=body, pause_s=0)
        async with serving(script) as server, client_of(server) as client:
            requests = [
                replace(a_request(str(tokens)), output_tokens=tokens) for tokens in (1, 4000)
            ]
            return client.settled([await client.send(one, 0) for one in requests])

    assert len(b"".join(body)) > LIMIT
    assert [one.error_kind for one in run(main())] == ["too_long", None]


def test_answers_in_flight_are_bounded_together(
    run: Run, client_of: Callable[[ScriptedServer], Both]
) -> None:
    """Each alone is within its limit; what does not fit with the others fails, and all is freed."""
    script = Script(writes=chunked(*[TOKENS[0] * 300] * 4, TOKENS[-1], DONE), pause_s=0.05)

    async def main() -> tuple[list[RequestRecord], int]:
        async with serving(script) as server, client_of(server) as client:
            client._budget.free_bytes = LIMIT
            sending = [client.send(a_request(str(number)), 0) for number in range(4)]
            records = client.settled(await asyncio.gather(*sending))
            return records, client._budget.free_bytes

    records, free_bytes = run(main())

    kinds = [one.error_kind for one in records]
    assert "too_long" in kinds
    assert None in kinds
    assert free_bytes == LIMIT


@pytest.mark.parametrize("coding", ["gzip", "GZip", "br", "x-unknown"])
@pytest.mark.parametrize("status", ["200 OK", "503 Busy"])
def test_a_packed_answer_is_refused_unopened(
    run: Run, client_of: Callable[[ScriptedServer], Both], coding: str, status: str
) -> None:
    """No codec runs: a small body may unpack to any size. The reason names the coding."""
    plain = with_length(gzip.compress(b"data: " + b"x" * (1 << 20)), status)
    packed = plain.replace(b"\r\n\r\n", b"\r\nContent-Encoding: %b\r\n\r\n" % coding.encode(), 1)

    async def main() -> list[RequestRecord]:
        async with serving(Script(writes=[packed])) as server, client_of(server) as client:
            return client.settled([await client.send(a_request("a"), 0)])

    [one] = run(main())

    assert one.error_kind == ("bad_body" if status == "200 OK" else "http_503")
    assert f"Content-Encoding {coding}" in (one.error or "")
