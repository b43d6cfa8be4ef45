"""Who takes part in a step that has begun: those for whom only sockets and parsing took time."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from engine_play import LinearTimer, config
from real_time_play import (
    MS,
    Notes,
    conversations,
    directly,
    on_virtual_time,
    prompt,
    ticket,
    until,
    virtually,
)

from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.server.real_time import RealTimeEngine
from harness.adapters.embedded.server.server import fine_loop
from harness.load.schedule import ClosedLoop
from harness.timing.clock import VirtualLoop


def test_a_client_that_needs_a_moment_has_the_latencies_of_one_that_does_not() -> None:
    """3 ms between an answer and the next request on its connection change no later token."""
    asked, pause_ns = conversations(3, 30), 3 * MS
    schedule = ClosedLoop(concurrency=5)

    slow = directly(schedule, asked, pause_ns=pause_ns)[5:]
    fast = virtually(schedule, asked)[5:]

    # The very first step starts when the first request comes: that moves everything by the pause.
    for late, prompt_one in zip(slow, fast, strict=True):
        assert late.sent_ns is not None
        assert prompt_one.sent_ns is not None
        moved = late.token_events - prompt_one.token_events
        assert late.sent_ns - prompt_one.sent_ns == 2 * pause_ns
        assert moved[1:, 0].tolist() == [pause_ns] * (len(moved) - 1)
        assert moved[0, 0] == (2 * pause_ns if len(moved) > 1 else pause_ns)


@pytest.mark.parametrize(
    ("wait_ns", "connection", "joins"),
    [
        (4 * MS, "first", True),
        (6 * MS, "first", False),  # later than the turnaround
        (24 * MS, "first", False),  # soon after the end of a later step
        (4 * MS, "another", False),
    ],
)
def test_only_who_was_just_answered_joins_the_step_that_has_begun(
    wait_ns: int, connection: str, *, joins: bool
) -> None:
    """At any other time or on another connection, a request waits for the next step."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> tuple[int, int, list[int]]:
        others, first, second = (Notes(lambda: loop.now_ns) for _ in range(3))
        engine.submit(ticket(prompt(1), 60, others, 0, "others"))
        engine.submit(ticket(prompt(2), 10, first, 0, "first"))
        await first.ended
        answered_ns = loop.now_ns
        await until(loop, answered_ns + wait_ns)
        engine.submit(ticket(prompt(3), 10, second, loop.now_ns, connection))
        await second.ended
        return answered_ns, second.told[0][0], [at_ns for at_ns, _ in others.told]

    answered_ns, first_token_ns, step_ends = on_virtual_time(main)

    following = [end_ns for end_ns in step_ends if end_ns > answered_ns + wait_ns]
    assert first_token_ns == (following[0] + wait_ns if joins else following[1])


def test_who_asks_again_joins_those_who_came_while_the_last_answer_ended() -> None:
    """A step of newcomers only waits for the answered one just like any other."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        first, newcomer, again = (Notes(lambda: loop.now_ns) for _ in range(3))
        engine.submit(ticket(prompt(1), 1, first, 0, "first"))
        await until(loop, 10 * MS)
        engine.submit(ticket(prompt(2), 1, newcomer, loop.now_ns, "newcomer"))
        await first.ended
        await until(loop, loop.now_ns + 2 * MS)
        engine.submit(ticket(prompt(3), 2, again, loop.now_ns, "first"))
        await again.ended
        return [newcomer.told[0][0], again.told[0][0]]

    ends_ns = 22 * MS + 24 * MS  # the second step holds both prompts
    assert on_virtual_time(main) == [ends_ns, ends_ns + 2 * MS]


def test_who_comes_shortly_after_the_first_shares_its_first_step() -> None:
    """A burst that finds the engine idle starts together, however long its sending took."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        await until(loop, 100 * MS)
        asking = [Notes(lambda: loop.now_ns) for _ in range(3)]
        for number, (one, at_ns) in enumerate(zip(asking, (100, 103, 106), strict=True)):
            await until(loop, at_ns * MS)
            engine.submit(ticket(prompt(number), 2, one, loop.now_ns, number))
        await asking[2].ended
        return [one.told[0][0] for one in asking]

    end_ns = 100 * MS + 24 * MS  # 20 ms and 40 prompt tokens of 0.1 ms
    first, second, third = on_virtual_time(main)
    assert (first, second) == (end_ns, end_ns + 3 * MS)
    assert third > end_ns + 20 * MS  # more than the turnaround after the first: the next step


