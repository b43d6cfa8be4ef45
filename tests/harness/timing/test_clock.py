"""Tests of the clocks: the virtual loop is exact and never waits, the real one is never early."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from harness.timing.clock import (
    MonotonicClock,
    VirtualClock,
    VirtualLoop,
    run_virtual,
    virtual_loop,
)

MS = 1_000_000
S = 1_000_000_000


def test_a_virtual_year_passes_at_once_and_exactly() -> None:
    """A virtual sleep of a year returns at once, at the exact nanosecond."""
    year_ns = 365 * 86_400 * S + 1

    async def main() -> int:
        clock = VirtualClock(virtual_loop())
        await clock.sleep_until_ns(year_ns)
        return clock.now_ns()

    assert run_virtual(main()) == year_ns


def test_steps_that_a_float_cannot_hold_do_not_drift() -> None:
    """Twenty thousand sleeps add up to the exact integer, step by step."""
    step_ns = 1_001 * MS  # 1.001 s × 1e9 is 1,000,999,999.99… in floats

    async def main() -> tuple[int, int]:
        loop = virtual_loop()
        late = 0
        for number in range(1, 20_001):
            await asyncio.sleep(1.001)
            late += loop.now_ns != number * step_ns
        return loop.now_ns, late

    assert run_virtual(main()) == (20_020 * S, 0)


def test_a_past_time_does_not_turn_the_clock_back() -> None:
    """A timer and a sleep for a past time run now, and the clock does not move."""

    async def main() -> tuple[list[int], int]:
        loop = virtual_loop()
        seen: list[int] = []
        await asyncio.sleep(2)
        loop.call_at_ns(1 * S, lambda: seen.append(loop.now_ns))
        await VirtualClock(loop).sleep_until_ns(1 * S)
        before = loop.now_ns
        await asyncio.sleep(1)
        return seen, before

    assert run_virtual(main()) == ([2 * S], 2 * S)


def test_timers_run_by_time_then_in_the_order_they_were_set() -> None:
    """Two timers for the same instant keep their order."""

    async def main() -> list[str]:
        loop = virtual_loop()
        seen: list[str] = []
        for when_ns, name in ((2, "c"), (1, "a"), (2, "d"), (1, "b")):
            loop.call_at_ns(when_ns, seen.append, name)
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == ["a", "b", "c", "d"]


def test_idle_callbacks_wait_for_all_that_happens_at_this_instant() -> None:
    """An idle callback runs after every task and timer of the instant, and before the clock moves.

    That holds for what a woken task starts in turn, and each idle callback sees an idle loop.
    """

    async def main() -> list[tuple[int, str]]:
        loop = virtual_loop()
        clock = VirtualClock(loop)
        seen: list[tuple[int, str]] = []

        def note(name: str) -> None:
            seen.append((loop.now_ns, name))

        def first_idle() -> None:
            note("idle 1")
            loop.call_soon(note, "made ready by idle 1")
            loop.call_at_ns(loop.now_ns, note, "due at once, set by idle 1")

        async def client(name: str) -> None:
            await clock.sleep_until_ns(5)
            loop.call_when_idle(first_idle if name == "x" else lambda: note("idle 2"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            note(name)

        loop.call_at_ns(6, note, "later")
        await asyncio.gather(client("x"), client("y"))
        await clock.sleep_until_ns(7)
        return seen

    assert run_virtual(main()) == [
        (5, "x"),
        (5, "y"),
        (5, "idle 1"),
        (5, "made ready by idle 1"),
        (5, "due at once, set by idle 1"),
        (5, "idle 2"),
        (6, "later"),
    ]


def test_a_cancelled_idle_callback_does_not_run() -> None:
    """The handle of `call_when_idle` can be cancelled."""

    async def main() -> list[str]:
        loop = virtual_loop()
        seen: list[str] = []
        loop.call_when_idle(seen.append, "gone").cancel()
        loop.call_when_idle(seen.append, "kept")
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main()) == ["kept"]


def test_the_horizon_is_the_next_sleeper_that_still_sleeps() -> None:
    """`next_timer_ns` is the earliest timer; cancelled sleepers do not count; None without any."""

    async def main() -> list[int | None]:
        loop = virtual_loop()
        clock = VirtualClock(loop)
        sleepers = [asyncio.create_task(clock.sleep_until_ns(t)) for t in (30, 10, 20)]
        horizons = [loop.next_timer_ns()]
        for index in (None, 1, 2, 0):
            if index is not None:
                sleepers[index].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            horizons.append(loop.next_timer_ns())
        return horizons

    assert run_virtual(main()) == [None, 10, 20, 30, None]


def test_cancelled_timers_do_not_pile_up_nor_move_the_clock() -> None:
    """Timeouts that never fire use no memory and do not move the clock."""

    async def main() -> tuple[int, int]:
        loop = virtual_loop()
        most = 0
        loop.call_later(1000, int)
        for _ in range(2000):
            async with asyncio.timeout(600):
                await asyncio.sleep(0.001)
            most = max(most, len(loop._timers))
        return most, loop.now_ns

    most, now_ns = run_virtual(main())

    assert most < 200
    assert now_ns == 2 * S


def test_the_count_of_cancelled_timers_is_right() -> None:
    """The count equals the heap for timers cancelled before, at and after their time."""

    async def main() -> list[tuple[int, int]]:
        loop = virtual_loop()
        counts = []
        timers = [loop.call_at_ns(number % 50, int) for number in range(300)]
        for step in range(60):
            for timer in timers[::-1][step * 5 : step * 5 + 7]:
                timer.cancel()
                timer.cancel()
            await VirtualClock(loop).sleep_until_ns(step)
            cancelled = sum(timer.cancelled() for _, _, timer in loop._timers)
            counts.append((loop._timers_cancelled, cancelled))
        return counts

    counts = run_virtual(main())

    assert all(counted == there for counted, there in counts)
    assert max(there for _, there in counts) > 5


def test_a_sleeper_cancelled_as_its_time_comes_is_just_cancelled() -> None:
    """A task that is cancelled at the instant of its wake-up ends without an error."""

    async def main() -> tuple[bool, int]:
        loop = virtual_loop()
        sleeper = asyncio.create_task(VirtualClock(loop).sleep_until_ns(10))
        loop.call_at_ns(10, sleeper.cancel)
        await asyncio.sleep(0)
        await asyncio.wait([sleeper])
        return sleeper.cancelled(), loop.now_ns

    assert run_virtual(main()) == (True, 10)


def test_a_stopped_loop_does_not_move_the_clock() -> None:
    """`stop` before `run_forever` runs ready callbacks and no timer, as on any asyncio loop."""
    loop = VirtualLoop()
    seen: list[str] = []
    loop.call_at_ns(5, seen.append, "timer")
    loop.stop()
    loop.run_forever()
    loop.call_soon(seen.append, "ready")
    loop.stop()
    loop.run_forever()

    assert (seen, loop.now_ns) == (["ready"], 0)
    loop.close()


def test_asyncio_timeouts_work_on_virtual_time() -> None:
    """`asyncio.timeout` fires at its virtual time."""

    async def main() -> int:
        loop = virtual_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.sleep(2)
        return loop.now_ns

    assert run_virtual(main()) == 1_500_000_000


def test_a_deadlock_is_an_error_and_does_not_hang() -> None:
    """If a task waits forever, the run ends with an error that contains the task's name."""

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.sleep(3)
        await asyncio.create_task(never(), name="the one that waits")

    with pytest.raises(
        RuntimeError, match=r"deadlock in virtual time at 3000000000 ns.*the one that waits"
    ):
        run_virtual(main())


