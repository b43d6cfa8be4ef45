"""The real-time driver: the virtual run's times to the nanosecond, where nobody is late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pytest
from engine_play import LinearTimer, config
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import EngineError
from adapters.embedded.config import Speculation
from adapters.embedded.core import EngineCore
from adapters.embedded.fine_loop import fine_loop
from adapters.embedded.real_time import RealTimeEngine, Ticket
from adapters.embedded.sequence import Sequence
from harness.client import Request
from harness.clock import VirtualClock, VirtualLoop, run_virtual, virtual_loop
from harness.loadgen import play
from harness.schedule import ClosedLoop, OpenLoop, Schedule
from harness.virtual_client import VirtualClient
from results.records import RequestRecord
from workloads.base import Conversation, Segment, Turn
from workloads.prompts import token_ids

T = TypeVar("T")
MS = 1_000_000
NGRAM = Speculation(method="ngram", draft_tokens=5, acceptance=0.5)
ARMS: dict[str, dict[str, object]] = {
    "baseline": {},
    "whole prefills": {"chunked_prefill": False},
    "static": {"batching": "static"},
    "one at a time": {"batching": "none"},
    "speculative": {"speculation": NGRAM},
    "small budget": {"max_batched_tokens": 24},
    "tight": {"num_blocks": 64, "max_model_len": 900},
    "tight, speculative": {"num_blocks": 64, "max_model_len": 900, "speculation": NGRAM},
}


@dataclass
class Notes:
    """A listener that writes down what it is told, and when."""

    now_ns: Callable[[], int]
    told: list[tuple[int, list[int]]] = field(default_factory=list)  # (time, token ids)
    dropped: bool = False
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def prepare(self, sequence: Sequence, told_tokens: int) -> Callable[[], None]:
        ids = sequence.output_ids[told_tokens : sequence.generated_tokens].tolist()
        complete = sequence.finished_ns is not None

        def tell() -> None:
            self.told.append((self.now_ns(), ids))
            if complete:
                self.ended.set_result(None)

        return tell

    def drop(self) -> None:
        self.dropped = True
        self.ended.set_result(None)

    @property
    def ids(self) -> list[int]:
        return [token for _, ids in self.told for token in ids]


class DirectClient:
    """Asks a real-time engine without sockets, `pause_ns` after it is told to.

    What it asks takes `parse_ns` to be understood.
    """

    def __init__(
        self, engine: RealTimeEngine, loop: VirtualLoop, pause_ns: int, parse_ns: int
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._pause_ns = pause_ns
        self._parse_ns = parse_ns
        self._idle: list[int] = []
        self._connections = 0
        self.ids: dict[str, list[int]] = {}

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        await VirtualClock(self._loop).sleep_until_ns(self._loop.now_ns + self._pause_ns)
        if not self._idle:
            self._connections += 1
            self._idle.append(self._connections)
        connection, sent_ns = self._idle.pop(), self._loop.now_ns
        notes = Notes(lambda: self._loop.now_ns)
        ids = token_ids(request.prompt)
        self._engine.expect(connection, sent_ns)
        await VirtualClock(self._loop).sleep_until_ns(sent_ns + self._parse_ns)
        self._engine.submit(ticket(ids, request.output_tokens, notes, sent_ns, connection))
        await notes.ended
        self._idle.append(connection)
        self.ids[request.request_id] = notes.ids
        return RequestRecord(
            request_id=request.request_id,
            conversation=request.conversation,
            turn=request.turn,
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns,
            first_byte_ns=notes.told[0][0],
            token_events=np.array([(at_ns, len(ids)) for at_ns, ids in notes.told], np.int64),
            closed_ns=notes.told[-1][0],
            asked_tokens=request.output_tokens,
        )


def ticket(
    prompt: np.ndarray[Any, np.dtype[np.int32]],
    output_tokens: int,
    notes: Notes,
    arrived_ns: int,
    connection: object = None,
) -> Ticket:
    return Ticket(
        prompt_ids=prompt,
        output_tokens=output_tokens,
        listener=notes,
        arrived_ns=arrived_ns,
        connection=connection,
    )


def prompt(number: int, tokens: int = 20) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(tokens, dtype=np.int32) + 1000 * number


def on_virtual_time(
    main: Callable[[RealTimeEngine, VirtualLoop], Coroutine[Any, Any, T]],
    changes: dict[str, object] | None = None,
    *,
    turnaround_ns: int = 5 * MS,
    patience_ns: int = 8 * MS,
) -> T:
    """Return what `main` returns; it gets an engine that runs meanwhile."""

    async def with_engine() -> T:
        loop = virtual_loop()
        core = EngineCore(config(**changes or {}), LinearTimer())
        engine = RealTimeEngine(
            core,
            turnaround_ns=turnaround_ns,
            patience_ns=patience_ns,
            fine_ns=0,
            now_ns=lambda: loop.now_ns,
        )
        running = asyncio.create_task(engine.run())
        try:
            return await main(engine, loop)
        finally:
            running.cancel()
            await asyncio.wait([running])

    return run_virtual(with_engine())


async def until(loop: VirtualLoop, at_ns: int) -> None:
    await VirtualClock(loop).sleep_until_ns(at_ns)


def conversations(seed: int, count: int, *, turns: int = 1) -> list[Conversation]:
    rng = np.random.default_rng(seed)
    return [
        Conversation(
            conversation_id=f"user-{number}",
            turns=tuple(
                Turn(
                    prompt=(
                        Segment(7, 100),
                        Segment(number * 100 + turn, int(rng.integers(1, 90))),
                    ),
                    output_tokens=int(rng.integers(1, 60)),
                )
                for turn in range(turns)
            ),
        )
        for number in range(count)
    ]


def directly(
    schedule: Schedule,
    asked: list[Conversation],
    changes: dict[str, object] | None = None,
    *,
    pause_ns: int = 0,
    parse_ns: int = 0,
    turnaround_ns: int = 5 * MS,
) -> list[RequestRecord]:
    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[RequestRecord]:
        client = DirectClient(engine, loop, pause_ns, parse_ns)
        return await play(client, VirtualClock(loop), schedule, asked)

    return on_virtual_time(main, changes, turnaround_ns=turnaround_ns)


def virtually(
    schedule: Schedule, asked: list[Conversation], changes: dict[str, object] | None = None
) -> list[RequestRecord]:
    async def main() -> list[RequestRecord]:
        loop = virtual_loop()
        core = EngineCore(config(**changes or {}), LinearTimer())
        return await play(VirtualClient(core, loop), VirtualClock(loop), schedule, asked)

    return run_virtual(main())


def same_events(some: list[RequestRecord], others: list[RequestRecord]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.request_id == other.request_id
        assert one.sent_ns == other.sent_ns
        np.testing.assert_array_equal(one.token_events, other.token_events)


@pytest.mark.parametrize("parse_ns", [0, 7 * MS])
@pytest.mark.parametrize("ramp_ns", [0, 300 * MS])
@pytest.mark.parametrize("arm", ARMS)
def test_a_closed_loop_has_the_times_of_the_virtual_run(
    arm: str, ramp_ns: int, parse_ns: int
) -> None:
    """Step by step, told at each end, with clients that ask again at once: the same run."""
    asked = conversations(1, 24, turns=2)
    schedule = ClosedLoop(concurrency=5, ramp_ns=ramp_ns)

    direct = directly(schedule, asked, ARMS[arm], parse_ns=parse_ns)
    same_events(direct, virtually(schedule, asked, ARMS[arm]))


@pytest.mark.parametrize("parse_ns", [0, 7 * MS])
@pytest.mark.parametrize("arm", ARMS)
def test_an_open_loop_has_the_times_of_the_virtual_run(arm: str, parse_ns: int) -> None:
    """Whoever comes in the middle of a step waits for its end, no more and no less."""
    asked = conversations(2, 24)
    rng = np.random.default_rng(2)
    starts = np.cumsum(rng.exponential(1.5e8, 24)).astype(int).tolist()
    schedule = OpenLoop(starts_ns=tuple(starts))

    # Connections are kept here too: without a turnaround nobody follows an answer.
    direct = directly(schedule, asked, ARMS[arm], parse_ns=parse_ns, turnaround_ns=0)
    same_events(direct, virtually(schedule, asked, ARMS[arm]))


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
    [(4 * MS, "first", True), (6 * MS, "first", False), (4 * MS, "another", False)],
)
def test_only_who_was_just_answered_joins_the_step_that_has_begun(
    wait_ns: int, connection: str, *, joins: bool
) -> None:
    """Later than the turnaround, or on another connection, a request waits for the next step."""

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

    following = [end_ns for end_ns in step_ends if end_ns > answered_ns]
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


@pytest.mark.parametrize("settled", [True, False])
def test_a_step_waits_for_no_request_that_was_refused(*, settled: bool) -> None:
    """What turned out to be none is settled; with the patience of this test it would be late."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int]:
        notes = Notes(lambda: loop.now_ns)
        engine.submit(ticket(prompt(1), 3, notes, 0, 1))
        await until(loop, 10 * MS)
        engine.expect(2, 10 * MS)
        if settled:
            engine.settle(2)
        await notes.ended
        return [at_ns for at_ns, _ in notes.told]

    told = on_virtual_time(main, patience_ns=50 * MS)

    assert (told[1] < 43 * MS) == settled  # the second step ends after 42 ms


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


