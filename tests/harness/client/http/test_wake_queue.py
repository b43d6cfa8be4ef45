"""Those who waited for an answer go on when the sockets are quiet, a few at a time, and soon."""

from __future__ import annotations

import asyncio

import pytest

from harness.client.http.wake_queue import WakeQueue
from harness.timing.clock import MonotonicClock


async def woken(wake_queue: WakeQueue, count: int, *, busy_rounds: int) -> list[int]:
    """Rounds of the loop after which each of `count` was awake, with reads in the first rounds."""
    futures = [asyncio.get_running_loop().create_future() for _ in range(count)]
    for future in futures:
        wake_queue.wake(future)
    rounds = [0] * count
    number = 0
    while not all(future.done() for future in futures):
        wake_queue.quiet = wake_queue.quiet and number >= busy_rounds
        await asyncio.sleep(0)
        number += 1
        for index, future in enumerate(futures):
            rounds[index] = rounds[index] or (number if future.done() else 0)
    return rounds


def test_quiet_sockets_keep_nobody_waiting() -> None:
    """One round to see that nothing is read, then it is their turn."""

    async def main() -> list[int]:
        return await woken(WakeQueue(MonotonicClock()), 1, busy_rounds=0)

    assert asyncio.run(main())[0] <= 2


def test_nobody_goes_on_while_bytes_are_read() -> None:
    """As long as each round of the loop reads something, and the limit has not passed."""

    async def main() -> list[int]:
        return await woken(WakeQueue(MonotonicClock()), 3, busy_rounds=10)

    rounds = asyncio.run(main())

    assert min(rounds) > 10
    assert max(rounds) <= 13


def test_few_go_on_at_once_and_in_order() -> None:
    """After eight the sockets are read again; who ended first goes on first."""

    async def main() -> list[int]:
        return await woken(WakeQueue(MonotonicClock()), 20, busy_rounds=0)

    rounds = asyncio.run(main())

    assert rounds == sorted(rounds)
    assert max(rounds.count(number) for number in set(rounds)) == 8
    assert len(set(rounds)) == 3


@pytest.mark.alone
def test_nobody_waits_longer_than_the_limit() -> None:
    """Sockets that are never quiet hold nobody up for more than 2 ms, here with room to spare."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        wake_queue, future = WakeQueue(MonotonicClock()), loop.create_future()
        begin_s = loop.time()
        wake_queue.wake(future)
        while not future.done():
            wake_queue.quiet = False
            await asyncio.sleep(0)
        return loop.time() - begin_s

    assert asyncio.run(main()) < 0.1


def test_who_was_cancelled_is_passed_over() -> None:
    """A future that is done already stays as it is, and the next one has its turn."""

    async def main() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        wake_queue, gone, waiting = (
            WakeQueue(MonotonicClock()),
            loop.create_future(),
            loop.create_future(),
        )
        wake_queue.wake(gone)
        wake_queue.wake(waiting)
        gone.cancel()
        await asyncio.wait_for(waiting, 1)
        return gone.cancelled(), waiting.done()

    assert asyncio.run(main()) == (True, True)


@pytest.mark.parametrize("again", range(2))
def test_turns_go_on_after_all_had_theirs(again: int) -> None:
    """What ended later starts a wait of its own."""

    async def main() -> list[int]:
        wake_queue = WakeQueue(MonotonicClock())
        for _ in range(again):
            await woken(wake_queue, 9, busy_rounds=3)
        return await woken(wake_queue, 1, busy_rounds=2)

    assert 2 < asyncio.run(main())[0] <= 5
