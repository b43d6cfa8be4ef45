"""The three standard streams, open also where who started this closed them."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def drop_unwritten_errors() -> None:
    """Let go of what stderr could not write; else Python ends the process with code 120 for it."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def open_standard_streams() -> None:
    """Open what is closed of descriptors 0 to 2 on nothing, as `>/dev/null` would.

    Else the next file or socket would get such a number, and what is printed would go into it; an
    event loop that finds one closed ends the process.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # it may have got this very number
            os.dup2(nothing, number)
            os.set_inheritable(number, True)  # noqa: FBT003 - the library's own call
            if nothing > 2:
                os.close(nothing)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
