"""The embedded engine over HTTP with vLLM's routes."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from served import MODEL, Served, events, served_settings, with_server

from harness.adapters.base import EngineError
from harness.adapters.embedded.adapter import VERSION
from harness.adapters.embedded.server.server import fine_loop, running_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USAGE = {"include_usage": True, "continuous_usage_stats": True}
HELLO = [{"role": "user", "content": "hello there"}]


def test_the_server_reports_that_it_is_simulated() -> None:
    """The server is healthy, has one model with its context length, and reports `simulated`."""

    async def main(served: Served) -> None:
        assert await served.get("/health") == (200, "")
        _, version = await served.get("/version")
        assert json.loads(version) == {
            "version": VERSION,
            "engine": "embedded",
            "kind": "simulated",
        }
        _, models = await served.get("/v1/models")
        (model,) = json.loads(models)["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 2048)
        assert "simulated" in model["owned_by"]
        _, metrics = await served.get("/metrics")
        assert metrics.startswith("# simulated")

    with_server(main)


def test_streamed_and_whole_completions_have_the_same_output() -> None:
    """The same prompt always gives the same ids, streamed or not."""

    async def main(served: Served) -> None:
        fields = {"model": MODEL, "prompt": list(range(2000, 2040)), "max_tokens": 12}

        streamed = await served.stream(COMPLETIONS, **fields, stream_options=USAGE)
        _, whole = await served.post(COMPLETIONS, **fields)

        *tokens, usage, done = streamed
        assert done == "[DONE]"
        assert len(tokens) == 12
        texts = [event["choices"][0]["text"] for event in tokens]
        assert "".join(texts) == whole["choices"][0]["text"]
        assert len(set(texts)) > 6
        assert [event["usage"]["completion_tokens"] for event in tokens] == list(range(1, 13))
        assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 12
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
        assert "simulated" in whole["system_fingerprint"]

    with_server(main)


def test_the_next_turn_of_a_chat_finds_its_history_cached() -> None:
    """Turn two contains the answer of turn one as text, and only new tokens are computed."""

    async def main(served: Served) -> None:
        first = [{"role": "user", "content": "a long question " * 20}]
        _, answer = await served.post(CHAT, messages=first, max_tokens=40)
        more = [*first, answer["choices"][0]["message"], {"role": "user", "content": "and then"}]

        _, again = await served.post(CHAT, messages=more, max_tokens=5)

        before = answer["usage"]["total_tokens"]
        assert again["usage"]["prompt_tokens"] == before + 4
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (before - 1) // 16 * 16  # the newest token has no KV yet

    with_server(main)


def test_a_chat_streams_a_role_first() -> None:
    """A chat stream has an event without content, then the tokens."""

    async def main(served: Served) -> None:
        opening, *tokens, done = await served.stream(CHAT, messages=HELLO, max_tokens=3)

        assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len(tokens) == 3
        assert all(event["choices"][0]["delta"]["content"].startswith(" t") for event in tokens)
        assert tokens[-1]["choices"][0]["finish_reason"] == "length"
        assert done == "[DONE]"

    with_server(main)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (COMPLETIONS, b"{", 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": []}', 400, "BadRequestError"),
        (CHAT, b'{"messages": []}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": [1], "max_tokens": 4000}', 400, "BadRequestError"),
        (COMPLETIONS, b'{"prompt": [1], "model": "other"}', 404, "NotFoundError"),
        ("/v1/embeddings", b"{}", 404, "NotFoundError"),
        ("/version", b"{}", 405, "BadRequestError"),
    ],
)
def test_refusals_have_the_form_of_the_api(path: str, body: bytes, status: int, kind: str) -> None:
    """An error has a status and JSON with message, type, param and code."""

    async def main(served: Served) -> None:
        async with served.session.post(served.url + path, data=body) as response:
            answer = await response.json()
            assert response.status == status
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["message"]
        assert (answer["error"]["type"], answer["error"]["code"]) == (kind, status)
        assert await served.metric("vllm:prompt_tokens_total") == 0

    with_server(main)


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_blocks(*, stream: bool) -> None:
    """The blocks are freed long before the output would end; the gauges show the request before."""

    async def main(served: Served) -> None:
        engine = served.server.engine
        fields = {"prompt": list(range(200)), "max_tokens": 1800, "stream": stream}
        asking = asyncio.create_task(served.post(COMPLETIONS, **fields))
        await served.until(lambda: engine.core.computed_prompt_tokens > 0)
        await asyncio.sleep(0.03)
        assert await served.metric("vllm:num_requests_running") == 1
        assert await served.metric("vllm:kv_cache_usage_perc") > 0
        assert engine.core.scheduler.kv.references.any()

        asking.cancel()
        await served.until(lambda: not engine.busy)

        assert not engine.core.scheduler.kv.references.any()
        assert engine.stats.aborted == 1
        ended = (
            f'vllm:request_success_total{{engine="0",finished_reason="abort",model_name="{MODEL}"}}'
        )
        assert (await served.metrics())[ended] == 1
        assert await served.metric("vllm:num_requests_running") == 0

    with_server(main)


def test_requests_beyond_the_limit_wait() -> None:
    """With a limit of one sequence, the second request waits and is served after the first."""

    async def main(served: Served) -> None:
        first = asyncio.create_task(served.post(COMPLETIONS, prompt=[1], max_tokens=15))
        await served.until(lambda: served.server.engine.running == 1)
        second = asyncio.create_task(served.post(COMPLETIONS, prompt=[2], max_tokens=2))
        await served.until(lambda: served.server.engine.waiting == 1)
        assert await served.metric("vllm:num_requests_waiting") == 1

        await second
        assert first.done()

    with_server(main, served_settings(batching="none"))


def test_an_http_1_0_client_gets_its_stream_without_chunks() -> None:
    """HTTP/1.0 has no chunked encoding, so the connection closes after the last event."""

    async def main(served: Served) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(
            {"model": MODEL, "prompt": [1, 2], "max_tokens": 3, "stream": True}
        ).encode()
        head = f"POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

        answer = await reader.read()

        writer.close()
        headers, _, data = answer.partition(b"\r\n\r\n")
        assert b"chunked" not in headers.lower()
        assert len(events(data)) == 4

    with_server(main)


def test_one_connection_serves_many_requests() -> None:
    """The connection stays open after streams, whole responses and errors."""

    async def main(served: Served) -> None:
        connector = aiohttp.TCPConnector(limit=1)
        made = 0

        async def count(*_: object) -> None:
            nonlocal made
            made += 1

        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_end.append(count)
        async with aiohttp.ClientSession(connector=connector, trace_configs=[tracing]) as session:
            one = Served(served.server, session)
            for _ in range(3):
                assert len(await one.stream(COMPLETIONS, prompt=[1], max_tokens=2)) == 3
                assert (await one.post(COMPLETIONS, prompt=[1], max_tokens=1))[0] == 200
                assert (await one.post(COMPLETIONS, prompt=[]))[0] == 400
        assert made == 1

    with_server(main)


def test_no_step_waits_for_other_requests() -> None:
    """Other routes, errors and incomplete requests of disconnected clients end the wait."""

    async def main(served: Served) -> None:
        expected = served.server.engine._expected
        for path in ("/metrics", "/nowhere"):
            await served.get(path)
            assert expected == {}
        await served.post(COMPLETIONS, prompt=[])
        assert expected == {}
        await served.post(COMPLETIONS, prompt=[1], max_tokens=1)
        assert expected == {}

        host, port = served.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n".encode()
        )
        await served.until(lambda: len(expected) == 1)
        writer.close()
        await served.until(lambda: expected == {})

    with_server(main)


@pytest.mark.alone
def test_a_request_starts_when_its_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP processing of 40 ms does not count: the first step starts in the past."""
    read = web.Request.read

    async def slowly(request: web.Request) -> bytes:
        body = await read(request)
        time.sleep(0.04)  # noqa: ASYNC251 - slows the loop on purpose
        return body

    async def main(served: Served) -> None:
        begun = time.monotonic()
        await served.post(COMPLETIONS, prompt=[1], max_tokens=20)

        took_s = time.monotonic() - begun
        # 20 steps take longer than 40 ms, so the server catches up before the end.
        assert took_s < 0.04 + await served.metric("vllm:e2e_request_latency_seconds_sum")

    monkeypatch.setattr(web.Request, "read", slowly)
    with_server(main)


