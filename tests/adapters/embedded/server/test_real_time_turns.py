"""Requests that join a started step because only sockets and parsing delayed them."""

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


def test_a_short_client_delay_does_not_change_latencies() -> None:
    """A pause of 3 ms between a response and the next request changes no later token."""
    asked, pause_ns = conversations(3, 30), 3 * MS
    schedule = ClosedLoop(concurrency=5)

    slow = directly(schedule, asked, pause_ns=pause_ns)[5:]
    fast = virtually(schedule, asked)[5:]

    # The first step starts when the first request arrives, so all times shift by the pause.
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
def test_only_a_request_after_a_response_joins_the_started_step(
    wait_ns: int, connection: str, *, joins: bool
) -> None:
    """A request at another time or on another connection waits for the next step."""

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


def test_the_next_request_joins_requests_that_arrived_meanwhile() -> None:
    """A step with only new requests also waits for the next request after a response."""

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

    ends_ns = 22 * MS + 24 * MS  # the second step has both prompts
    assert on_virtual_time(main) == [ends_ns, ends_ns + 2 * MS]


def test_a_request_shortly_after_the_first_joins_its_step() -> None:
    """The requests of a burst to an idle engine start together."""

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
def test_a_step_waits_for_a_request_being_parsed_for_a_limited_time(
    parse_ns: int, *, joins: bool
) -> None:
    """A request that was read before the step started joins it if it is parsed in time."""

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
def test_a_step_waits_only_while_a_request_may_join(then: str | None) -> None:
    """The wait ends as soon as the read bytes are parsed; otherwise the step would be late."""

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


def test_two_requests_that_are_parsed_together_start_together() -> None:
    """Both start together, even if the second was read shortly after the first."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        await until(loop, 103 * MS)
        asking = [Notes(lambda: loop.now_ns) for _ in range(2)]
        engine.submit(ticket(prompt(1), 2, asking[0], 100 * MS, 1))
        engine.submit(ticket(prompt(2), 2, asking[1], 102 * MS, 2))
        await asking[1].ended
        return [one.told[0][0] for one in asking]

    assert on_virtual_time(main) == [124 * MS, 126 * MS]


def test_a_step_waits_at_most_for_the_turnaround() -> None:
    """A client without a further request delays no step."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        long, short = Notes(lambda: loop.now_ns), Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 20, long, 0, "long"))
        engine.submit(ticket(prompt(2), 5, short, 0, "short"))
        await long.ended
        return [at_ns for at_ns, _ in long.told]

    gaps = np.diff(on_virtual_time(main))

    assert gaps.max() < 20.1 * MS
    assert gaps.min() > 20 * MS


def test_a_request_to_an_idle_engine_starts_at_its_arrival() -> None:
    """Its first step starts when its bytes arrive, not after its body is parsed."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> int:
        await until(loop, 500 * MS)
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 1, notes, 497 * MS))
        await notes.ended
        return loop.now_ns

    assert on_virtual_time(main) == 497 * MS + 22 * MS  # 20 ms and 20 prompt tokens of 0.1 ms


def test_a_delayed_first_token_is_never_sent_after_the_second() -> None:
    """The order is kept even if a late loop must send both at once."""
    core = EngineCore(config(), LinearTimer())

    async def main() -> tuple[list[int], list[int]]:
        late_ns = [0]  # delay of the loop's timers

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
