"""Over TLS and proxies the same records come out of aiohttp, and say so."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from http_asking import GOOD, TOKENS, Run, ask, on_each_loop
from scripted_server import Script, ScriptedServer, serving
from streams import DONE, MS, STREAM_HEAD, a_request, chunk, chunked, with_length

from harness.adapters.base import Target
from harness.client.http.aiohttp_client import AiohttpClient
from harness.client.http.client import HttpClient
from harness.client.http.request_body import RequestOptions
from harness.client.reach import client_for
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock

pytestmark = pytest.mark.alone
run = pytest.fixture(params=["uvloop"])(on_each_loop)


def client_of(server: ScriptedServer, asking: RequestOptions | None = None) -> AiohttpClient:
    """A client of this server through aiohttp."""
    return AiohttpClient(Target(url=server.url, model="m"), MonotonicClock(), asking)


def test_records_are_those_of_the_own_client(run: Run) -> None:
    """Ids, counts, token events with their own times; the connection is kept for the next."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord]]:
        script = Script(writes=chunked(*TOKENS, DONE))
        async with serving(script) as server, client_of(server) as client:
            client.prepare([a_request("a")])
            return server, await ask(client, "a", "b")

    server, records = run(main())

    assert server.connections == 1
    assert server.bodies[0] == server.bodies[1]
    for one in records:
        assert (one.error_kind, one.output_tokens, one.finish_reason) == (None, 3, "stop")
        times = [one.sent_ns, one.first_byte_ns, *one.token_events[:, 0].tolist(), one.closed_ns]
        assert times == sorted(set(times))
        assert one.token_events[1, 0] - one.token_events[0, 0] > 2 * MS
    assert records[0].connect_ns is not None
    assert records[1].connect_ns is None


@pytest.mark.parametrize(
    ("script", "kind", "tokens"),
    [
        (Script(writes=[with_length(b'{"error":"slow"}', "429 X")]), "http_429", 0),
        (Script(writes=[with_length(b"", "307 Moved")]), "http_307", 0),
        (Script(end="eof"), "connection_reset", 0),
        (Script(end="reset"), "connection_reset", 0),
        (Script(writes=[STREAM_HEAD, chunk(TOKENS[0])], end="eof"), "truncated", 1),
        (Script(writes=[STREAM_HEAD, chunk(TOKENS[0])], end="reset"), "connection_reset", 1),
        (Script(writes=chunked(*TOKENS, DONE)[:-1], end="eof"), None, 3),
        (Script(writes=[b"SSH-2.0-x\r\n"], end="eof"), "bad_body", 0),
        (Script(writes=[with_length(b"<html>")]), "bad_body", 0),
    ],
)
def test_failures_have_the_same_kinds(
    run: Run, script: Script, kind: str | None, tokens: int
) -> None:
    """Whatever aiohttp raises for them; each is asked once."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord]]:
        async with serving(script) as server, client_of(server) as client:
            return server, await ask(client, "a")

    server, [one] = run(main())

    assert (one.error_kind, len(one.token_events)) == (kind, tokens)
    assert (kind is None) == (one.error is None)
    assert len(server.bodies) == 1


def test_a_kept_connection_that_dies_under_a_request_is_replaced_once(run: Run) -> None:
    """As with the own client."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord], int]:
        dying = Script(end="eof", first_after_s=0.01)
        answers = [GOOD, dying, GOOD]
        async with serving(answers.__getitem__) as server, client_of(server) as client:
            return server, await ask(client, "a", "b"), client.replaced_connections

    server, records, replaced = run(main())

    assert [one.error_kind for one in records] == [None, None]
    assert (len(server.bodies), replaced) == (3, 1)
    first_byte_ns, sent_ns = records[1].first_byte_ns, records[1].sent_ns
    assert first_byte_ns is not None
    assert sent_ns is not None
    assert first_byte_ns - sent_ns > 8 * MS