def test_a_prompt_of_a_megabyte_is_accepted() -> None:
    """The default limit of the HTTP library does not apply."""

    async def main(served: Served) -> None:
        prompt = [100_000 + number % 9 for number in range(130_000)]
        status, answer = await served.post(COMPLETIONS, prompt=prompt, max_tokens=1)
        assert status == 400
        assert "contains 130000 input tokens" in answer["error"]["message"]

    with_server(main)


def test_stopping_ends_open_streams_with_an_error() -> None:
    """An open stream ends with an error event; a whole response is a 503."""

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with running_server(served_settings()) as server:
                served = Served(server, session)
                fields = {"prompt": [1], "max_tokens": 1000}
                stream = asyncio.create_task(served.stream(COMPLETIONS, **fields))
                whole = asyncio.create_task(served.post(COMPLETIONS, **fields))
                await served.until(lambda: server.engine.running == 2)
                await asyncio.sleep(0.03)
            *tokens, error, done = await stream
            status, body = await whole
        assert 0 < len(tokens) < 1000
        assert done == "[DONE]"
        assert error == body
        assert error["error"]["code"] == status == 503
        assert "stopped" in error["error"]["message"]

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        runner.run(main())


def test_a_bug_in_the_engine_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open requests get an error, /health returns 503, and the bug is raised with its type."""

    async def main() -> None:
        async with aiohttp.ClientSession() as session, running_server(served_settings()) as server:
            served = Served(server, session)
            monkeypatch.setattr(server.engine.core, "catch_up", lambda: 1 // 0)
            status, body = await served.post(COMPLETIONS, prompt=[1])
            assert (status, body["error"]["code"]) == (503, 503)
            await asyncio.wait([server.stepping])
            assert (await served.get("/health"))[0] == 503
            assert (await served.post(COMPLETIONS, prompt=[1], stream=True))[0] == 503

    with asyncio.Runner(loop_factory=fine_loop) as runner, pytest.raises(ZeroDivisionError):
        runner.run(main())


def test_a_start_failure_has_a_clear_error() -> None:
    """A port in use and settings that do not fit raise `EngineError`."""

    async def main() -> None:
        async with running_server(served_settings()) as server:
            port = int(server.url.rpartition(":")[2])
            with pytest.raises(EngineError, match=f"port {port}: the port is in use") as e:
                async with running_server(served_settings(), "127.0.0.1", port):
                    pass
            assert "--port" in e.value.__notes__[0]
        with pytest.raises(EngineError, match=r"cannot listen on 192\.0\.2\.1 port 80"):
            async with running_server(served_settings(), "192.0.2.1", 80):
                pass
        with pytest.raises(EngineError, match="port 70000"):
            async with running_server(served_settings(), "127.0.0.1", 70000):
                pass
        with pytest.raises(EngineError, match="max_model_len"):
            async with running_server(served_settings(max_model_len=10**6)):
                pass

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        runner.run(main())


def test_many_concurrent_streams_get_their_own_output() -> None:
    """Each of 60 streams on 60 connections gets its complete output, the same as alone."""

    async def main(served: Served) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            many = Served(served.server, session)
            fields = [{"prompt": [number, 5, 6], "max_tokens": 60} for number in range(60)]
            streams = await asyncio.gather(*(many.stream(COMPLETIONS, **one) for one in fields))
        texts = [
            "".join(event["choices"][0]["text"] for event in stream[:-1]) for stream in streams
        ]
        for number in (0, 31, 59):
            _, alone = await served.post(COMPLETIONS, **fields[number])
            assert texts[number] == alone["choices"][0]["text"]
        assert len(set(texts)) == 60
        peak = served.server.engine.counters().peak_running
        assert peak is not None
        assert peak > 20
        assert not np.any(served.server.engine.core.scheduler.kv.references)

    with_server(main)
