"""The log of the reference server: the send time of each token, and the lateness of each tick.

Times are nanoseconds of CLOCK_MONOTONIC, which `perf_counter_ns` reads identically in every process
of a Linux machine. The log is in JSON lines. The server imports this module, so it has few imports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TextIO

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnswer:
    """One answer that the server sent."""

    response_id: str
    asked_tokens: int
    received_ns: int  # when the read that completed the request returned
    sent_ns: list[int]  # just before each token was written to the socket; fewer if it was cut
    held: bool  # the socket buffer was full for a while, because the client did not read


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of the server, which sends a token to each running stream."""

    due_ns: int
    begun_ns: int
    ended_ns: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLog:
    """The complete log of one server."""

    ttft_ns: int
    itl_ns: int
    answers: list[SentAnswer]
    ticks: list[Tick]

    def lateness_ns(self) -> list[int]:
        """Return the lateness of each due tick, never negative.

        A tick that began more than one interval late also counts for the ticks that it missed.
        """
        return [
            late_ns
            for tick in self.ticks
            for late_ns in range(max(tick.begun_ns - tick.due_ns, 0), -1, -self.itl_ns)
        ]

    def sending_ns(self) -> dict[int, int]:
        """Return send time of each token → time until the next token or the end of the tick.

        The server may be delayed by that much between its timestamp and the socket, so that much
        of a client's error may be the server's.
        """
        times = sorted(time_ns for answer in self.answers for time_ns in answer.sent_ns)
        lengths = {begin: end - begin for begin, end in pairwise(times)}
        ends = iter(sorted(tick.ended_ns for tick in self.ticks))
        end_ns = next(ends, None)
        for time_ns in times:
            while end_ns is not None and end_ns < time_ns:
                end_ns = next(ends, None)
            if end_ns is not None:
                lengths[time_ns] = min(lengths.get(time_ns, end_ns), end_ns - time_ns)
        return lengths


class LogWriter:
    """A buffered writer of answers and ticks to a log file."""

    def __init__(self, file: TextIO, *, ttft_ns: int, itl_ns: int) -> None:
        self.ttft_ns, self.itl_ns = ttft_ns, itl_ns
        self.answers: list[SentAnswer] = []
        self.ticks: list[Tick] = []
        self._file = file
        head = {"reference_log": _FORMAT, "ttft_ns": ttft_ns, "itl_ns": itl_ns}
        self._write([head])

    def flush(self) -> None:
        """Write all buffered answers and ticks."""
        ticks = [(one.due_ns, one.begun_ns, one.ended_ns, one.tokens) for one in self.ticks]
        self._write([*map(_answer_line, self.answers), *([{"ticks": ticks}] if ticks else [])])
        self.answers.clear()
        self.ticks.clear()

    def _write(self, lines: Iterable[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        self._file.flush()


def _answer_line(answer: SentAnswer) -> dict[str, Any]:
    times = answer.sent_ns
    return {
        "id": answer.response_id,
        "tokens": answer.asked_tokens,
        "t_recv_ns": answer.received_ns,
        "t_first_ns": times[0] if times else None,
        "t_last_ns": times[-1] if times else None,
        "gaps_ns": [after - before for before, after in pairwise(times)],
        "held": answer.held,
    }


def read_reference_log(path: Path) -> ReferenceLog:
    """Return the log at `path`. Raises `OSError`, or `ValueError` if the file is not a log."""
    with path.open(encoding="utf-8") as file:
        lines = _lines(file, path)
        head = next(lines, {})
        if head.get("reference_log") != _FORMAT:
            raise ValueError(f"{path}: not the log of a reference server of this version")
        answers, ticks = [], []
        for line in lines:
            if "ticks" in line:
                ticks += [Tick(*numbers) for numbers in line["ticks"]]
            else:
                answers.append(_answer(line))
    return ReferenceLog(
        ttft_ns=head["ttft_ns"], itl_ns=head["itl_ns"], answers=answers, ticks=ticks
    )


def _lines(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(file, start=1):
        try:
            line = json.loads(text)
        except ValueError as cause:
            raise ValueError(f"{path}: line {number}: not valid JSON") from cause
        if isinstance(line, dict):
            yield line


def _answer(line: dict[str, Any]) -> SentAnswer:
    first_ns = line["t_first_ns"]
    return SentAnswer(
        response_id=line["id"],
        asked_tokens=line["tokens"],
        received_ns=line["t_recv_ns"],
        sent_ns=[] if first_ns is None else list(accumulate(line["gaps_ns"], initial=first_ns)),
        held=line["held"],
    )
