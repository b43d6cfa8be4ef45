"""The real-time engine has the same times as a virtual run, to the nanosecond."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from engine_play import LinearTimer, config
from hypothesis import given, settings
from hypothesis import strategies as st
from real_time_play import (
    ARMS,
    MS,
    Notes,
    conversations,
    directly,
    on_virtual_time,
    prompt,
    same_events,
    ticket,
    until,
    virtually,
)

from harness.adapters.base import EngineError
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.server.real_time import RealTimeEngine
from harness.adapters.embedded.server.server import fine_loop
from harness.load.schedule import ClosedLoop, OpenLoop
from harness.timing.clock import VirtualLoop, run_virtual, virtual_loop
from harness.workloads.prompts.token_ids import draw_token_ids


@pytest.mark.parametrize("parse_ns", [0, 7 * MS])
@pytest.mark.parametrize("ramp_ns", [0, 300 * MS])
@pytest.mark.parametrize("arm", ARMS)
def test_a_closed_loop_has_the_times_of_the_virtual_run(
    arm: str, ramp_ns: int, parse_ns: int
) -> None:
    """Clients that send the next request at once get the same times as in the virtual run."""
    asked = conversations(1, 24, turns=2)
    schedule = ClosedLoop(concurrency=5, ramp_ns=ramp_ns)

    direct = directly(schedule, asked, ARMS[arm], parse_ns=parse_ns)
    same_events(direct, virtually(schedule, asked, ARMS[arm]))


@pytest.mark.parametrize("parse_ns", [0, 7 * MS])
@pytest.mark.parametrize("arm", ARMS)
def test_an_open_loop_has_the_times_of_the_virtual_run(arm: str, parse_ns: int) -> None:
    """A request that arrives during a step waits exactly for its end."""
    asked = conversations(2, 24)
    rng = np.random.default_rng(2)
    starts = np.cumsum(rng.exponential(1.5e8, 24)).astype(int).tolist()
    schedule = OpenLoop(starts_ns=tuple(starts))

    # Without a turnaround no request joins a started step on a reused connection.
    direct = directly(schedule, asked, ARMS[arm], parse_ns=parse_ns, turnaround_ns=0)
    same_events(direct, virtually(schedule, asked, ARMS[arm]))


def test_the_memory_of_a_server_does_not_grow_with_its_steps() -> None:
    """When no request is left, the times of all steps are cleared."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> tuple[int, int]:
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 50, notes, 0))
        await until(loop, 500 * MS)
        during = engine.core._log.length
        await notes.ended
        await until(loop, loop.now_ns + MS)
        return during, engine.core._log.length

    during, after = on_virtual_time(main)

    assert during > 20
    assert after == 0


def test_a_step_first_sends_output_that_clients_react_to() -> None:
    """Ends of responses are sent first, then first tokens, then all other tokens."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[tuple[int, str]]:
        order: list[tuple[int, str]] = []

        def noting(name: str) -> Notes:
            def now_ns() -> int:
                order.append((loop.now_ns, name))
                return loop.now_ns

            return Notes(now_ns)

        engine.submit(ticket(prompt(1), 9, noting("goes on"), 0, 1))
        engine.submit(ticket(prompt(2), 4, noting("ends"), 0, 2))
        await until(loop, 50 * MS)
        starts = noting("starts")
        engine.submit(ticket(prompt(3), 2, starts, loop.now_ns, 3))
        await starts.ended
        return order

    order = on_virtual_time(main)

    # The fourth step gives the last token of one request and the first of another.
    start_ns = next(at_ns for at_ns, name in order if name == "starts")
    told = [name for at_ns, name in order if at_ns == start_ns]
    assert told == ["ends", "starts", "goes on"]


def test_counters_exclude_the_step_in_progress() -> None:
    """Counters that are read during a step have the values of its start."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int | None]:
        engine.submit(ticket(prompt(1), 3, Notes(lambda: loop.now_ns), 0))
        seen = []
        for at_ns in (10 * MS, 30 * MS, 50 * MS, 70 * MS):
            await until(loop, at_ns)
            seen.append(engine.counters().output_tokens)
        return seen

    assert on_virtual_time(main) == [0, 1, 2, 3]  # steps end at 22, 42 and 62 ms


