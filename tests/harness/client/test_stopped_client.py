"""A client that does not get to run says so: nothing that it stamped may be believed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.reference.process import reference_process

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the reference server is for Linux only"
    ),
]


def connected(process: subprocess.Popen[str], sockets: int) -> bool:
    """Return whether a process holds so many sockets: then its clock starts."""
    held = Path(f"/proc/{process.pid}/fd").iterdir()
    return sum(path.is_socket() for path in held) >= sockets


def stop_and_go(process: subprocess.Popen[str], seconds: float) -> None:
    """Let a process run for 5 ms of every 100, for so long."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.095)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.005)


def test_a_client_that_is_stopped_most_of_the_time_is_invalid() -> None:
    """95 ms of every 100 from its first request on: INVALID, exit 1, by how late its loop was."""
    with reference_process(ttft_ms=20, itl_ms=10) as server:
        target = server.target()
        words = ["load", target.url, "--model", target.model, "--concurrency", "16", "--json"]
        words += ["--requests", "160", "--output-tokens", "64"]
        command = [sys.executable, "-P", "-m", "harness.cli", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            while not connected(load, 16):
                time.sleep(0.02)
            stop_and_go(load, 4.0)
            assert load.stdout is not None
            summary = json.loads(load.stdout.read())

    certificate = summary["runs"][0]["certificate"]
    assert (load.returncode, certificate["verdict"]) == (1, "INVALID")
    assert certificate["reasons"][0]["name"] == "loop_lag"
    assert certificate["measured"]["loop_lag"]["value"] > 50