def test_a_step_tells_first_those_who_may_act_on_it() -> None:
    """Answers that end come first, then first tokens, then all the others."""

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

    # The fourth step brings the last token of one and the first of another.
    start_ns = next(at_ns for at_ns, name in order if name == "starts")
    told = [name for at_ns, name in order if at_ns == start_ns]
    assert told == ["ends", "starts", "goes on"]


def test_nothing_counts_before_its_step_has_ended() -> None:
    """Counters read in the middle of a step are those of its start."""

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> list[int | None]:
        engine.submit(ticket(prompt(1), 3, Notes(lambda: loop.now_ns), 0))
        seen = []
        for at_ns in (10 * MS, 30 * MS, 50 * MS, 70 * MS):
            await until(loop, at_ns)
            seen.append(engine.counters().output_tokens)
        return seen

    assert on_virtual_time(main) == [0, 1, 2, 3]  # steps end at 22, 42 and 62 ms


def test_a_cancelled_request_is_told_no_more_and_holds_no_block() -> None:
    """From the moment its client is gone; the others' tokens go on coming."""

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
        assert held == 2  # of the one that stays
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
def test_clients_come_and_go_as_they_like(
    arm: str, seed: int, patience_ms: list[int | None]
) -> None:
    """Whoever stays gets every token once and in order; when all are gone no block is held."""
    asked = conversations(seed, len(patience_ms))

    async def main(engine: RealTimeEngine, loop: VirtualLoop) -> None:
        async def ask(number: int, patience: int | None) -> None:
            await until(loop, number * 37 * MS)
            turn, notes = asked[number].turns[0], Notes(lambda: loop.now_ns)
            one = ticket(token_ids(turn.prompt), turn.output_tokens, notes, loop.now_ns, number % 3)
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


