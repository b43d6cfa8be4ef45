"""A load that is interrupted keeps what had ended, or leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from raw_server import RawServer, good, raw_server

from harness.cli import main
from harness.interrupts import answering_interrupts


def started(server: RawServer, *words: str) -> subprocess.Popen[str]:
    """A load on its way."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.cli", "load", server.url, "--model", "m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(
    server: RawServer, after: int, number: signal.Signals, *words: str
) -> tuple[int, str, str]:
    """Exit code and output of a load that gets a signal when so many requests have come."""
    process = started(server, *words)
    try:
        deadline_s = time.monotonic() + 60
        while len(server.bodies) < after and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        process.send_signal(number)
        out, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, error


@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGINT, "1"), (signal.SIGTERM, "1"), (signal.SIGINT, "2"), (signal.SIGHUP, "2")],
)
def test_what_had_ended_is_kept_and_told(
    tmp_path: Path, number: signal.Signals, workers: str
) -> None:
    """Ctrl-C and SIGTERM in mid-load: figures of what had ended, stored as an interrupted run."""
    out = tmp_path / "cut"
    words = ("--requests", "5000", "--concurrency", "4", "--output-tokens", "3", "--out", str(out))
    with raw_server(good, pause_s=0.01) as server:
        code, printed, error = interrupted(server, 60, number, *words, "--workers", workers)

    (run,) = json.loads((out / "summary.json").read_text(encoding="utf-8"))["runs"]
    ended = run["counts"]["ok"]
    assert code == 130
    assert "Traceback" not in error
    assert f"interrupted: {ended} of 5000 requests had ended" in error
    assert "Serving Benchmark Result (INTERRUPTED)" in printed
    assert 40 <= ended < 5000
    assert (run["status"], run["counts"]["failed"], run["metrics"]["failures"]) == (
        "interrupted",
        0,
        {},
    )
    assert run["metrics"]["ttft_ms"]["n"] > 0
    assert main(["report", str(out)]) == 1


def test_where_nothing_had_ended_nothing_is_left(tmp_path: Path) -> None:
    """No folder stays, and that is said; the same order may be given again."""
    out = tmp_path / "none"
    words = ("--requests", "8", "--concurrency", "4", "--out", str(out))

    def answer(asked: dict[str, Any]) -> bytes:
        server.ended.wait()
        return good(asked)

    with raw_server(answer) as server:
        code, printed, error = interrupted(server, 4, signal.SIGINT, *words)

    assert (code, printed) == (130, "")
    assert error == "interrupted\n  no request had ended: nothing is kept\n"
    assert not out.exists()


def test_the_first_interrupt_is_answered_and_a_later_one_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several that come together are one; two seconds later somebody means it."""
    calls: list[str] = []
    now_s = [100.0]
    monkeypatch.setattr("harness.interrupts.time.monotonic", lambda: now_s[0])
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    with answering_interrupts(lambda: calls.append("asked")) as seen:
        assert not seen.came
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert (calls, seen.came) == (["asked"], True)
        now_s[0] += 3
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
