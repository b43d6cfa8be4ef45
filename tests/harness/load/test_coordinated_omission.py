"""A server that stands still for a while: what was due meanwhile waits, and the figures show it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import numpy as np
import pytest
from known_runs import OPEN, known_manifest

from harness.adapters.base import Target
from harness.load.play import play_http
from harness.load.schedule import OpenLoop
from harness.results.metrics import RunMetrics, run_metrics
from harness.results.store.parquet import table_of
from harness.workloads.base import Conversation, Segment, Turn

pytestmark = pytest.mark.alone
MS = 1_000_000
EVERY_NS = 25 * MS
REQUESTS = 64  # 1.6 s
STOP_S, FREEZE_S = 0.5, 0.6

# Answers each request with two tokens at once; in a process of its own, so that it can be stopped.
SERVER = r"""
import asyncio
DATA = b"".join(
    b'data: {"id":"1","choices":[{"index":0,"text":"a","finish_reason":%s}]}\n\n' % end
    for end in (b"null", b'"length"')
) + b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            writer.write(HEAD % len(DATA) + DATA)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextmanager
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that serves inside the block; `address` reads where."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def asked(count: int) -> tuple[Conversation, ...]:
    """Return so many conversations of one turn."""
    return tuple(
        Conversation(
            conversation_id=str(n), turns=(Turn(prompt=(Segment(n, 8),), output_tokens=2),)
        )
        for n in range(count)
    )


def address(process: subprocess.Popen[str]) -> Target:
    """Return where the process of `server` is."""
    assert process.stdout is not None
    return Target(url=f"http://127.0.0.1:{int(process.stdout.readline())}", model="m")


def frozen_run(cap: int | None) -> tuple[RunMetrics, float, float]:
    """Return the figures of an open loop, and from when to when the server stood still, in ms."""
    starts = tuple(EVERY_NS * n for n in range(REQUESTS))
    held: list[int] = []

    def freeze(process: subprocess.Popen[str]) -> None:
        """Stop and go on in one thread: two timers could come in the wrong order."""
        os.kill(process.pid, signal.SIGSTOP)
        held.append(time.perf_counter_ns())
        time.sleep(FREEZE_S)
        os.kill(process.pid, signal.SIGCONT)
        held.append(time.perf_counter_ns())

    with server() as process:
        target = address(process)
        timer = Timer(STOP_S, freeze, (process,))
        timer.start()
        schedule = OpenLoop(starts_ns=starts, max_concurrency=cap)
        played = play_http(target, schedule, asked(REQUESTS), lambda _: None)
        timer.join()
    figures = run_metrics(table_of(played.records), known_manifest(load=OPEN))
    since, until = ((at_ns - played.origin_ns) / MS for at_ns in held)
    return figures, since, until


@pytest.mark.parametrize("cap", [None, 2])
def test_what_is_due_while_a_server_stands_still_waits_for_the_rest_of_it(cap: int | None) -> None:
    """TTFT from due holds the rest of the freeze; with a cap, TTFT from the send hides it."""
    figures, since_ms, until_ms = frozen_run(cap)
    requests = figures.requests
    due_ms = requests["scheduled_ns"] / MS
    meanwhile = requests[(due_ms > since_ms + 20) & (due_ms < until_ms)]
    rest_ms = until_ms - meanwhile["scheduled_ns"] / MS

    assert requests["ok"].all()
    assert len(meanwhile) >= 15
    # the stamp of SIGCONT is taken after it was sent, so an answer may be a little earlier
    assert (meanwhile["scheduled_ttft_ms"] >= rest_ms - 5).all()
    assert np.median(meanwhile["scheduled_ttft_ms"] - rest_ms) < 300
    waited = meanwhile["sent_ns"] / MS - meanwhile["scheduled_ns"] / MS
    if cap is None:
        assert np.median(waited) < 50  # sent on time, all the same
        assert np.median(meanwhile["ttft_ms"] - rest_ms) > -50
    else:
        assert (waited.iloc[cap:] >= rest_ms.iloc[cap:] - 5).all()
        assert np.median(meanwhile["ttft_ms"].iloc[cap:]) < 100


def test_the_first_requests_do_not_wait_for_a_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector is held off before the start: its last work delays no send."""
    monkeypatch.setattr(gc, "collect", lambda: time.sleep(0.5))
    starts = tuple(5 * MS * n for n in range(8))

    with server() as process:
        played = play_http(address(process), OpenLoop(starts_ns=starts), asked(8), lambda _: None)

    delays_ns = [(record.sent_ns or 0) - record.scheduled_ns for record in played.records]
    assert max(delays_ns) < 400 * MS
