"""The clocks: a monotonic clock, and a virtual clock whose event loop never waits."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol, TypeVar

from harness.timing.kernel_timer import Alarm

T = TypeVar("T")

NS_PER_S = 1_000_000_000
# An asyncio sleep wakes up to 1 ms late (epoll counts milliseconds) plus scheduling. The rest of a
# wait, at most this long, polls the clock between other callbacks.
FINE_NS = 1_500_000


class Clock(Protocol):
    """Time since the start of the run, in integer nanoseconds."""

    @property
    def origin_ns(self) -> int:
        """`raw_ns` at the start of the run."""
        ...

    def raw_ns(self) -> int:
        """Return `now_ns` + `origin_ns`, the cheapest timestamp."""
        ...

    def now_ns(self) -> int:
        """Return the time since the start of the run, in nanoseconds."""
        ...

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `when_ns`, never shorter; return at once if it has passed."""
        ...


class MonotonicClock:
    """`perf_counter_ns` minus `origin_ns`, which is the creation of this object or the argument.

    All processes of a machine have the same clock, so they can share an origin.
    """

    __slots__ = ("_alarm", "origin_ns")

    raw_ns = staticmethod(time.perf_counter_ns)

    def __init__(self, origin_ns: int | None = None, alarm: Alarm | None = None) -> None:
        self.origin_ns = time.perf_counter_ns() if origin_ns is None else origin_ns
        self._alarm = alarm

    def now_ns(self) -> int:
        """Return the time since `origin_ns`, in nanoseconds."""
        return time.perf_counter_ns() - self.origin_ns

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until `when_ns`, never shorter; other callbacks run at least once.

        The target is absolute, so late wake-ups do not add up. Without an alarm the last `FINE_NS`
        poll the clock.
        """
        alarm = self._alarm if self.now_ns() < when_ns else None
        if alarm is not None and await alarm.sleep_until_ns(self.origin_ns + when_ns):
            return
        coarse_ns = when_ns - FINE_NS - self.now_ns()
        await asyncio.sleep(max(coarse_ns, 0) / NS_PER_S)
        while self.now_ns() < when_ns:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0)


class VirtualTimer(asyncio.TimerHandle):
    """A timer of a `VirtualLoop`, with the interface of `asyncio.TimerHandle`."""

    __slots__ = ("queued", "when_ns")

    def __init__(
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when_ns / NS_PER_S, callback, args, loop, context)
        self.when_ns = when_ns
        self.queued = True  # still in the loop's heap


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop whose clock stops while a callback can run, and then jumps.

    The order at every instant is fixed, so that the same program gives the same times:
    1. ready callbacks, first in first out;
    2. due timers, by time, then by the order in which they were set;
    3. one callback of `call_when_idle` (then 1 and 2 again);
    4. the jump of the clock to the next timer.

    Time is an integer number of nanoseconds; `time()` and `call_later` round to it. The loop has no
    sockets and does not wait for threads. If all four steps have nothing to do and the main task
    has not ended, the loop raises `RuntimeError` with the names of the waiting tasks. An exception
    in a callback ends the run; asyncio would only log it.
    """

    # private fields of asyncio that this loop uses; typeshed does not list them
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_ns = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []  # heap by time, then order
        self._timers_set = 0
        self._timers_cancelled = 0  # number of cancelled timers in the heap
        self._idle: deque[asyncio.Handle] = deque()
        self._callback_error: BaseException | None = None
        self.set_exception_handler(_keep_callback_error)

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the creation of the loop."""
        return self._now_ns

    def time(self) -> float:
        """Return `now_ns` in seconds, rounded; `now_ns` is exact."""
        return self._now_ns / NS_PER_S

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], *args: object
    ) -> VirtualTimer:
        """Run `callback` at `when_ns`, or now if it has passed."""
        return self._set_timer(when_ns, callback, args, None)

    def call_when_idle(self, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        """Run `callback` once at this instant, after everything else.

        If there are several, callbacks that one makes ready run before the next one.
        """
        handle = asyncio.Handle(callback, args, self)
        self._idle.append(handle)
        return handle

    def next_timer_ns(self) -> int | None:
        """Return the time of the next timer that is not cancelled; None without one."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)[2].queued = False
            self._timers_cancelled -= 1
        return timers[0][0] if timers else None

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> VirtualTimer:
        """Run `callback` at `when` seconds, rounded to the nanosecond."""
        return self._set_timer(round(when * NS_PER_S), callback, args, context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> VirtualTimer:
        """Run `callback` after `delay` seconds, rounded to the nanosecond."""
        return self._set_timer(self._now_ns + round(delay * NS_PER_S), callback, args, context)

    def _set_timer(
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
    ) -> VirtualTimer:
        timer = VirtualTimer(when_ns, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when_ns, self._timers_set, timer))
        return timer

    def _timer_handle_cancelled(self, timer: VirtualTimer) -> None:
        """Remove cancelled timers if the heap has many; called by `TimerHandle.cancel`."""
        if not timer.queued:
            return
        self._timers_cancelled += 1
        if self._timers_cancelled > 64 and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 1  # `timer`, which asyncio marks only after this call

    def _write_to_self(self) -> None:
        """Do nothing: this loop has no selector to wake."""

    def _run_once(self) -> None:
        """Run one round in the order above; asyncio calls it until the main task has ended."""
        ready = self._ready
        if not ready:
            self._take_next()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - the loop's side of asyncio.Handle has no public name
        if self._callback_error is not None:
            error, self._callback_error = self._callback_error, None
            raise error

    def _take_next(self) -> None:
        """Move the next callbacks in the order above to the ready queue."""
        due_ns = self.next_timer_ns()
        if due_ns is not None and due_ns <= self._now_ns:
            self._take_timers(self._now_ns)
        elif self._idle:
            self._ready.append(self._idle.popleft())
        elif self._stopping:
            return
        elif due_ns is None:
            raise self._deadlock()
        else:
            self._now_ns = due_ns
            self._take_timers(due_ns)

    def _take_timers(self, until_ns: int) -> None:
        while self._timers and self._timers[0][0] <= until_ns:
            timer = heapq.heappop(self._timers)[2]
            timer.queued = False
            if timer.cancelled():
                self._timers_cancelled -= 1
            else:
                self._ready.append(timer)

    def _deadlock(self) -> RuntimeError:
        waiting = sorted(task.get_name() for task in asyncio.all_tasks(self))
        error = RuntimeError(
            f"deadlock in virtual time at {self._now_ns} ns: nothing is ready, no timer is set,"
            f" and {len(waiting)} tasks wait ({', '.join(waiting[:5])})"
        )
        error.add_note("a task on this loop must not wait for an event outside of the loop")
        return error


