"""Keeps a schedule: sends every turn when it is due and collects the records. Facts only.

Knows nothing of engines, prompts or metrics, and not whether its clock is real.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.client import Client, LiveClient, Request, failed_record, network_error_kind
from harness.load.schedule import ClosedLoop, OpenLoop, Schedule, Slots
from harness.results.store import RequestRecord
from harness.timing import Clock
from harness.workloads import Conversation

Progress = Callable[[RequestRecord], object]
CANCELLED = "cancelled"  # the kind of what was in flight when the run was interrupted


def requests_of(conversations: Sequence[Conversation]) -> tuple[tuple[Request, ...], ...]:
    """Return the requests of each conversation, by turn.

    Ids such as `c00012-t03` are unique and sort as the requests stand here.
    """
    digits = max(5, len(str(len(conversations) - 1)))
    return tuple(
        _requests_of_one(f"c{index:0{digits}}", conversation)
        for index, conversation in enumerate(conversations)
    )


def _requests_of_one(name: str, conversation: Conversation) -> tuple[Request, ...]:
    digits = max(2, len(str(len(conversation.turns) - 1)))
    return tuple(
        Request(
            request_id=f"{name}-t{number:0{digits}}",
            conversation=conversation.conversation_id,
            turn=number,
            prompt=turn.prompt,
            output_tokens=turn.output_tokens,
            live=conversation.live,
        )
        for number, turn in enumerate(conversation.turns)
    )


async def play(
    client: Client,
    clock: Clock,
    schedule: Schedule,
    conversations: Sequence[Conversation],
    *,
    progress: Progress | None = None,
) -> list[RequestRecord]:
    """Return one record for every turn, as `play_sessions` does.

    All requests are made first; the schedule's times count from the moment when they are.
    """
    sessions = sessions_of(conversations)
    return await play_sessions(client, clock, schedule, sessions, clock.now_ns(), progress=progress)


async def play_sessions(
    client: Client,
    clock: Clock,
    schedule: Schedule,
    sessions: Sequence[Session],
    begin_ns: int,
    *,
    progress: Progress | None = None,
) -> list[RequestRecord]:
    """Return one record for every turn, in the order of `sessions` and turns.

    The schedule's times count from `begin_ns` of the clock.
    A later turn is due at the last byte of the answer before plus its think time. A turn that
    fails does not end its conversation: the drawn answer stands in the history, so what follows can
    be asked all the same. What a network can cause becomes a failed record; any other exception of
    the client is a bug, stops everything and comes out as it is.

    `progress` gets each record once, as its request ends. When `play` is cancelled it stops, hands
    a record of kind `cancelled` to `progress` for each request in flight, sends nothing more and
    lets the cancellation through: pass a list's `append` to keep what an interrupted run has.
    """
    if isinstance(schedule, ClosedLoop):
        schedule = schedule.slots(len(sessions))
    player = _Player(client=client, clock=clock, progress=progress)
    try:
        async with asyncio.TaskGroup() as tasks:
            if isinstance(schedule, Slots):
                _start_slots(player, schedule, sessions, begin_ns, tasks)
            else:
                await _start_on_time(player, schedule, sessions, begin_ns, tasks)
    except BaseExceptionGroup as group:
        bug = group.exceptions[0]  # as itself: who catches its type need not know of tasks
    else:
        return _collected(sessions)
    raise bug


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation in progress: its requests, and the records so far."""

    name: str
    requests: tuple[Request, ...]
    think_times_ns: tuple[int, ...]
    records: list[RequestRecord] = field(default_factory=list)


