"""What the reference server writes down: when each token left it, and how well it kept its tick.

Times are nanoseconds of CLOCK_MONOTONIC, which `perf_counter_ns` reads the same in every process
of a Linux machine. The log is lines of JSON. Light, since the server itself imports it.
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
    """One answer as the server sent it."""

    response_id: str
    asked_tokens: int
    received_ns: int  # when the read that completed the request had returned
    sent_ns: list[int]  # just before each token was handed to the socket; fewer where it was cut
    held: bool  # the socket took no more for a while, as of a client that does not read


@dataclass(frozen=True, slots=True)
class Tick:
    """One round of the server: a token to each running stream."""

    due_ns: int
    begun_ns: int
    ended_ns: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLog:
    """What one server wrote down until it ended."""

    ttft_ns: int
    itl_ns: int
    answers: list[SentAnswer]
    ticks: list[Tick]

    def lateness_ns(self) -> list[int]:
        """Return how late each tick that was due began; never negative.

        A tick that began more than one interval late stands for those that it missed, too.
        """
        return [
            late_ns
            for tick in self.ticks
            for late_ns in range(max(tick.begun_ns - tick.due_ns, 0), -1, -self.itl_ns)
        ]

    def sending_ns(self) -> dict[int, int]:
        """Return, for each token's time of sending, how long the server was at it.

        Up to the next token's time, or the end of the tick. So much of a client's error may be the
        server's: it may have been held up between its stamp and the socket.
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
    """Appends to a log file what has come together since it wrote last."""

    def __init__(self, file: TextIO, *, ttft_ns: int, itl_ns: int) -> None:
        self.ttft_ns, self.itl_ns = ttft_ns, itl_ns
        self.answers: list[SentAnswer] = []
        self.ticks: list[Tick] = []
        self._file = file
        head = {"reference_log": _FORMAT, "ttft_ns": ttft_ns, "itl_ns": itl_ns}
        self._write([head])

    def flush(self) -> None:
        """Write all that is not yet written."""
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
    """Return the log at `path`. Raises `OSError`, and `ValueError` for a file that is no log."""
    with path.open(encoding="utf-8") as file:
        lines = _lines(file, path)
        head = next(lines, {})
        if head.get("reference_log") != _FORMAT:
            raise ValueError(f"{path}: no log of a reference server, or of another version")
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
            raise ValueError(f"{path}: line {number} is no JSON") from cause
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
