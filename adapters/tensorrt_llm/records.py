"""Reading the records of TensorRT-LLM's iterations, for as long as its server lives.

`/metrics` returns each record once, to the first request, and takes two seconds and more where
there is none. So one thread requests it again and again, and whoever wants the totals waits until
all records of the past are in them. During a run it keeps the replies as they are: parsing them
would delay the client's own thread.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from harness.adapters.http_queries import NO_REPLY
from harness.adapters.tensorrt_llm.stats import IterationTotals

POLL_S = 1.0  # between two reads of a server that runs
_AGAIN_S = 0.05  # between two reads while somebody waits for the totals
_SETTLE_S = 30.0  # until all records must have come
_END_S = 5.0  # until a read that was cut off must have returned
_OK = 200
_NOTHING = b"[]"


class RecordReader:
    """The thread that reads, from its start to its certain end."""

    def __init__(self, url: str, poll_s: float = POLL_S) -> None:
        parts = urlsplit(url)
        self.poll_s = poll_s
        self._totals = IterationTotals()
        self._unparsed: list[bytes] = []
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._turn = threading.Condition()
        self._ending = False
        self._waiting = 0  # who wants the totals now
        self._reads = 0  # that have begun
        self._empty_read = 0  # the last read, where it found nothing; else 0
        self._socket: socket.socket | None = None  # of the read that is on its way
        self._thread = threading.Thread(target=self._run, name="iteration records", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cut off the read that may be on its way, and end the thread."""
        with self._turn:
            self._ending = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._turn.notify_all()
        self._thread.join(_END_S)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def totals(self) -> IterationTotals:
        """The totals of what has been read when they were last settled."""
        return self._totals

    def settle(self, finished: int | None) -> IterationTotals:
        """Return the totals with all iterations up to now in them; the server should be idle.

        `finished` requests were answered so far, where that is known: with the records of so many
        the totals are complete. Without, the server must have had nothing more to report. Totals
        with missing records are marked as `lost`.
        """
        with self._turn:
            read = self._reads + 1
            self._waiting += 1
            self._parse()
            self._turn.notify_all()
            came = self._turn.wait_for(lambda: self._complete(read, finished), _SETTLE_S)
            self._waiting -= 1
            if not came:
                self._totals.lost = f"iterations were still missing after {_SETTLE_S:g} s"
            return self._totals

    def forget_peak(self) -> None:
        """Let the highest number of sequences be that of what comes."""
        with self._turn:
            self._totals.peak = 0

    def _complete(self, read: int, finished: int | None) -> bool:
        totals = self._totals
        if totals.lost is not None:
            return True
        complete = finished == totals.completed or self._empty_read >= read
        return complete and not totals.busy

    def _run(self) -> None:
        while read := self._next_read():
            answer = self._read()
            with self._turn:
                self._empty_read = read if answer == _NOTHING else 0
                self._unparsed += [answer] if answer not in (b"", _NOTHING) else []
                if self._waiting:
                    self._parse()
                self._turn.notify_all()
                self._pause()

    def _parse(self) -> None:
        answers, self._unparsed = self._unparsed, []
        for answer in answers:
            with suppress(ValueError):
                records = json.loads(answer)
                self._totals.add(records if isinstance(records, list) else ())

    def _pause(self) -> None:
        """Wait for the next read's time, or until somebody wants the totals."""
        before = self._waiting
        self._turn.wait_for(
            lambda: self._ending or self._waiting > before, _AGAIN_S if before else self.poll_s
        )

    def _next_read(self) -> int:
        """Return the number of the read that begins; 0 when none is to begin any more."""
        with self._turn:
            self._reads += 1
            return 0 if self._ending else self._reads

    def _read(self) -> bytes:
        """Return the records that were not returned before, as JSON; empty without a reply.

        Without a limit of time: some versions answer only once no request is on its way.
        """
        connection = http.client.HTTPConnection(*self._address)
        try:
            connection.connect()
            with self._turn:
                self._socket = connection.sock
                if self._ending:
                    return b""
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.read().strip() if answer.status == _OK else b""
        except NO_REPLY:
            return b""
        finally:
            with self._turn:
                self._socket = None
            connection.close()