@pytest.mark.parametrize("door", ["timer", "idle", "soon"])
def test_a_bug_in_a_callback_comes_out(door: str) -> None:
    """An exception in a callback ends the run; asyncio would only log it."""

    def bug() -> None:
        raise ZeroDivisionError("a bug of the engine")

    async def main() -> None:
        loop = virtual_loop()
        doors: dict[str, Callable[[Callable[[], None]], object]] = {
            "timer": lambda callback: loop.call_at_ns(7, callback),
            "idle": loop.call_when_idle,
            "soon": loop.call_soon,
        }
        doors[door](bug)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError, match="a bug of the engine"):
        run_virtual(main())


def test_the_same_program_gives_the_same_history() -> None:
    """Tasks, timers and idle callbacks interleave in one order, run after run."""

    async def main() -> list[tuple[int, int]]:
        loop = virtual_loop()
        seen: list[tuple[int, int]] = []

        async def walker(number: int) -> None:
            for step in range(20):
                await asyncio.sleep((number * step % 7) * 1e-9)
                loop.call_when_idle(lambda: seen.append((loop.now_ns, number)))

        await asyncio.gather(*(walker(number) for number in range(20)))
        await asyncio.sleep(1)
        return seen

    first = run_virtual(main())

    assert len(first) == 400
    assert run_virtual(main()) == first


