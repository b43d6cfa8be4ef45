"""Ends a load whose server is gone: it refuses all connections, or is silent and does not live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from harness.adapters import NO_REPLY, Target, query
from harness.results.store import RequestRecord
from harness.timing import NS_PER_S, Clock

_CHECKS = 2  # of /health that fail before the server counts as dead
_LOOKS = 60  # at the streams while the silence lasts that leads to a check
_GONE = ("connect_refused", "connection_reset", "unreachable")
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a load waits for a server that gives no answer."""

    refused: int = 20  # connections in a row that end a load …
    unanswered_s: float = 5.0  # … where nothing else was answered for so long
    silent_s: float = 60.0  # without a byte on any stream, until the server's health is checked
    health_s: float = 20.0  # for one answer to /health: a busy server may be slow


PATIENCE = Patience()


class Listening(Protocol):
    """A client, as far as it reports what it hears."""

    def last_read_ns(self) -> int | None:
        """Return when the last byte of any answer was read; None: none was."""
        ...

    def waiting_since_ns(self) -> int | None:
        """Return since when requests wait for a byte; None: none is in flight."""
        ...


class ServerWatch:
    """Watches one server during a load, and calls `stop` when it is gone; `reason` says why."""

    def __init__(self, target: Target, client: Listening, clock: Clock, patience: Patience) -> None:
        self.reason: str | None = None
        self._target, self._client, self._clock = target, client, clock
        self._patience = patience
        self._refused = 0  # connections in a row
        self._answered_ns = clock.now_ns()  # when the last answer ended
        self._stop: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def over(self, stop: Callable[[], None]) -> Iterator[None]:
        """Enter to watch until the block ends; `stop` is called in the running loop."""
        self._stop = stop
        task = asyncio.get_running_loop().create_task(self._watch(), name="server watch")
        try:
            yield
        finally:
            task.cancel()

    def take(self, record: RequestRecord) -> None:
        """Take the record of a request that ended: as an answer, or as a refused connection."""
        if record.first_byte_ns is not None:
            self._refused, self._answered_ns = 0, record.closed_ns
        elif record.error_kind in _GONE:
            self._refused += 1
            if self._refused >= self._patience.refused:
                self._check_answers(record)

    def _check_answers(self, record: RequestRecord) -> None:
        """End the load where streams that are open brought nothing either."""
        limit_ns = self._patience.unanswered_s * NS_PER_S
        now_ns = record.closed_ns
        if now_ns - self._answered_ns < limit_ns:
            return
        self._answered_ns = max(self._answered_ns, self._client.last_read_ns() or 0)
        waited_ns = now_ns - self._answered_ns
        if waited_ns >= limit_ns:
            self._end(
                f"the server is gone: {self._refused} connections in a row failed "
                f"({record.error_kind}), and nothing was answered for {waited_ns / NS_PER_S:.0f} s"
            )

    async def _watch(self) -> None:
        silent_s = self._patience.silent_s
        while self.reason is None:
            await asyncio.sleep(silent_s / _LOOKS)
            if self._silence_s() >= silent_s:
                await self._examine()

    async def _examine(self) -> None:
        """End the load where the silent server shows no sign of life; else wait a while."""
        sign = ""
        for _ in range(_CHECKS):
            if engine_ended(self._target):
                sign = "its process has ended"
                break
            found = await _in_thread(lambda: health_fault(self._target, self._patience.health_s))
            if found is None:
                await asyncio.sleep(self._patience.silent_s / 4)
                return
            sign = f"/health {found}, {_CHECKS} times in a row"
            await asyncio.sleep(self._patience.silent_s / _LOOKS)
        silence_s = self._silence_s()
        if silence_s >= self._patience.silent_s:
            self._end(f"the server is frozen: no byte on any stream for {silence_s:.0f} s; {sign}")

    def _silence_s(self) -> float:
        """Return for how long requests have been in flight and no byte came."""
        since_ns = self._client.waiting_since_ns()
        if since_ns is None:
            return 0.0
        since_ns = max(since_ns, self._client.last_read_ns() or since_ns)
        return (self._clock.now_ns() - since_ns) / NS_PER_S

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self._stop()


def engine_ended(target: Target) -> bool:
    """Return whether the target is an engine that was started here and whose process has ended."""
    if target.engine_pid is None:
        return False
    try:
        os.kill(target.engine_pid, 0)
    except ProcessLookupError:
        return True
    return False


def health_fault(target: Target, timeout_s: float) -> str | None:
    """Return how `/health` shows that the server is dead; None: it lives, or has no such page."""
    try:
        reply = query(target.url, "/health", timeout_s=timeout_s, access=target.access)
    except TimeoutError:
        return f"did not answer within {timeout_s:g} s"
    except ConnectionError as error:
        return f"failed ({type(error).__name__})"
    except NO_REPLY:  # of this machine or of the way to the server
        return None
    dead = reply.status >= 500 and reply.status != _NOT_IMPLEMENTED
    return f"answered {reply.status}" if dead else None


async def _in_thread(call: Callable[[], str | None]) -> str | None:
    """Return the result of `call`, made in a thread that nobody waits for when the load ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | None] = loop.create_future()

    def resolve(result: str | None) -> None:
        if not future.done():
            future.set_result(result)

    def work() -> None:
        result = call()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the load has ended
            loop.call_soon_threadsafe(resolve, result)

    threading.Thread(target=work, daemon=True, name="server health").start()
    return await future