def _keep_callback_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Store the exception of a callback for `_run_once`, which raises it."""
    if isinstance(context.get("exception"), KeyboardInterrupt):
        return  # the loop has already raised it; the interrupted task reports it a second time
    if isinstance(loop, VirtualLoop) and "handle" in context and "exception" in context:
        if loop._callback_error is None:  # noqa: SLF001 - the handler is this loop's own
            loop._callback_error = context["exception"]  # noqa: SLF001 - as above
    else:
        loop.default_exception_handler(context)


class VirtualClock:
    """The clock of a `VirtualLoop`; each run has its own loop, which starts at 0."""

    __slots__ = ("_loop", "origin_ns")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.origin_ns = 0

    def now_ns(self) -> int:
        """Return the loop's time, in nanoseconds."""
        return self._loop.now_ns

    raw_ns = now_ns  # the origin is 0

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Sleep until exactly `when_ns`; return at once if it has passed."""
        if when_ns <= self._loop.now_ns:
            return
        woken = self._loop.create_future()
        timer = self._loop.call_at_ns(when_ns, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()  # otherwise the timer of a cancelled sleep moves the clock


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on a new `VirtualLoop` from time 0, and return its result."""
    outcome: list[T] = []

    async def keep() -> None:
        # Not the result of the task: the runner formats the task when it resets signal handlers,
        # and formatting the records of a run takes a tenth of a second.
        outcome.append(await coroutine)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(keep())
    return outcome[0]


def virtual_loop() -> VirtualLoop:
    """Return the running loop; raise `RuntimeError` if it is not a `VirtualLoop`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        text = f"needs a VirtualLoop, runs on {type(loop).__name__}: use run_virtual"
        raise RuntimeError(text)  # noqa: TRY004 - asyncio also raises RuntimeError for a call in the wrong place
    return loop
