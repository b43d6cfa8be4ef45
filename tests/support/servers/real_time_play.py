"""Plays the real-time driver on virtual time: nobody is late, so every time is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from engine_play import LinearTimer, config

from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import SpeculativeConfig
from harness.adapters.embedded.in_process import InProcessEngine
from harness.adapters.embedded.server.real_time import RealTimeEngine, Ticket
from harness.client.base import Request
from harness.client.virtual import VirtualClient
from harness.load.loadgen import play
from harness.load.schedule import Schedule
from harness.results.store.records import RequestRecord
from harness.timing.clock import VirtualClock, VirtualLoop, run_virtual, virtual_loop
from harness.workloads.base import Conversation, Segment, Turn
from harness.workloads.prompts.token_ids import draw_token_ids

T = TypeVar("T")
MS = 1_000_000
NGRAM = SpeculativeConfig(method="ngram", draft_tokens=5, acceptance=0.5)
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

    def prepare(self, sequence: Sequence, sent_tokens: int) -> Callable[[], None]:
        ids = sequence.output_ids[sent_tokens : sequence.generated_tokens].tolist()
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
        ids = draw_token_ids(request.prompt)
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
        engine = InProcessEngine(core=EngineCore(config(**changes or {}), LinearTimer()))
        return await play(VirtualClient(engine, loop), VirtualClock(loop), schedule, asked)

    return run_virtual(main())


def same_events(some: list[RequestRecord], others: list[RequestRecord]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.request_id == other.request_id
        assert one.sent_ns == other.sent_ns
        np.testing.assert_array_equal(one.token_events, other.token_events)