def test_limits_and_refusals_keep_their_names(run: Run) -> None:
    """A time limit with the tokens before it, and a port where nobody listens."""

    async def main() -> list[RequestRecord]:
        hanging = Script(writes=[STREAM_HEAD, chunk(TOKENS[0])], end="hang")
        limited = RequestOptions(timeout_s=0.05)
        async with serving(hanging) as server, client_of(server, limited) as client:
            records = await ask(client, "a")
        async with client_of(server) as client:
            return records + await ask(client, "b")

    late, refused = run(main())

    assert (late.error_kind, len(late.token_events)) == ("timeout", 1)
    assert late.error == "no end of the answer within 0.05 s"
    assert (refused.error_kind, refused.sent_ns) == ("connect_refused", None)


def test_tls_is_spoken_and_checked(run: Run, certificate: Path) -> None:
    """With the server's authority known the record is good; without, it fails as `tls`."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))

    async def main() -> list[RequestRecord]:
        async with serving(GOOD, tls) as server:
            target = Target(url=server.url.replace("http:", "https:"), model="m")
            async with AiohttpClient(target, MonotonicClock(), tls=trusting) as client:
                records = await ask(client, "a")
            async with client_for(target, MonotonicClock()) as doubting:
                assert "TLS" in (doubting.about or "")
                return records + await ask(doubting, "b")

    good, doubted = run(main())

    assert (good.error_kind, good.output_tokens) == (None, 3)
    assert (doubted.error_kind, doubted.sent_ns) == ("tls", None)


@pytest.mark.parametrize(
    ("url", "proxies", "client", "about"),
    [
        ("http://server:80", {}, HttpClient, None),
        ("https://server", {}, AiohttpClient, "TLS"),
        ("http://server:80", {"http_proxy": "http://p:1"}, AiohttpClient, "a proxy"),
        ("http://server:80", {"https_proxy": "http://p:1"}, HttpClient, None),
        ("http://server:80", {"http_proxy": "http://p:1", "no_proxy": "server"}, HttpClient, None),
        ("http://127.0.0.1:80", {"http_proxy": "http://p:1"}, HttpClient, None),
        ("http://localhost:80", {"http_proxy": "http://p:1"}, HttpClient, None),
        ("http://[::1]:80", {"http_proxy": "http://p:1"}, HttpClient, None),
    ],
)
def test_the_own_client_goes_wherever_it_can(
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    proxies: dict[str, str],
    client: type,
    about: str | None,
) -> None:
    """Aiohttp only for TLS and where a proxy is named; never a proxy to reach this machine."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)

    async def main() -> HttpClient | AiohttpClient:
        return client_for(Target(url=url, model="m"), MonotonicClock())

    chosen = asyncio.run(main())

    assert type(chosen) is client
    assert (about or "") in (chosen.about or "")


def test_a_proxy_of_the_environment_is_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to the proxy with the whole URL, for a host that no name service knows."""

    async def main() -> tuple[ScriptedServer, list[RequestRecord]]:
        async with serving(GOOD) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            target = Target(url="http://server.invalid:8000", model="m")
            async with client_for(target, MonotonicClock()) as client:
                return proxy, await ask(client, "a")

    proxy, [one] = run(main())

    assert one.error_kind is None
    assert proxy.heads[0].startswith("POST http://server.invalid:8000/v1/completions HTTP/1.1")


def test_a_proxy_that_is_gone_is_named_in_each_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be well; the kind is that of the connection."""

    async def main() -> list[RequestRecord]:
        async with serving(GOOD) as gone:
            monkeypatch.setenv("http_proxy", gone.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        target = Target(url="http://server.invalid:8000", model="m")
        async with client_for(target, MonotonicClock()) as client:
            return await ask(client, "a")

    [one] = run(main())

    assert one.error_kind == "connect_refused"
    assert (one.error or "").startswith("the proxy did not answer: ")
