"""How a command is ended early: by Ctrl-C, SIGTERM or SIGHUP, and several at once are one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ONE_PRESS_S = 2.0  # whoever presses several times within it means one interrupt


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a command.

    SIGHUP, which a terminal sends when it is closed, is one unless it is ignored, as under `nohup`.
    """
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return signal.SIGINT, signal.SIGTERM
    return signal.SIGINT, signal.SIGTERM, hang_up


class Interrupts:
    """The interrupts of a block: the first is answered by `act`, a later one raises."""

    def __init__(self, act: Callable[[], object] | None) -> None:
        self.came = False
        self._act = act
        self._last_s = -_ONE_PRESS_S

    def take(self, _: int, __: FrameType | None) -> None:
        """Take one signal. Raises `KeyboardInterrupt` unless it is answered in another way."""
        if time.monotonic() - self._last_s <= _ONE_PRESS_S:
            return
        self._last_s = time.monotonic()
        act, self._act, self.came = self._act, None, True
        if act is None:
            raise KeyboardInterrupt
        act()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for every ending signal, once for signals that come together.

    A second one within two seconds would end the cleaning up that the first one began: a run half
    removed, an engine left running. A later one is meant. For the main thread only.
    """
    with _taken_by(Interrupts(None)):
        yield


@contextmanager
def answering_interrupts(act: Callable[[], object]) -> Iterator[Interrupts]:
    """Enter to have the first interrupt call `act` in place of raising; yields whether it came.

    So that what is under way can be ended in order, and nothing of it is lost. One more, two
    seconds later, raises. Signals are the main thread's: in another nothing changes.
    """
    interrupts = Interrupts(act)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    with _taken_by(interrupts):
        yield interrupts


@contextmanager
def _taken_by(interrupts: Interrupts) -> Iterator[None]:
    before = {number: signal.signal(number, interrupts.take) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