def test_an_ordinary_loop_is_refused() -> None:
    """A function that needs virtual time raises an error on another loop."""

    async def main() -> None:
        virtual_loop()

    with pytest.raises(RuntimeError, match="use run_virtual"):
        asyncio.run(main())


def test_the_monotonic_clock_is_never_early() -> None:
    """Wake-ups are at or after their targets, and most of them soon after."""
    targets = [number * 7 * MS for number in range(1, 16)]

    async def main() -> list[int]:
        clock = MonotonicClock()
        woken = []
        for target in targets:
            await clock.sleep_until_ns(target)
            woken.append(clock.now_ns())
        return woken

    late_ns = [woken - target for woken, target in zip(asyncio.run(main()), targets, strict=True)]

    assert min(late_ns) >= 0
    assert sorted(late_ns)[len(late_ns) // 2] < 20 * MS  # the median, on a busy machine


def test_a_late_waking_loop_does_not_make_the_monotonic_clock_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wake-ups are on time even if each real sleep is 1.1 ms late, as with epoll."""
    now_ns = [0]

    async def late_sleep(delay_s: float) -> None:
        now_ns[0] += round(delay_s * S) + 1_100_000 if delay_s > 0 else 20_000

    async def main() -> list[int]:
        clock = MonotonicClock()
        late = []
        for target_ns in range(5 * MS, 100 * MS, 5 * MS):
            await clock.sleep_until_ns(target_ns)
            late.append(clock.now_ns() - target_ns)
        return late

    monkeypatch.setattr("harness.timing.clock.time.perf_counter_ns", lambda: now_ns[0])
    monkeypatch.setattr("harness.timing.clock.asyncio.sleep", late_sleep)

    late_ns = asyncio.run(main())

    assert all(0 <= late < 20_000 for late in late_ns)


def test_the_monotonic_clock_lets_others_run_even_when_it_is_late() -> None:
    """A sleep until a past time lets other callbacks run, so a late sender blocks no one."""

    async def main() -> list[str]:
        clock = MonotonicClock()
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "other")
        await clock.sleep_until_ns(0)
        seen.append("sleeper")
        return seen

    assert asyncio.run(main()) == ["other", "sleeper"]


def test_an_interrupt_inside_a_task_is_raised_once(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C inside a task is raised from the loop, and asyncio does not log it again."""

    async def interrupted() -> None:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    async def main() -> None:
        await asyncio.gather(*(asyncio.create_task(interrupted()) for _ in range(3)))

    with pytest.raises(KeyboardInterrupt):
        run_virtual(main())
    gc.collect()

    assert caplog.messages == []
