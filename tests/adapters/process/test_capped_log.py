"""A log has an end: of very much output the head and the tail are kept, and no engine waits."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from harness.adapters.process.guard import CappedLog
from harness.adapters.process.launch import Launched

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)
LEFT_OUT = re.compile(rb"\n\[harness: (\d+) bytes of this log are left out here; .*\]\n")


def capped(path: Path, *, most: int = 10_000) -> CappedLog:
    """A log of 10 kB: at least 4 of the head and 2.5 of the tail."""
    return CappedLog(str(path), most, most * 2 // 5, most // 4)


@pytest.mark.parametrize("lines_at_once", [1, 7, 400])
@pytest.mark.parametrize("lines", [900, 901, 5_000, 40_000])
def test_head_and_tail_are_whole_lines_and_the_rest_is_counted(
    tmp_path: Path, lines: int, lines_at_once: int
) -> None:
    """No byte is missing that is not counted, at any time."""
    path = tmp_path / "engine.log"
    log = capped(path)
    text = [b"line %09d\n" % number for number in range(lines)]
    for at in range(0, lines, lines_at_once):
        log.write(b"".join(text[at : at + lines_at_once]))
        assert path.stat().st_size <= 10_000
    log.close()

    kept = path.read_bytes()
    head, cut, tail = LEFT_OUT.split(kept)
    whole = b"".join(text)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) > 3_900
    assert len(tail) >= 2_400
    assert len(head) + int(cut) + len(tail) == len(whole)


@pytest.mark.parametrize("data", [b"", b"short\n", b"no line feed", b"x" * 10_000])
def test_a_log_within_the_limit_is_as_written(tmp_path: Path, data: bytes) -> None:
    """To the byte."""
    log = capped(tmp_path / "engine.log")
    log.write(data)

    assert (tmp_path / "engine.log").read_bytes() == data


def test_output_without_line_feeds_is_bounded_too(tmp_path: Path) -> None:
    """A progress bar writes carriage returns only."""
    log = capped(tmp_path / "engine.log")
    for _ in range(1000):
        log.write(b"99 %\r" * 100)

    assert (tmp_path / "engine.log").stat().st_size <= 10_000


def test_a_disk_that_takes_nothing_stops_nobody() -> None:
    """What cannot be written is left out, without an error."""
    log = CappedLog("/dev/full")

    for _ in range(3):
        log.write(b"x" * 1000)


def test_an_engine_that_writes_without_end_fills_no_disk(tmp_path: Path) -> None:
    """300 MB are written as fast as a pipe takes them; at most 100 MB are kept, with the end."""
    path = tmp_path / "engine.log"
    code = "yes 'a line of spam that says nothing' | head -c 300000000; echo the end; exit 3"
    processes = Launched(["sh", "-c", f"echo the start; {code}"], os.environ, path, tmp_path)
    try:
        deadline_s = time.monotonic() + 60
        while processes.exit_code() is None:
            assert time.monotonic() < deadline_s
            assert path.stat().st_size < 102_000_000
            time.sleep(0.01)
    finally:
        processes.stop(0.1)

    assert processes.exit_code() == 3
    assert path.stat().st_size <= 100_000_000
    assert processes.log().endswith("the end\n")
    with path.open("rb") as file:
        assert file.read(10) == b"the start\n"
