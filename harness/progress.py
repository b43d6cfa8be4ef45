"""How far a sweep is: two moving bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.plan import PlannedArm, PlannedRun

_REDRAWN_S = 0.2  # a request of a simulated run ends in microseconds: not each may move a bar
_SILENT_S = 60.0  # without an answer: a hung engine, or answers that are long
_LINE_S = 30.0  # between two lines where there is no terminal


class LiveProgress:
    """Shows the runs of a sweep as they go; nothing else is written while it is entered."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._runs = runs
        self._done = 0
        self._requests_done = 0
        self._in_real_time = False
        self._drawn_s = 0.0
        self._line_s = 0.0
        self._begun_s = time.monotonic()
        self._silence = _Silence()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("runs", total=runs)
        self._one = self._bars.add_task("requests", total=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def starting(self, arm: PlannedArm) -> None:
        """Show that an engine is being started."""
        self._bars.reset(self._one, total=None, description=f"starting {arm.label} · {arm.name}")
        self._draw()

    def started(self, run: PlannedRun, requests: int) -> None:
        """Show that `run` begins."""
        self._requests_done = 0
        self._silence = _Silence()
        self._in_real_time = run.arm.engine_kind != "simulated"
        name = f"{run.arm.name} · {run.workload.name} · {run.load.label}"
        self._bars.reset(self._one, total=requests, description=name)
        self._draw()

    def requests_done(self, requests: int) -> None:
        """Show that so many more requests have ended, if the last drawing is not fresh.

        Called with 0 while none does: a long silence leaves a line.
        """
        self._requests_done += requests
        if self._silence.lasts(requests):
            self._say(f"no answer has ended for {_SILENT_S:.0f} s; it is waited on")
        if self._in_real_time:  # drawing would hold up the loop whose lateness is measured
            return
        if time.monotonic() - self._drawn_s > _REDRAWN_S:
            self._draw()

    def ended(self, run: PlannedRun, status: str) -> None:
        """Show that `run` is stored; one that is not ok leaves a line."""
        self._done += 1
        if status != "ok":
            name = f"{run.arm.label}: {run.arm.name} · {run.workload.name} · {run.load.label}"
            self._say(f"{status}: {name}, block {run.block}")
        due = self._elapsed_s() - self._line_s > _LINE_S or self._done == self._runs
        if self._bars.disable and due:
            self._line_s = self._elapsed_s()
            self._say(f"{self._done} of {self._runs} runs, {self._line_s:.0f} s")
        self._bars.update(self._all, completed=self._done)

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._bars.update(self._one, completed=self._requests_done)
        with contextlib.suppress(OSError):  # nobody looks any more: the sweep goes on
            self._bars.refresh()

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(Text(line), soft_wrap=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s


class _Silence:
    """How long nothing has been answered."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._reported = False

    def lasts(self, requests: int) -> bool:
        """Return whether it has lasted too long, once for each silence."""
        if requests:
            self._since_s, self._reported = time.monotonic(), False
        lasts = not self._reported and time.monotonic() - self._since_s > _SILENT_S
        self._reported = self._reported or lasts
        return lasts


class RequestCount:
    """Counts answered requests on a terminal, by one short write a second: the load comes first.

    Drawing a bar would hold up the very loop whose lateness is measured.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = stream.isatty()
        self._silence = _Silence()
        self._count = 0
        self._written_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown and self._count:
            self._write("\r\033[K")

    def requests_done(self, requests: int) -> None:
        """Note that so many more requests have ended."""
        self._count += requests
        if self._silence.lasts(requests):
            self._write(f"no answer has ended for {_SILENT_S:.0f} s; it is waited on\n")
        if self._shown and time.monotonic() - self._written_s > 1:
            self._written_s = time.monotonic()
            self._write(f"\r{self._count} requests answered")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody looks any more: the load goes on
            self._stream.write(text)
            self._stream.flush()
