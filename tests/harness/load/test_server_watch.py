"""A server that is gone ends a load; one that is slow, or back in time, does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from streams import DONE, chunked, token, usage_event

from harness.adapters.base import Target
from harness.cli import main
from harness.client.http.request_body import RequestOptions
from harness.load import server_watch
from harness.load.play import LoadResult, play_http
from harness.load.schedule import ClosedLoop, OpenLoop
from harness.load.server_watch import Patience
from harness.workloads.base import Conversation, Segment, Turn

ANSWER = b"".join(chunked(token("a"), token("b", finish="stop"), usage_event(2), DONE))
HEALTH = {
    "hang": None,
    "reset": b"",
    "503": b"HTTP/1.1 503 Dead\r\nContent-Length: 0\r\n\r\n",
    "500": b"HTTP/1.1 500 Dead\r\nContent-Length: 0\r\n\r\n",
    "200": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "401": b"HTTP/1.1 401 Who\r\nContent-Length: 0\r\n\r\n",
}


@dataclass
class _Server:
    """Answers `good` requests, then is silent (`freezes`) or closes its port for `away_s`."""

    good: int
    health: bytes | None = b""
    dies: bool = False
    away_s: float = 1e9
    half: bool = False  # the silent answers have begun
    port: int = 0
    answered: int = 0
    checks: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /health"):
            self.checks += 1
            if self.health is None:
                await reader.read()
            writer.write(self.health or b"")
            writer.close()
            return
        if head.startswith(b"GET"):
            writer.write(HEALTH["404"] or b"")
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        if self.answered < self.good:
            self.answered += 1
            writer.write(ANSWER)
        elif self.dies:
            await self._die()
        else:
            writer.write(ANSWER[:-60] if self.half else b"")
            await reader.read()

    async def _die(self) -> None:
        assert self.listener is not None
        self.listener.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(self.away_s)
        self.dies, self.good = False, 1 << 30
        await self.listen()

    async def listen(self) -> None:
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.listener.sockets[0].getsockname()[1]


@contextmanager
def running(server: _Server) -> Iterator[_Server]:
    """Run `server` in a thread of its own."""
    ready, loops, ended = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.listen()
        ready.set()
        await ended.wait()
        if server.listener is not None:
            server.listener.close()
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(10)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become tenths."""
    patience = Patience(unanswered_s=0.5, silent_s=0.6, health_s=0.3)
    monkeypatch.setattr(server_watch, "PATIENCE", patience)


def conversations(count: int) -> tuple[Conversation, ...]:
    """Conversations of one turn."""
    return tuple(
        Conversation(
            conversation_id=f"k{c}", turns=(Turn(prompt=(Segment(c, 8),), output_tokens=2),)
        )
        for c in range(count)
    )


def played(
    server: _Server,
    schedule: ClosedLoop | OpenLoop,
    count: int,
    *,
    workers: int = 1,
    timeout_s: float = 60.0,
    engine_pid: int | None = None,
) -> LoadResult:
    """Play so many requests on `server`."""
    target = Target(
        url=server.url, model="m", fields=frozenset({"include_usage"}), engine_pid=engine_pid
    )
    options = RequestOptions(timeout_s=timeout_s)
    return play_http(target, schedule, conversations(count), lambda _: None, options, workers)


@pytest.mark.parametrize(
    ("health", "workers", "half"),
    [("hang", 1, False), ("503", 1, True), ("500", 2, False), ("reset", 1, False)],
)
def test_a_frozen_server_ends_the_load(health: str, workers: int, half: bool) -> None:
    """Long before the time-out of a request; what was answered before is kept."""
    with running(_Server(good=10, health=HEALTH[health], half=half)) as server:
        begin_s = time.monotonic()
        result = played(server, ClosedLoop(concurrency=4), 40, workers=workers)
        took_s = time.monotonic() - begin_s

    assert result.gave_up is not None
    assert "frozen" in result.gave_up
    assert "/health" in result.gave_up
    assert "in flight were cut off" in result.gave_up
    assert [one.error_kind for one in result.records] == [None] * 10
    assert server.checks >= 2
    assert took_s < 20


