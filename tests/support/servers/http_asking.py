"""Send requests to a scripted server with the project's HTTP client, on each kind of loop."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from scripted_server import Script, ScriptedServer
from streams import DONE, a_request, chunked, token

from harness.adapters.base import Target
from harness.client.http.aiohttp_client import AiohttpClient
from harness.client.http.client import HttpClient
from harness.client.http.request_body import RequestOptions
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock

TOKENS = (token("a"), token("b"), token("c", finish="stop"))
GOOD = Script(writes=[b"".join(chunked(*TOKENS, DONE))])
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def on_each_loop(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on the loop that is the parameter; afterwards no socket is open."""
    before = sockets()

    def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(coroutine, 20))

    yield on_loop
    gc.collect()  # a socket that was forgotten warns, and warnings are errors
    assert sockets() == before


def sockets() -> int:
    """Open sockets of this process."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names vanish
    return sum("socket:" in str(link.readlink()) for link in links if link.is_symlink())


def client_of(
    server: ScriptedServer, asking: RequestOptions | None = None, **options: Any
) -> HttpClient:
    """A client of this server, on a clock of its own."""
    target = Target(url=server.url, model="m", fields=frozenset({"include_usage"}))
    return HttpClient(target, MonotonicClock(), asking, **options)


async def ask(client: HttpClient | AiohttpClient, *names: str) -> list[RequestRecord]:
    """The settled records of requests that are sent one after the other."""
    sent = [await client.send(a_request(name), 0) for name in names or ("one",)]
    return client.settled(sent)
