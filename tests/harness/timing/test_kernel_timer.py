"""Tests of sleepers on a kernel timer: they wake on time, in order, without polling."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
import uvloop

from harness.timing.clock import MonotonicClock
from harness.timing.kernel_timer import Alarm

MS = 1_000_000
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a timer of Linux"),
]


def test_sleepers_wake_in_the_order_of_their_times_and_not_before() -> None:
    """A sleeper that is added later but has an earlier time wakes first."""

    async def main() -> list[tuple[int, int]]:
        woken: list[tuple[int, int]] = []
        with Alarm() as alarm:
            clock = MonotonicClock(alarm=alarm)

            async def sleep(when_ns: int) -> None:
                await clock.sleep_until_ns(when_ns)
                woken.append((when_ns, clock.now_ns()))

            times = [30 * MS, 10 * MS, 20 * MS, 10 * MS, -5]
            await asyncio.gather(*map(sleep, times))
        return woken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        woken = runner.run(main())

    assert [when for when, _ in woken] == [-5, 10 * MS, 10 * MS, 20 * MS, 30 * MS]
    assert all(at >= when for when, at in woken)


def test_waiting_costs_no_processor_time() -> None:
    """A hundred waits of 2 ms use at most a tenth of a CPU; polling would use most of it."""

    async def main() -> float:
        with Alarm() as alarm:
            clock = MonotonicClock(alarm=alarm)
            begun_s = time.process_time()
            for number in range(1, 101):
                await clock.sleep_until_ns(number * 2 * MS)
            return time.process_time() - begun_s

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) < 0.05


def test_a_cancelled_sleeper_delays_no_other() -> None:
    """A cancelled sleeper is skipped."""

    async def main() -> int:
        with Alarm() as alarm:
            clock = MonotonicClock(alarm=alarm)
            first = asyncio.create_task(clock.sleep_until_ns(5 * MS))
            second = asyncio.create_task(clock.sleep_until_ns(10 * MS))
            await asyncio.sleep(0)
            first.cancel()
            await second
            return clock.now_ns()

    assert 10 * MS <= asyncio.run(main()) < 500 * MS