def sessions_of(conversations: Sequence[Conversation]) -> list[Session]:
    """Return the conversations as they are played, each with its requests."""
    return [
        Session(
            name=one.conversation_id,
            requests=requests,
            think_times_ns=tuple(turn.think_time_ns for turn in one.turns),
        )
        for one, requests in zip(conversations, requests_of(conversations), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """Plays conversations turn by turn, each turn after the answer to the one before."""

    client: Client
    clock: Clock
    progress: Progress | None

    async def converse(self, session: Session, start_ns: int) -> int:
        """Return when the last answer ended, in nanoseconds; `start_ns` when there is no turn."""
        ended_ns, before = start_ns, None
        for drawn, think_time_ns in zip(session.requests, session.think_times_ns, strict=True):
            request = drawn if before is None else self.continued(drawn, before)
            due_ns = ended_ns if request.turn == 0 else ended_ns + think_time_ns
            if due_ns > self.clock.now_ns():
                await self.clock.sleep_until_ns(due_ns)
            record = await self.send(request, due_ns)
            session.records.append(record)
            ended_ns, before = record.closed_ns, request
        return ended_ns

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` after `before` has been answered; in a live chat it is made only now.

        What that takes is part of the think time, or else delays the sending: the time at which
        the request is due stays.
        """
        if request.live and isinstance(self.client, LiveClient):
            return self.client.continued(request, before)
        return request

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Return the request's record, failed where the network failed."""
        try:
            record = await self.client.send(request, scheduled_ns)
        except asyncio.CancelledError:
            self.report(self.failed(request, scheduled_ns, CANCELLED, "the run was interrupted"))
            raise
        except (OSError, EOFError) as error:
            kind = network_error_kind(error)
            if kind is None:
                raise
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            record = self.failed(request, scheduled_ns, kind, text)
        self.report(record)
        return record

    def failed(self, request: Request, scheduled_ns: int, kind: str, text: str) -> RequestRecord:
        now_ns = self.clock.now_ns()
        return failed_record(request, scheduled_ns, closed_ns=now_ns, kind=kind, text=text)

    def report(self, record: RequestRecord) -> None:
        if self.progress is not None:
            self.progress(record)


def _start_slots(
    player: _Player,
    schedule: Slots,
    sessions: Sequence[Session],
    begin_ns: int,
    tasks: asyncio.TaskGroup,
) -> None:
    """Start one task for each slot of a closed loop; they share the queue of conversations."""
    waiting = deque(sessions)
    for slot, offset_ns in enumerate(schedule.starts_ns):
        tasks.create_task(_fill_slot(player, waiting, begin_ns + offset_ns), name=f"slot {slot}")


async def _fill_slot(player: _Player, waiting: deque[Session], start_ns: int) -> None:
    """Play conversations one after the other until none is left.

    They start in the order of the queue; the next is due when the last answer has ended.
    """
    await player.clock.sleep_until_ns(start_ns)
    due_ns = start_ns
    while waiting:
        due_ns = await player.converse(waiting.popleft(), due_ns)


async def _start_on_time(
    player: _Player,
    schedule: OpenLoop,
    sessions: Sequence[Session],
    begin_ns: int,
    tasks: asyncio.TaskGroup,
) -> None:
    """Start each conversation at its time, or later where `max_concurrency` makes it wait."""
    if len(schedule.starts_ns) != len(sessions):
        raise ValueError(f"{len(schedule.starts_ns)} starts for {len(sessions)} conversations")
    places = asyncio.Semaphore(schedule.max_concurrency or max(len(sessions), 1))
    for session, offset_ns in zip(sessions, schedule.starts_ns, strict=True):
        await player.clock.sleep_until_ns(begin_ns + offset_ns)
        await places.acquire()
        task = tasks.create_task(player.converse(session, begin_ns + offset_ns), name=session.name)
        task.add_done_callback(lambda _: places.release())


def _collected(sessions: Sequence[Session]) -> list[RequestRecord]:
    """All records in order. A request that vanished is a bug here, never a smaller number."""
    records = [record for session in sessions for record in session.records]
    turns = sum(len(session.requests) for session in sessions)
    if len(records) != turns:
        raise RuntimeError(f"{turns} requests but {len(records)} records")
    return records
