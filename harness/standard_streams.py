"""The three standard streams, open also where who started this closed them; and what is text."""

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


def is_text(name: str) -> bool:
    """Return whether a name from the system is UTF-8: no file or library takes it otherwise."""
    return not any("\ud800" <= sign <= "\udfff" for sign in name)


def spelled(name: str) -> str:
    """Return a name that is not UTF-8 in signs that any terminal can show."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
