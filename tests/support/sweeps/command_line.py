"""The command line called in this process: a second saved where no process is the point."""

from __future__ import annotations

import contextlib
import io
import subprocess

from harness.cli import main


def harness(*words: str) -> subprocess.CompletedProcess[str]:
    """Return the exit code of a command and what it printed, each stream for itself."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as ended:  # the parser's own way to end
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())
