"""Several load generator processes with one schedule and one clock: started, begun, merged, ended.

A process gets the time at which the run begins only when all are ready, so that none starts late.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from harness.interrupts import answering_interrupts
from harness.load.shard import OnProgress, Shard, ShardResult, marked
from harness.timing import NS_PER_S

_LEAD_NS = NS_PER_S // 20  # from sending that time to the time itself: all have read it by then
_END_S = 5.0  # a process that has lost its parent's pipe ends in less


def send_by_workers(shards: Sequence[Shard], on_progress: OnProgress) -> list[ShardResult]:
    """Run each shard in its own process, all starting together, and return their results in order.

    `on_progress` gets the number of requests that ended since its last call. An interrupt stops
    them all, and what has ended is returned. Raises what a process raised.
    """
    with contextlib.ExitStack() as started:
        pipes = [started.enter_context(_worker()) for _ in shards]
        for pipe, shard in zip(pipes, shards, strict=True):
            pipe.send(shard)
        for pipe in pipes:
            _received(pipe)  # ready
        begin_ns = time.perf_counter_ns() + _LEAD_NS - shards[0].origin_ns
        for pipe in pipes:
            pipe.send(begin_ns)
        with answering_interrupts(lambda: _stop(pipes)) as interrupts:
            results = _collected(pipes, on_progress)
        return marked(results, interrupted=interrupts.came)


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


def _collected(pipes: Sequence[Connection], on_progress: OnProgress) -> list[ShardResult]:
    results: dict[int, ShardResult] = {}  # by place
    while len(results) < len(pipes):
        waiting = {place: pipe for place, pipe in enumerate(pipes) if place not in results}
        ready = wait(list(waiting.values()))
        for place, pipe in waiting.items():
            if pipe not in ready:
                continue
            message = _received(pipe)
            if isinstance(message, ShardResult):
                results[place] = message
                if message.gave_up is not None:
                    _stop([other for other in pipes if other is not pipe])
            else:
                on_progress(message)
    return [results[place] for place in range(len(pipes))]


def _received(pipe: Connection) -> Any:
    """Return what a process sends; raise what it raised, and `RuntimeError` when it is gone."""
    try:
        message = pipe.recv()
    except (EOFError, OSError) as silence:
        raise RuntimeError("a load generator process ended before its work did") from silence
    if isinstance(message, BaseException):
        raise message
    return message
