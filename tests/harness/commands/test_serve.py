"""`harness serve` on the line: toggles that are none, and its end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from harness.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prefix_caching"], "prefix_caching has no value; expected one, as prefix_caching=off"),
        (["prefix_caching="], "prefix_caching has no value"),
        (["tensor_parallel"], "tensor_parallel has no value; expected one, as tensor_parallel=2"),
        (["prefix_cachin=off"], "'prefix_cachin=off' is no toggle: expected NAME=VALUE; did you"),
        (["prefix_caching=off", "prefix_caching=off"], "prefix_caching stands twice; give it once"),
        (["tensor_parallel=8"], "tensor_parallel=8 needs 8 GPUs, there are 4"),
        (["tensor_parallel=²"], "expected a whole number of at least 1"),
        (["block_size=0"], "expected a whole number of at least 1"),
        (["--port", "1", "--port", "2"], "--port is given twice; give it once"),
    ],
)
def test_toggles_that_cannot_be_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with what was expected, and exit code 2; nothing is served."""
    try:
        code = main(
            ["serve", "--port", "0", *words] if "--port" not in words else ["serve", *words]
        )
    except SystemExit as usage:
        code = int(usage.code or 0)

    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert said in told.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_its_end_is_said(number: signal.Signals) -> None:
    """Whoever stops it sees that it has, and that it went well."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "harness.cli",
            "serve",
            "--port",
            "0",
            "--model",
            "llama-3-8b",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "serves llama-3-8b" in process.stdout.readline()
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, error) == (0, "stopped\n")
