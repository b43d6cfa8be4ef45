"""Systems without POSIX: one line, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest
from repository import ROOT

# What Windows lacks, and what macOS lacks.
WINDOWS = "for name in ('fcntl', 'resource', 'termios', 'pwd', 'grp'): sys.modules[name] = None"
MACOS = "[delattr(os, name) for name in dir(os) if name.startswith('sched_')]"
CODE = "import os, sys; exec({masked!r}); from harness.cli import main; sys.exit(main({words!r}))"


def run(masked: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `harness` in a Python that lacks some modules or functions."""
    code = CODE.format(masked=masked, words=list(words))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize(
    "words", [["plan", "sweep.yaml"], ["run"], ["load", "http://127.0.0.1:9", "--model", "m"]]
)
def test_windows_is_refused_in_one_line(words: list[str]) -> None:
    """Every command prints where it runs; nothing has started."""
    done = run(WINDOWS, *words)

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: harness runs on Linux and macOS only",
        "  on Windows, use it in WSL 2",
    ]


def test_help_is_printed_on_windows() -> None:
    """The help needs nothing of the system."""
    done = run(WINDOWS, "--help")

    assert done.returncode == 0
    assert "usage: harness" in done.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [(["plan", "examples/quickstart.yaml"], 0), (["engines"], 0), (["plan", "absent.yaml"], 2)],
)
def test_commands_need_no_function_that_macos_lacks(words: list[str], code: int) -> None:
    """Python on macOS has no `os.sched_*`."""
    done = run(MACOS, *words)

    assert done.returncode == code
    assert "Traceback" not in done.stderr
