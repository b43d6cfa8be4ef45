"""Several load generator processes with one schedule and one clock: started, begun, merged, ended.

A process is told when the run begins only after all of them are ready, so that none starts late.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from harness.interrupts import answering_interrupts
from harness.load.shard import Shard, ShardResult, marked
from harness.timing import NS_PER_S

_LEAD_NS = NS_PER_S // 20  # from the word to begin to the beginning: all have read it by then
_END_S = 5.0  # a process that has lost its parent's pipe ends in less


def offer_by_workers(
    shares: Sequence[Shard], on_progress: Callable[[int], object]
) -> list[ShardResult]:
    """Run each shard in its own process, all starting together, and return their results in order.

    `on_progress` gets the number of requests that ended since its last call. An interrupt stops
    them all, and what has ended is returned. Raises what a process raised.
    """
    with contextlib.ExitStack() as started:
        pipes = [started.enter_context(_worker()) for _ in shares]
        for pipe, share in zip(pipes, shares, strict=True):
            pipe.send(share)
        for pipe in pipes:
            _received(pipe)  # ready
        begin_ns = time.perf_counter_ns() + _LEAD_NS - shares[0].origin_ns
        for pipe in pipes:
            pipe.send(begin_ns)
        with answering_interrupts(lambda: _stop(pipes)) as interrupts:
            brought = _collected(pipes, on_progress)
        return marked(brought, interrupted=interrupts.came)


def _stop(pipes: Sequence[Connection]) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):  # it has ended by itself
            pipe.send("stop")


@contextlib.contextmanager
def _worker() -> Iterator[Connection]:
    """Start a process; it ends when its pipe is closed, at the latest by force."""
    near, far = multiprocessing.Pipe()
    with near:
        with far:
            process = subprocess.Popen(  # noqa: S603  this very program
                [sys.executable, "-P", "-m", "harness.load.worker", str(far.fileno())],
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        try:
            yield near
        finally:
            near.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _collected(
    pipes: Sequence[Connection], on_progress: Callable[[int], object]
) -> list[ShardResult]:
    brought: dict[int, ShardResult] = {}  # by place
    while len(brought) < len(pipes):
        waiting = {place: pipe for place, pipe in enumerate(pipes) if place not in brought}
        ready = wait(list(waiting.values()))
        for place, pipe in waiting.items():
            if pipe not in ready:
                continue
            said = _received(pipe)
            if isinstance(said, ShardResult):
                brought[place] = said
            else:
                on_progress(said)
    return [brought[place] for place in range(len(pipes))]


def _received(pipe: Connection) -> Any:
    """Return what a process says; raises what it raised, and `RuntimeError` when it is gone."""
    try:
        said = pipe.recv()
    except (EOFError, OSError) as silence:
        raise RuntimeError("a load generator process ended before its work did") from silence
    if isinstance(said, BaseException):
        raise said
    return said
