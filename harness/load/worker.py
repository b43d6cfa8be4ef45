"""One load generator process among several: gets its shard from a pipe, sends back its result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from typing import Any

from harness.interrupts import ending_signals
from harness.load.shard import Shard, ShardResult, Stop, send_shard


class _Worker:
    """Talks to the parent: ready → begin (→ stop), then counts, then the result."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    @contextlib.asynccontextmanager
    async def beginning(self, stop: Stop) -> AsyncIterator[int]:
        """Report that all is ready, and yield when the run begins, on its clock."""
        self._parent.send("ready")
        begun = asyncio.Event()
        self._watch(begun.set)  # not waited for in recv: connections are tended meanwhile
        await begun.wait()
        begin_ns: int = self._parent.recv()
        self._watch(self._stop, stop)
        try:
            yield begin_ns
        finally:
            asyncio.get_running_loop().remove_reader(self._parent.fileno())

    def _watch(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call when the parent sends something.

        The loop makes a pipe that it watches one that never waits; sending the result of a run
        would fail as soon as the pipe is full.
        """
        asyncio.get_running_loop().add_reader(self._parent.fileno(), call, *arguments)
        os.set_blocking(self._parent.fileno(), True)

    def _stop(self, stop: Stop) -> None:
        """Stop, as the parent orders; end at once where the parent is gone."""
        asyncio.get_running_loop().remove_reader(self._parent.fileno())
        try:
            self._parent.recv()
        except (EOFError, OSError):
            os._exit(1)  # nobody will take the result
        stop()


def work(parent: Connection) -> ShardResult | BaseException:
    """Return the result of the shard that the parent sends, or the error that it ended with."""
    shard: Shard = parent.recv()
    worker = _Worker(parent)
    try:
        return send_shard(shard, worker.beginning, parent.send)
    except Exception as error:  # noqa: BLE001  raised again where the user is
        error.add_note("in a load generator process: " + traceback.format_exc())
        return error


def main() -> None:
    """Work for the process that holds the other end of the descriptor given as argument."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)  # the parent decides what an interrupt ends
    with Connection(int(sys.argv[1])) as parent:
        try:
            parent.send(work(parent))
        except (EOFError, OSError):
            sys.exit(1)  # nobody is there any more


if __name__ == "__main__":
    main()
