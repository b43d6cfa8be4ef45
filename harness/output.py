"""What is printed, where the stream may take no more: a reader that has gone, a disk that is full.

`harness run | head -1` has done its work when `head` leaves; only what it would still have printed
is lost. A sweep never ends because nobody listens.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console


class OutputError(Exception):
    """What was to be printed could not be written."""


class PlainConsole(Console):
    """A console that leaves a reader that has gone to whoever prints; rich would end the process.

    Its lines are those of the terminal, or of `COLUMNS` where that is set.
    """

    def on_broken_pipe(self) -> None:
        """Let the `BrokenPipeError` that is being handled pass."""
        raise  # noqa: PLE0704  rich calls this while it handles that error


@contextmanager
def printing() -> Iterator[None]:
    """Enter to print on stdout, and flush it: nothing happens when its reader has gone.

    Raises `OutputError` when the stream takes nothing for another reason.
    """
    try:
        yield
        if sys.stdout is not None:  # None: it was closed before the start
            sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        raise OutputError(f"the output cannot be written: {error.strerror or error}") from error


def spell_anything() -> None:
    """Let streams of a narrow encoding, such as ASCII, write a question mark for what they lack."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _silence(stream: TextIO) -> None:
    """Let what is left in the buffer go nowhere; else Python would complain of it at the end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except io.UnsupportedOperation:  # a stream in memory, which has no end to complain at
        return
