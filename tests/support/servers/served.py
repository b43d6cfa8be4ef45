"""A served embedded engine in the test's own loop, with steps of a few milliseconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.embedded.server.server import RunningServer, fine_loop, running_server

MODEL = "llama-3-8b"
CERTAIN = ToggleValue("ngram", (("tokens", 3), ("acceptance", 1.0)))


def served_settings(
    *, gpu: str = "h200", max_model_len: int = 2048, **toggles: str | ToggleValue
) -> EngineSettings:
    values = {
        name: value if isinstance(value, ToggleValue) else ToggleValue(value)
        for name, value in toggles.items()
    }
    return EngineSettings(
        model=MODEL,
        gpu=gpu,
        gpu_count=1,
        max_model_len=max_model_len,
        toggles={**BASELINE, "tensor_parallel": ToggleValue("1"), **values},
    )


class Served:
    """Asks the server over real HTTP."""

    def __init__(self, server: RunningServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = server.url
        self.session = session

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        asked = {"model": MODEL, **fields}
        async with self.session.post(self.url + path, json=asked) as response:
            return response.status, json.loads(await response.read())

    async def stream(self, path: str, **fields: Any) -> list[Any]:
        """Return the events of a stream; `[DONE]` as a text."""
        asked = {"model": MODEL, **fields, "stream": True}
        async with self.session.post(self.url + path, json=asked) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            return events(await response.read())

    async def metrics(self) -> dict[str, float]:
        """Return name and labels of each sample → value."""
        status, text = await self.get("/metrics")
        assert status == 200
        return samples(text)

    async def metric(self, name: str) -> float:
        """Return the sample with the two labels that all have."""
        return (await self.metrics())[f'{name}{{engine="0",model_name="{MODEL}"}}']

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return once the engine is so far; the test fails when it never is."""
        async with asyncio.timeout(10):
            while not reached():  # noqa: ASYNC110 - a test looks from outside
                await asyncio.sleep(0.002)


def events(raw: bytes) -> list[Any]:
    pieces = raw.removesuffix(b"\n\n").split(b"\n\n")
    assert all(piece.startswith(b"data: ") for piece in pieces)
    return ["[DONE]" if piece.endswith(b"[DONE]") else json.loads(piece[6:]) for piece in pieces]


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def with_server(
    main: Callable[[Served], Awaitable[None]], settings: EngineSettings | None = None
) -> None:
    """Run `main` with a server of `settings`, and stop it."""

    async def run() -> None:
        async with (
            running_server(settings or served_settings()) as server,
            aiohttp.ClientSession() as session,
        ):
            await main(Served(server, session))

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        runner.run(run())
