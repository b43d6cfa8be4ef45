"""What vLLM 0.32 logs of its steps, read as it grows."""

from __future__ import annotations

import os
from pathlib import Path

from harness.adapters.vllm.iteration_log import IterationLog

LINE = (
    "(APIServer pid=7) INFO 11-30 12:00:00 [loggers.py:199] Engine 000: Iteration({}): {} context "
    "requests, {} context tokens, {} generation requests, {} generation tokens, iteration elapsed "
    "time: 9.31 ms, CPU KV cache usage: 0.2%\n"
)


def test_steps_are_added_up_as_the_log_grows(tmp_path: Path) -> None:
    """Two parts of a prompt, one beside a decoding sequence; a line is read when it is whole."""
    path = tmp_path / "engine.log"
    path.write_text("INFO starting\n" + LINE.format(0, 1, 512, 0, 0), encoding="utf-8")
    log = IterationLog(path)

    log.read()
    assert (log.prompt_parts, log.mixed_steps) == (1, 0)
    with path.open("a", encoding="utf-8") as more:
        more.write(LINE.format(1, 1, 88, 3, 3) + LINE.format(2, 0, 0, 4, 4))
        more.write(LINE.format(3, 2, 600, 4, 4)[:80])
    log.read()
    assert (log.prompt_parts, log.mixed_steps) == (2, 1)
    with path.open("a", encoding="utf-8") as more:
        more.write(LINE.format(3, 2, 600, 4, 4)[80:])
    log.read()
    log.read()

    assert (log.prompt_parts, log.mixed_steps) == (4, 2)


def test_no_log_tells_nothing(tmp_path: Path) -> None:
    """A passing one may be gone."""
    log = IterationLog(tmp_path / "gone.log")

    log.read()

    assert (log.prompt_parts, log.mixed_steps) == (0, 0)


def test_a_log_that_may_have_been_cut_counts_no_steps(tmp_path: Path) -> None:
    """Its middle may be missing: a count would be too low. It stays so when the log is shorter."""
    path = tmp_path / "engine.log"
    path.write_text(LINE.format(0, 1, 512, 0, 0), encoding="utf-8")
    log = IterationLog(path)

    log.read()
    assert log.whole
    os.truncate(path, 65_000_000)
    log.read()
    assert not log.whole
    os.truncate(path, 1000)
    log.read()
    assert not log.whole