def test_being_late_once_does_not_make_the_end_late() -> None:
    """A loop that stood still for three steps catches up: 30 steps still take 30 steps' time."""
    core = EngineCore(config(), QuickTimer())

    async def main() -> float:
        engine = RealTimeEngine(core)
        running = asyncio.create_task(engine.run())
        notes, begun_ns = Notes(time.monotonic_ns), time.monotonic_ns()
        engine.submit(ticket(prompt(1), 30, notes, begun_ns))
        await asyncio.sleep(0.05)
        time.sleep(0.03)  # noqa: ASYNC251 - this is the standstill
        await notes.ended
        running.cancel()
        await asyncio.wait([running])
        return (notes.told[-1][0] - begun_ns) / MS

    with asyncio.Runner(loop_factory=fine_loop) as runner:
        took_ms = min(runner.run(main()) for _ in range(3))

    assert 300 <= took_ms < 320


class QuickTimer(LinearTimer):
    """10 ms a step, whatever is in it."""

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        return 0.01, 0.0

    def step_s(self, *_: object) -> float:
        return 0.01


def test_when_the_engine_stops_everybody_who_waits_is_told() -> None:
    """In mid-answer and in the queue alike; and nobody is taken in any more."""

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


def test_a_bug_in_a_step_comes_out_of_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server must not go on as if nothing had happened: the error ends it, waiters are told."""

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
    """While one is open, even before a step took it in, a reset would lie about being cold."""

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