@pytest.mark.parametrize(("parse_ns", "joins"), [(7 * MS, True), (9 * MS, False)])
def test_a_step_waits_for_what_is_being_parsed_but_not_for_ever(
    parse_ns: int, *, joins: bool
) -> None:
    """A request that was read before the step began takes part if it is known in time."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> tuple[int, list[int]]:
        others, late = Notes(lambda: loop.now_ns), Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 9, others, 0, 1))
        await until(loop, 21 * MS)
        engine.expect(2, 21 * MS)  # 1 ms before the first step ends
        await until(loop, 22 * MS + parse_ns)
        engine.submit(ticket(prompt(2), 2, late, 21 * MS, 2))
        await late.ended
        return late.told[0][0], [at_ns for at_ns, _ in others.told]

    first_token_ns, step_ends = on_virtual_time(main)

    assert first_token_ns == step_ends[1 if joins else 2]


@pytest.mark.parametrize("then", ["refused", "submitted", None])
def test_a_step_waits_only_while_there_is_something_to_wait_for(then: str | None) -> None:
    """What was read is known to be a request, or none; with this much patience it would be late."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 3, notes, 0, 1))
        await until(loop, 10 * MS)
        engine.expect(2, 10 * MS)
        if then == "refused":
            engine.settle(2)
        if then == "submitted":
            engine.submit(ticket(prompt(2), 3, Notes(lambda: loop.now_ns), 10 * MS, 2))
        await notes.ended
        return [at_ns for at_ns, _ in notes.told]

    told = on_virtual_time(main, patience_ns=50 * MS)

    assert (told[1] < 50 * MS) == (then is not None)


def test_two_who_are_known_at_once_start_together() -> None:
    """Also where the second was read a little after the first, which found the engine idle."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        await until(loop, 103 * MS)
        asking = [Notes(lambda: loop.now_ns) for _ in range(2)]
        engine.submit(ticket(prompt(1), 2, asking[0], 100 * MS, 1))
        engine.submit(ticket(prompt(2), 2, asking[1], 102 * MS, 2))
        await asking[1].ended
        return [one.told[0][0] for one in asking]

    assert on_virtual_time(main) == [124 * MS, 126 * MS]


def test_a_step_waits_for_nobody_longer_than_the_turnaround() -> None:
    """A client that never asks again holds up no one: steps follow each other without a gap."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        long, short = Notes(lambda: loop.now_ns), Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 20, long, 0, "long"))
        engine.submit(ticket(prompt(2), 5, short, 0, "short"))
        await long.ended
        return [at_ns for at_ns, _ in long.told]

    gaps = np.diff(on_virtual_time(main))

    assert gaps.max() < 20.1 * MS
    assert gaps.min() > 20 * MS


def test_a_request_that_comes_to_an_idle_engine_starts_when_it_came() -> None:
    """Its first step does not begin when its body had been read, but when its bytes came in."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> int:
        await until(loop, 500 * MS)
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 1, notes, 497 * MS))
        await notes.ended
        return loop.now_ns

    assert on_virtual_time(main) == 497 * MS + 22 * MS  # 20 ms and 20 prompt tokens of 0.1 ms


def test_a_first_token_that_is_held_back_never_comes_after_the_second() -> None:
    """Also where the loop is so late that both are due at once."""
    core = EngineCore(config(), LinearTimer())

    async def main() -> tuple[list[int], list[int]]:
        late_ns = [0]  # how late the loop's timers are

        def now_ns() -> int:
            return time.monotonic_ns() + late_ns[0]

        engine = RealTimeEngine(core, turnaround_ns=8 * MS, now_ns=now_ns)
        running = asyncio.create_task(engine.run())
        others, first, second = (Notes(now_ns) for _ in range(3))
        engine.submit(ticket(prompt(1), 30, others, now_ns(), "others"))
        engine.submit(ticket(prompt(2), 2, first, now_ns(), "same"))
        await first.ended
        await asyncio.sleep(0.006)
        engine.submit(ticket(prompt(3), 6, second, now_ns(), "same"))
        late_ns[0] = 500 * MS
        await second.ended
        running.cancel()
        await asyncio.wait([running])
        return second.ids, [len(ids) for _, ids in second.told]

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        ids, sizes = runner.run(main())
    reference = EngineCore(config(), LinearTimer())
    expected = reference.submit(prompt(3), 6, 0)
    reference.advance(0)

    assert ids == expected.output_ids.tolist()
    assert sizes == [1] * 6
