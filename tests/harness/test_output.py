"""The command line at its edges: streams that take no more, and what ends it early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repository import ROOT
from sweep_files import write

from harness.interrupts import interruptible

TINY = {
    "model": "llama-3-8b",
    "hardware": "{gpu: a100-80gb, count: 1}",
    "toggles": "[cuda_graphs]",
    "load": "[{concurrency: 2, requests: 8}]",
    "blocks": "1",
}
LONG = {**TINY, "load": "[{concurrency: 50, requests: 5000}]", "blocks": "50"}


def harness(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "harness.cli", *arguments]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_is_one_line(tmp_path: Path, options: list[str]) -> None:
    """Output that cannot be written is told, as table and as document."""
    path = write(tmp_path, **TINY)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            harness("plan", str(path), *options),
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT,
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_narrow_encoding_loses_signs_and_nothing_else(tmp_path: Path) -> None:
    """Where the stream has ASCII only, what it lacks becomes a question mark."""
    done = subprocess.run(
        harness("plan", str(write(tmp_path, **TINY))),
        capture_output=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip

    assert b"llama-3-8b on 1 ? a100-80gb" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("together", [False, True])
def test_a_sweep_goes_on_when_nobody_listens(tmp_path: Path, *, together: bool) -> None:
    """`harness run | head -1`, and with `2>&1`: all is stored, and the exit code is the runs'."""
    out = tmp_path / "out"
    with subprocess.Popen(
        harness("run", str(write(tmp_path, **TINY)), "--out", str(out)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        told = "" if process.stderr is None else process.stderr.read()

    assert process.returncode == 0
    assert "Traceback" not in told
    assert (out / "report.html").is_file()
    assert len(list(out.glob("*/manifest.json"))) == 3


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT] * 4])
def test_a_signal_ends_a_sweep_cleanly(tmp_path: Path, numbers: list[signal.Signals]) -> None:
    """SIGTERM is an interrupt too, four at once are one, and nothing half done is left."""
    out = tmp_path / "out"
    with subprocess.Popen(
        harness("run", str(write(tmp_path, **LONG)), "--out", str(out)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        deadline_s = time.monotonic() + 60
        while not list(out.glob("*/manifest.json")) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        for number in numbers:
            process.send_signal(number)
        _, told = process.communicate(timeout=60)

    assert process.returncode == 130
    assert f"interrupted\n  finished runs are stored: harness report {out}\n" in told
    assert "Traceback" not in told
    assert list(out.glob(".*")) == []


def test_one_press_is_one_interrupt_and_a_later_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cleaning up is not cut short by the same press; whoever presses again later is heard."""
    now_s = [100.0]
    monkeypatch.setattr("harness.interrupts.time.monotonic", lambda: now_s[0])
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        now_s[0] += 3
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    assert signal.getsignal(signal.SIGTERM) == before
