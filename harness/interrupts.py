"""How a command is ended early: Ctrl-C and SIGTERM are one thing, and several at once are one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_PRESS_S = 2.0  # whoever presses several times within it means one interrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for SIGTERM as for SIGINT, once for signals that come together.

    A second one within two seconds would end the cleaning up that the first one began: a run half
    removed, an engine left running. A later one is meant. For the main thread only.
    """
    last_s = -_ONE_PRESS_S

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _ONE_PRESS_S:
            last_s = time.monotonic()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
