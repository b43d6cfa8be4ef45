"""Records are read while a server lives, all of them, and the reader ends for certain."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harness.adapters.tensorrt_llm import records as tensorrt_llm_records
from harness.adapters.tensorrt_llm.records import RecordReader

IN = {"iter": 1, "numActiveRequests": 1, "numNewActiveRequests": 1}
OUT = {"iter": 2, "numActiveRequests": 1, "numCompletedRequests": 1}


class Scripted(ThreadingHTTPServer):
    """Answers /metrics with what the script says next; at its end with nothing to tell."""

    daemon_threads = True

    def __init__(self, script: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.script = script
        self.reads = 0
        self.freed = threading.Event()  # what `hang` waits for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Scripted

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the base
        """Write no line for each read."""

    def do_GET(self) -> None:
        self.server.reads += 1
        told = self.server.script.pop(0) if self.server.script else []
        if told == "hang":
            self.server.freed.wait(20.0)
            told = []
        body = b"broken" if told == "broken" else json.dumps(told).encode()
        try:
            self.send_response(503 if told == "ill" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            return  # the reader was cut off


@contextmanager
def served(*script: Any) -> Iterator[Scripted]:
    server = Scripted(list(script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.freed.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_records_of_many_reads_are_one_sum() -> None:
    """Each is told once, in whatever portions."""
    with served([IN], [OUT]) as server, RecordReader(server.url, poll_s=0.01) as reader:
        totals = reader.settle(1)

    assert (totals.started, totals.completed, totals.lost) == (1, 1, None)


def test_the_number_of_answers_tells_that_nothing_more_can_come() -> None:
    """Then nobody waits for a server to say that it has nothing, which takes it seconds."""
    with served([IN, OUT], "hang") as server, RecordReader(server.url, poll_s=0.01) as reader:
        began_s = time.monotonic()
        totals = reader.settle(1)
        again = reader.settle(1)

        assert (totals.completed, again.completed) == (1, 1)
        assert time.monotonic() - began_s < 10.0


def test_without_that_number_the_server_must_find_nothing() -> None:
    """A read that began before somebody asked proves nothing of what happened until then."""
    with served([IN, OUT], []) as server, RecordReader(server.url, poll_s=60.0) as reader:
        totals = reader.settle(None)

        assert totals.completed == 1
        assert server.reads >= 2


@pytest.mark.parametrize("answer", ["ill", "broken", {"no": "list"}])
def test_an_answer_that_is_none_is_asked_for_again(answer: Any) -> None:
    """A server that is busy or sick for a moment has not said that there is nothing."""
    with served(answer, answer, [IN, OUT]) as server, RecordReader(server.url, 0.01) as reader:
        assert reader.settle(None).completed == 1


def test_records_that_do_not_come_are_called_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose end was never told leaves no totals that anybody could use."""
    monkeypatch.setattr(tensorrt_llm_records, "_SETTLE_S", 0.3)
    with served([IN]) as server, RecordReader(server.url, poll_s=0.01) as reader:
        assert reader.settle(None).lost == "iterations were still missing after 0.3 s"
        assert reader.settle(None).lost is not None


def test_a_read_that_hangs_is_cut_off_at_the_end() -> None:
    """A server that answers only when it is idle does not keep the reader from ending."""
    with served("hang") as server:
        with RecordReader(server.url, poll_s=0.01) as reader:
            while not server.reads:
                time.sleep(0.01)
            began_s = time.monotonic()

        assert not reader.alive
        assert time.monotonic() - began_s < 4.0


def test_a_server_that_is_gone_does_not_stop_the_reader_from_ending() -> None:
    """Nothing listens on this port."""
    with RecordReader("http://127.0.0.1:1", poll_s=0.01) as reader:
        time.sleep(0.05)

    assert not reader.alive


def test_a_run_begins_with_no_peak() -> None:
    """The highest number of sequences is that of the run, not of the server's life."""
    busy = {**IN, "inflightBatchingStats": {"numContextRequests": 5}}
    with served([busy, OUT]) as server, RecordReader(server.url, poll_s=0.01) as reader:
        assert reader.settle(1).peak == 5
        reader.forget_peak()
        assert reader.totals.peak == 0


def test_while_nobody_asks_nothing_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's thread shares the interpreter, and stamps tokens in the meantime."""
    parsed: list[bytes] = []
    loads = json.loads

    def note(text: bytes) -> Any:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", note)
    with served([IN], [OUT]) as server, RecordReader(server.url, poll_s=0.01) as reader:
        while server.reads < 3:
            time.sleep(0.01)
        assert not parsed
        assert reader.settle(1).completed == 1
        assert len(parsed) >= 2