@pytest.mark.parametrize("health", ["200", "404", "401"])
def test_a_silent_server_that_lives_is_waited_for(health: str) -> None:
    """Also one that has no such page: its requests end by their own time-out."""
    with running(_Server(good=4, health=HEALTH[health])) as server:
        result = played(server, ClosedLoop(concurrency=2), 6, timeout_s=2.0)

    assert result.gave_up is None
    assert sorted(str(one.error_kind) for one in result.records) == ["None"] * 4 + ["timeout"] * 2
    assert server.checks >= 1


def test_a_short_time_out_hides_no_silence() -> None:
    """Requests that end without a byte, one after the other, are silence too."""
    with running(_Server(good=3, health=None)) as server:
        result = played(server, ClosedLoop(concurrency=1), 200, timeout_s=0.1)

    assert result.gave_up is not None
    assert len(result.records) < 100


def test_an_idle_server_is_not_silent() -> None:
    """Between two requests of an open loop there is nothing to answer."""
    with running(_Server(good=3, health=None)) as server:
        schedule = OpenLoop(starts_ns=(0, 1_500_000_000, 3_000_000_000))
        result = played(server, schedule, 3)

    assert (result.gave_up, server.checks) == (None, 0)


def test_an_engine_whose_process_has_ended_is_dead_whatever_health_says() -> None:
    """Its page may be served by a process that is left."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with running(_Server(good=1, health=HEALTH["200"])) as server:
        result = played(server, ClosedLoop(concurrency=1), 3, engine_pid=ended.pid)

    assert "its process has ended" in (result.gave_up or "")


@pytest.mark.parametrize(("good", "workers"), [(10, 1), (0, 1), (20, 2)])
def test_a_server_that_dies_ends_the_load(good: int, workers: int) -> None:
    """Refused connections and no answer: the rest of the schedule is not sent."""
    schedule = OpenLoop(starts_ns=tuple(10_000_000 * n for n in range(3000)))
    with running(_Server(good=good, dies=True)) as server:
        result = played(server, schedule, 3000, workers=workers)

    assert "connections in a row failed (connect_refused)" in (result.gave_up or "")
    assert sum(one.error_kind is None for one in result.records) == good
    assert len(result.records) < 1500


def test_a_server_that_is_back_in_time_is_loaded_to_the_end() -> None:
    """Many refused connections, but for a moment only."""
    schedule = OpenLoop(starts_ns=tuple(5_000_000 * n for n in range(200)))
    with running(_Server(good=10, dies=True, away_s=0.2)) as server:
        result = played(server, schedule, 200)

    assert result.gave_up is None
    kinds = [one.error_kind for one in result.records]
    assert kinds.count("connect_refused") >= 20
    assert kinds[-1] is None


@pytest.mark.parametrize("dies", [True, False])
def test_a_load_stores_what_it_measured_and_gives_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, dies: bool
) -> None:
    """Exit code 1, one line with the reason, and a folder that can be reported on."""
    with running(_Server(good=30, health=None, dies=dies)) as server:
        words = ["load", server.url, "--model", "m", "--output-tokens", "2", "--out"]
        traffic = ["--rate", "100", "--duration", "20 s", "--arrivals", "constant"]
        code = main([*words, str(tmp_path / "o"), *traffic])
    printed = capsys.readouterr().err

    assert code == 1
    reason = next(line for line in printed.splitlines() if line.startswith("failed: "))
    assert ("the server is gone" if dies else "the server is frozen") in reason
    assert "of 2000 requests had ended" in reason
    assert "Traceback" not in printed
    assert main(["report", str(tmp_path / "o")]) == 1