def test_a_cancelled_request_gets_no_tokens_and_has_no_blocks() -> None:
    """After a disconnect the other requests still get their tokens."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> tuple[Notes, Notes, Notes]:
        stays, goes, early = (Notes(lambda: loop.now_ns) for _ in range(3))
        engine.submit(ticket(prompt(1), 10, stays, 0, 1))
        leaving = ticket(prompt(2, 200), 400, goes, 0, 2)
        engine.submit(leaving)
        await until(loop, 90 * MS)
        unseen = ticket(prompt(3), 400, early, loop.now_ns, 3)
        engine.submit(unseen)
        engine.cancel(unseen)
        engine.cancel(leaving)
        engine.cancel(leaving)
        held = int(np.count_nonzero(engine.core.scheduler.kv.references))
        assert held == 2  # of the remaining request
        await stays.ended
        assert engine.stats.aborted == 2
        assert not engine.busy
        return stays, goes, early

    stays, goes, early = on_virtual_time(main)

    assert len(stays.ids) == 10
    assert all(at_ns <= 90 * MS for at_ns, _ in goes.told)
    assert early.told == []


@settings(max_examples=40, deadline=None)
@given(
    arm=st.sampled_from(sorted(ARMS)),
    seed=st.integers(0, 10**6),
    patience_ms=st.lists(st.one_of(st.none(), st.integers(0, 900)), min_size=1, max_size=16),
)
def test_clients_connect_and_disconnect_at_any_time(
    arm: str, seed: int, patience_ms: list[int | None]
) -> None:
    """Remaining clients get every token once and in order; at the end no block is in use."""
    asked = conversations(seed, len(patience_ms))

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> None:
        async def ask(number: int, patience: int | None) -> None:
            await until(loop, number * 37 * MS)
            turn, notes = asked[number].turns[0], Notes(lambda: loop.now_ns)
            one = ticket(
                draw_token_ids(turn.prompt), turn.output_tokens, notes, loop.now_ns, number % 3
            )
            engine.submit(one)
            if patience is None:
                await notes.ended
                assert one.sequence is not None
                assert notes.ids == one.sequence.output_ids.tolist()
                assert np.all(np.diff([at_ns for at_ns, _ in notes.told]) > 0)
            else:
                await until(loop, loop.now_ns + patience * MS)
                engine.cancel(one)

        await asyncio.gather(*(ask(number, one) for number, one in enumerate(patience_ms)))
        await until(loop, loop.now_ns + 100 * MS)
        assert not engine.busy
        assert not engine.core.has_work
        assert not engine.core.scheduler.kv.references.any()
        assert engine.stats.finished + engine.stats.aborted == len(patience_ms)

    on_virtual_time(main, ARMS[arm])


@pytest.mark.alone
def test_being_late_once_does_not_make_the_end_late() -> None:
    """A loop that is blocked for three steps catches up: 30 steps take the time of 30 steps."""
    core = EngineCore(config(), QuickTimer())

    async def main() -> float:
        engine = RealTimeEngine(core)
        running = asyncio.create_task(engine.run())
        notes, begun_ns = Notes(time.monotonic_ns), time.monotonic_ns()
        engine.submit(ticket(prompt(1), 30, notes, begun_ns))
        await asyncio.sleep(0.05)
        time.sleep(0.03)  # noqa: ASYNC251 - blocks the loop on purpose
        await notes.ended
        running.cancel()
        await asyncio.wait([running])
        return (notes.told[-1][0] - begun_ns) / MS

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        took_ms = min(runner.run(main()) for _ in range(3))

    assert 300 <= took_ms < 320


class QuickTimer(LinearTimer):
    """Step times of 10 ms for any content."""

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        return 0.01, 0.0

    def step_s(self, *_: object) -> float:
        return 0.01


def test_open_requests_end_when_the_engine_stops() -> None:
    """Running and queued requests end, and new requests are refused."""

    async def main() -> tuple[Notes, Notes, RealTimeEngine]:
        loop = virtual_loop()
        core = EngineCore(config(batching="none"), LinearTimer())
        engine = RealTimeEngine(core, fine_ns=0, now_ns=lambda: loop.now_ns)
        running = asyncio.create_task(engine.run())
        served, queued = Notes(lambda: loop.now_ns), Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 50, served, 0, 1))
        engine.submit(ticket(prompt(2), 50, queued, 0, 2))
        await until(loop, 100 * MS)
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(EngineError, match="stopped"):
            engine.submit(ticket(prompt(3), 5, Notes(lambda: loop.now_ns), loop.now_ns))
        return served, queued, engine

    served, queued, engine = run_virtual(main())

    assert served.dropped
    assert queued.dropped
    assert 0 < len(served.told) < 50
    assert engine.stopped


def test_run_raises_a_bug_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a step stops the engine and ends the open requests."""

    async def main() -> Notes:
        loop = virtual_loop()
        core = EngineCore(config(), LinearTimer())
        engine = RealTimeEngine(core, fine_ns=0, now_ns=lambda: loop.now_ns)
        monkeypatch.setattr(core, "catch_up", lambda: 1 // 0)
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 5, notes, 0))
        with pytest.raises(ZeroDivisionError):
            await engine.run()
        return notes

    assert run_virtual(main()).dropped


def test_the_cache_is_reset_between_requests_only() -> None:
    """A reset is refused while a request is open, even before its first step."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int | None]:
        cached = []
        for _ in range(2):
            notes = Notes(lambda: loop.now_ns)
            one = ticket(prompt(1, 100), 3, notes, loop.now_ns)
            engine.submit(one)
            with pytest.raises(EngineError, match="in flight"):
                engine.reset()
            await notes.ended
            assert one.sequence is not None
            cached.append(one.sequence.cached_tokens)
            engine.reset()
        return cached

    assert on_virtual_time(main) == [0, 0]
