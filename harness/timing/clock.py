"""The one place that tells time: a monotonic clock, and a virtual one whose loop never waits."""

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
# An asyncio sleep wakes up to 1 ms late (epoll counts milliseconds) plus scheduling; the rest of a
# wait, at most this long, is spent looking at the clock between other callbacks.
FINE_NS = 1_500_000


class Clock(Protocol):
    """Time since the start of the run, in integer nanoseconds."""

    @property
    def origin_ns(self) -> int:
        """`raw_ns` at the start of the run."""
        ...

    def raw_ns(self) -> int:
        """Return `now_ns` and `origin_ns` in one: the cheapest stamp there is."""
        ...

    def now_ns(self) -> int:
        """Return the time since the start of the run, in nanoseconds."""
        ...

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Return at `when_ns` (never before), or at once when that has passed."""
        ...


class MonotonicClock:
    """`perf_counter_ns`, counted from `origin_ns`: the moment this object was made, or as given.

    It is one clock for all processes of a machine, so several can share an origin.
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
        """Return at `when_ns`, not before; other callbacks get their turn at least once.

        The target is absolute, so that late wake-ups do not add up. Without an alarm the last
        `FINE_NS` are spent looking at the clock.
        """
        alarm = self._alarm if self.now_ns() < when_ns else None
        if alarm is not None and await alarm.sleep_until_ns(self.origin_ns + when_ns):
            return
        coarse_ns = when_ns - FINE_NS - self.now_ns()
        await asyncio.sleep(max(coarse_ns, 0) / NS_PER_S)
        while self.now_ns() < when_ns:  # noqa: ASYNC110 - no event tells the time
            await asyncio.sleep(0)


class VirtualTimer(asyncio.TimerHandle):
    """A callback that waits for its virtual time; `cancel` as with any asyncio timer."""

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
    """An asyncio loop whose clock stands still while anything can run, and then jumps.

    One order of things at every instant, so that the same program gives the same times:
    1. what is ready, first in first out;
    2. timers that are due, by time, then by the order in which they were set;
    3. one callback of `call_when_idle` (then 1 and 2 again);
    4. only now does the clock jump to the next timer.

    Time is an integer count of nanoseconds; `time()` and `call_later` round to it. There are no
    sockets, and nothing waits for threads. Where none of the four is left and the main task has not
    ended, `RuntimeError` names the tasks that wait. An exception that leaves a callback ends the
    run too, where asyncio would only log it.
    """

    # asyncio's own fields that this loop works with; typeshed does not list them
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_ns = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []  # heap by time, then order
        self._timers_set = 0
        self._timers_cancelled = 0  # of those in the heap
        self._idle: deque[asyncio.Handle] = deque()
        self._callback_error: BaseException | None = None
        self.set_exception_handler(_keep_callback_error)

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the loop was made."""
        return self._now_ns

    def time(self) -> float:
        """Return `now_ns` in seconds; `now_ns` is the exact one."""
        return self._now_ns / NS_PER_S

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], *args: object
    ) -> VirtualTimer:
        """Run `callback` at `when_ns`, or at the present instant when that has passed."""
        return self._set_timer(when_ns, callback, args, None)

    def call_when_idle(self, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        """Run `callback` once, at this instant, when nothing else is left to run at it.

        With several, each sees an idle loop: what one makes ready runs before the next.
        """
        handle = asyncio.Handle(callback, args, self)
        self._idle.append(handle)
        return handle

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due; None when no timer is set. Cancelled ones are none."""
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
        """Called by `TimerHandle.cancel`. Keeps a heap of forgotten timeouts from growing."""
        if not timer.queued:
            return
        self._timers_cancelled += 1
        if self._timers_cancelled > 64 and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 1  # `timer`, which asyncio marks only after this call

    def _write_to_self(self) -> None:
        """Wake a waiting selector: there is none, this loop never waits."""

    def _run_once(self) -> None:
        """Play one round of the order above; asyncio calls it until the main task has ended."""
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
        """Move to the ready queue what comes next in the order above."""
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
            f"virtual time stands still at {self._now_ns} ns: nothing is ready, no timer is set,"
            f" and {len(waiting)} tasks wait ({', '.join(waiting[:5])})"
        )
        error.add_note("what they wait for would have to come from outside of this loop")
        return error


def _keep_callback_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Hand an exception that left a callback to `_run_once`, which raises it out of the loop."""
    if isinstance(context.get("exception"), KeyboardInterrupt):
        return  # it has left the loop; the task that was at work then keeps it besides
    if isinstance(loop, VirtualLoop) and "handle" in context and "exception" in context:
        if loop._callback_error is None:  # noqa: SLF001 - the handler is this loop's own
            loop._callback_error = context["exception"]  # noqa: SLF001 - as above
    else:
        loop.default_exception_handler(context)


class VirtualClock:
    """The clock of a `VirtualLoop`: run start is the loop's own zero, one loop for each run."""

    __slots__ = ("_loop", "origin_ns")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.origin_ns = 0

    def now_ns(self) -> int:
        """Return the loop's time, in nanoseconds."""
        return self._loop.now_ns

    raw_ns = now_ns  # it begins at zero

    async def sleep_until_ns(self, when_ns: int) -> None:
        """Return at `when_ns` exactly, or at once when that has passed."""
        if when_ns <= self._loop.now_ns:
            return
        woken = self._loop.create_future()
        timer = self._loop.call_at_ns(when_ns, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()  # a cancelled sleeper is no reason for the clock to move


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what `coroutine` returns, played on a new `VirtualLoop` from time 0."""
    outcome: list[T] = []

    async def keep() -> None:
        # Not the task's own result: the runner has Python write the task as text when it sets
        # signals back, and a text of a run's records takes a tenth of a second.
        outcome.append(await coroutine)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(keep())
    return outcome[0]


def virtual_loop() -> VirtualLoop:
    """Return the running loop; `RuntimeError` where that is not a `VirtualLoop`."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        text = f"needs a VirtualLoop, runs on {type(loop).__name__}: use run_virtual"
        raise RuntimeError(text)  # noqa: TRY004 - the wrong place to call it, as asyncio's own
    return loop
