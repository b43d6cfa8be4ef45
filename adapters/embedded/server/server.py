"""Start the embedded engine as an OpenAI-compatible HTTP server in real time."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import select
import selectors
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from harness.adapters.base import EngineError, EngineSettings
from harness.adapters.embedded.adapter import VERSION, EmbeddedEndpoint, step_time
from harness.adapters.embedded.server.http_api import Api
from harness.adapters.embedded.server.openai_requests import ServedModel
from harness.adapters.embedded.server.prometheus import MetricsPage, cache_info
from harness.adapters.embedded.server.reads import Reads
from harness.adapters.embedded.server.real_time import RealTimeEngine
from harness.adapters.embedded.step_time import find_model

_MOST_BODY_BYTES = 256 * 1024 * 1024
_BACKLOG = 4096  # connections that may wait to be accepted
_NO_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_STOP_S = 2.0  # time for clients to read the end of their streams
# After the end of a response the client can send its next request for this long and still join the
# started step. A fast client and two sockets take 0.5 ms.
_TURNAROUND_NS = 2_000_000


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        """A selector that waits for epoll with `select`, which has a finer timeout than 1 ms."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

else:
    _FineSelector = selectors.DefaultSelector  # kqueue has nanosecond timeouts


def fine_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are at most 0.1 ms late (epoll: 1 ms)."""
    return asyncio.SelectorEventLoop(_FineSelector())


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that accepts requests, and its engine."""

    url: str  # scheme, host and port
    engine: RealTimeEngine
    stepping: asyncio.Task[None]  # ends before the server stops only after a bug


def serve(settings: EngineSettings, host: str, port: int, *, ready: Callable[[str], None]) -> None:
    """Serve `settings` until SIGINT, SIGTERM or SIGHUP, then end open streams with an error.

    Calls `ready` with a line for the terminal when the server accepts requests. Port 0 selects a
    free port. Must run in the main thread. Raises `EngineError` for settings that do not fit or a
    port that is in use.
    """
    with asyncio.Runner(loop_factory=fine_loop) as runner:
        runner.run(_serve_until_signal(settings, host, port, ready))


async def _serve_until_signal(
    settings: EngineSettings, host: str, port: int, ready: Callable[[str], None]
) -> None:
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_TooManyFiles().take)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, signalled.set)
    async with running_server(settings, host, port) as server:
        gc.collect()
        gc.freeze()  # excludes existing objects from later collections between steps
        ready(f"embedded engine (simulated) serves {settings.model} at {server.url}")
        stop = asyncio.ensure_future(signalled.wait())
        await asyncio.wait([stop, server.stepping], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()


@asynccontextmanager
async def running_server(
    settings: EngineSettings, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[RunningServer]:
    """Serve `settings` inside the context, in the running loop (preferably from `fine_loop`).

    Raises `EngineError` in the same cases as `serve`.
    """
    endpoint = EmbeddedEndpoint(settings)
    half_step_ns = int(step_time(settings).decode_line(1)[0] * 1e9) // 2  # of the shortest step
    engine = RealTimeEngine(
        endpoint.core,
        turnaround_ns=min(_TURNAROUND_NS, half_step_ns),
        patience_ns=half_step_ns,
    )
    api = _api(engine, endpoint, settings)
    runner = web.AppRunner(
        api.application(_MOST_BODY_BYTES),
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,  # bad compression gets an API error
        logger=_logger(),
        shutdown_timeout=_STOP_S,
    )
    await runner.setup()
    try:
        listening = await _listen(runner, api.reads, host, port)
        stepping = asyncio.create_task(engine.run(), name="engine steps")
        try:
            yield RunningServer(_url(listening), engine, stepping)
        finally:
            listening.close()
            stepping.cancel()
            with suppress(asyncio.CancelledError):
                await stepping
    finally:
        await runner.cleanup()


def _logger() -> logging.Logger:
    """Return the logger for errors of this server. It omits invalid HTTP from clients."""
    logger = logging.getLogger(__name__)
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def _api(engine: RealTimeEngine, endpoint: EmbeddedEndpoint, settings: EngineSettings) -> Api:
    effective = endpoint.effective()
    info = cache_info(
        engine.core.config,
        kv_cache_dtype=effective["kv_cache_dtype"],
        memory_utilization=settings.memory_utilization,
        prefix_caching=effective["prefix_caching"] == "on",
    )
    model = ServedModel(
        name=settings.model,
        max_model_len=settings.max_model_len,
        vocabulary=find_model(settings.model).vocabulary,
    )
    return Api(engine, model, MetricsPage(engine, settings.model, info), VERSION)


async def _listen(runner: web.AppRunner, reads: Reads, host: str, port: int) -> asyncio.Server:
    handlers = runner.server
    if handlers is None:
        raise RuntimeError("the runner is not set up")
    loop = asyncio.get_running_loop()
    try:
        # One connection is accepted at a time. asyncio tries `backlog` times in a row, also when no
        # file may be opened any more: each try would be an error and another timer.
        listening = await loop.create_server(lambda: reads.watch(handlers), host, port, backlog=1)
    except (OSError, OverflowError) as error:
        raise _refusal(error, host, port) from error
    for one in listening.sockets:
        with socket.fromfd(one.fileno(), one.family, one.type) as same:
            same.listen(_BACKLOG)
    return listening


class _TooManyFiles:
    """Reports once that no more connections can be accepted; asyncio tries again each second."""

    def __init__(self) -> None:
        self._reported = False

    def take(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception from a callback of `loop`."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _NO_FILE):
            loop.default_exception_handler(context)
        elif not self._reported:
            self._reported = True
            with suppress(OSError):  # stderr may be closed
                sys.stderr.write(
                    f"warning: no more connections are accepted for now: {error.strerror}; raise "
                    "the limit with `ulimit -n`\n"
                )


def _refusal(error: OSError | OverflowError, host: str, port: int) -> EngineError:
    taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    reason = "the port is in use" if taken else str(error)
    refusal = EngineError(f"cannot listen on {host} port {port}: {reason}")
    if taken:
        refusal.add_note("set another port with --port, or --port 0 for any free port")
    return refusal


def _url(listening: asyncio.Server) -> str:
    host, port = listening.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
