"""The step loop in real time: what a step brings is told when the monotonic clock reaches its end.

    start           decided                            end = start of the next step
      │ still open to … │ work it out, make answers ready │ send │
      └─────────────────┴─────────────────────────────────┴──────┴────── …

Steps follow each other without a gap, however late this process wakes up, so that being late never
adds up. Since nothing really runs, what a step does is decided a while after it has begun, so that
sockets and parsing cost the engine no time, as on virtual time:

* a request counts from when its bytes were read; the decision waits while it is being parsed;
* who was just answered and asks again on the same connection within `turnaround_ns` joins the step
  that began with the answer's end; so does whoever comes within that time after the request that
  found the engine idle. Their first tokens come as much later as they did.

Everybody else waits for the step in progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.adapters.base import EngineError, ServerCounters
from harness.adapters.embedded.engine import EngineCore, Sequence
from harness.adapters.embedded.server.server_stats import ServerStats

_NS_PER_S = 1_000_000_000
# A timer wakes this much before it is needed, and the rest is spent looking at the clock: the
# kernel rounds a sleep up by 50 µs, and waking a process takes about as long.
_FINE_NS = 150_000


class Listener(Protocol):
    """Who waits for the tokens of one sequence. None of the calls may wait."""

    def prepare(self, sequence: Sequence, told_tokens: int) -> Callable[[], None]:
        """Return what tells, at the step's end, of the tokens from number `told_tokens` on."""
        ...

    def drop(self) -> None:
        """Say that no more will come: the engine stops."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request in the engine's hands, and who waits for it."""

    prompt_ids: NDArray[np.int32]
    output_tokens: int  # asked for
    listener: Listener
    arrived_ns: int  # on the monotonic clock
    connection: Hashable  # what it came on; the next request on it may follow the answer
    delay_ns: int = 0  # how much later than the step began that takes it in
    sequence: Sequence | None = None  # None until a step could take it in
    told_tokens: int = 0  # those of the step in progress included

    @property
    def due_ns(self) -> int:
        """When it counts as having come."""
        return self.arrived_ns - self.delay_ns


@dataclass(frozen=True, slots=True)
class _Told:
    """What one step brings one request."""

    ticket: Ticket
    sequence: Sequence
    tokens: int
    is_first: bool  # no token came before
    tell: Callable[[], None]

    def urgency(self) -> int:
        """Return the place in the order of telling; the lowest first."""
        return 0 if self.sequence.finished_ns is not None else 1 if self.is_first else 2


@dataclass(frozen=True, slots=True)
class _Undecided:
    """A step that has begun, and whom it still takes in."""

    start_ns: int
    late_until_ns: int  # for the connections in `welcome`
    welcome: frozenset[Hashable] | None  # None: everybody

    def admits(self, connection: Hashable, read_ns: int) -> bool:
        """Return whether a request that was read at `read_ns` takes part."""
        welcome = self.welcome is None or connection in self.welcome
        return read_ns <= (self.late_until_ns if welcome else self.start_ns)


class RealTimeEngine:
    """A core whose steps take the time they say. Lives in one asyncio loop.

    A step is decided at most `turnaround_ns`, where a request is being parsed `patience_ns`, after
    its start has been reached. `now_ns` tells the time that the loop's timers go by; `fine_ns` is
    how much earlier than needed a timer is set, to look at the clock for the rest.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        turnaround_ns: int = 0,
        patience_ns: int = 0,
        fine_ns: int = _FINE_NS,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.core = core
        self.stats = ServerStats()
        self.stopped = False
        self._turnaround_ns = turnaround_ns
        self._patience_ns = patience_ns
        self._fine_ns = fine_ns
        self._now_ns = now_ns
        self._arrived: list[Ticket] = []  # those that no step could take in yet
        self._open: dict[Sequence, Ticket] = {}
        self._end_ns = 0  # when the step in progress, or the last one, ends
        self._before: ServerCounters | None = None  # counters before the step in progress
        self._expected: dict[Hashable, int] = {}  # connection → when its request was read
        self._turning: set[Hashable] = set()  # connections whose answer ended with the last step
        self._next: _Undecided | None = None
        self._held: dict[Ticket, Callable[[], None]] = {}  # first tokens that are told later
        self._wanted: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return bool(self._arrived or self._open)

    @property
    def running(self) -> int:
        """Sequences that hold KV blocks."""
        return self.core.scheduler.running

    @property
    def waiting(self) -> int:
        """Requests that hold none yet, or none any more."""
        return len(self._arrived) + len(self.core.scheduler.waiting)

    def counters(self) -> ServerCounters:
        """Return the running totals; of the step in progress nothing counts before it ends."""
        return self._before or self.core.counters()

    def expect(self, connection: Hashable, read_ns: int) -> None:
        """Note that bytes came in on `connection`: a request that is being parsed, it seems."""
        self._expected[connection] = read_ns
        self._wake()

    def settle(self, connection: Hashable) -> None:
        """Note that what came in on `connection` has been dealt with."""
        if self._expected.pop(connection, None) is not None:
            self._wake()

    def submit(self, ticket: Ticket) -> None:
        """Take a request in with the first step that may hold it.

        Raises `EngineError` once the engine has stopped.
        """
        if self.stopped:
            raise EngineError("the engine has stopped")
        self._expected.pop(ticket.connection, None)
        begun = self._next
        if begun is not None and begun.admits(ticket.connection, ticket.arrived_ns):
            ticket.delay_ns = max(ticket.arrived_ns - begun.start_ns, 0)
        self._arrived.append(ticket)
        self._turning.discard(ticket.connection)
        self._wake()

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request whose client is gone; nothing happens when it has been answered."""
        if ticket in self._arrived:
            self._arrived.remove(ticket)
        elif ticket.sequence is not None and ticket.sequence in self._open:
            del self._open[ticket.sequence]
            self._held.pop(ticket, None)
            self.core.cancel(ticket.sequence)
        else:
            return
        self.stats.aborted += 1

    def reset(self) -> None:
        """Make the prefix cache cold. Raises `EngineError` while requests are in flight."""
        if self.busy:
            raise EngineError("the prefix cache cannot be reset while requests are in flight")
        self.core.reset()

    async def run(self) -> None:
        """Step until cancelled; who still waits then is told that no more will come."""
        try:
            while True:
                await self._step(await self._next_start_ns())
        finally:
            self.stopped = True
            for ticket in [*self._arrived, *self._open.values()]:
                ticket.listener.drop()

    async def _next_start_ns(self) -> int:
        """Return when the next step starts, once it is decided who takes part."""
        end_ns, turning = self._end_ns, self._turning
        if self.core.has_work or any(one.due_ns <= end_ns for one in self._arrived):
            late_until_ns = self._now_ns() + self._turnaround_ns if turning else end_ns
            begun = _Undecided(end_ns, late_until_ns, frozenset(turning))
        else:
            self.core.forget_times()
            while not self._arrived:
                await self._wait(None)
            start_ns = max(end_ns, min(one.arrived_ns for one in self._arrived))
            begun = _Undecided(start_ns, start_ns + self._turnaround_ns, None)
        await self._let_join(begun)
        turning.clear()
        return begun.start_ns

    async def _let_join(self, begun: _Undecided) -> None:
        """Return when nobody is left whom the step could still take in."""
        self._next = begun
        for one in self._arrived:  # came before it was known when the step starts
            if begun.admits(one.connection, one.arrived_ns):
                one.delay_ns = max(one.arrived_ns - begun.start_ns, 0)
        patient_until_ns = self._now_ns() + self._patience_ns
        while True:
            until_ns = begun.late_until_ns if self._may_come(begun) else 0
            if any(begun.admits(*read) for read in self._expected.items()):
                until_ns = max(until_ns, patient_until_ns)
            if until_ns <= self._now_ns():
                break
            await self._wait(until_ns)
        self._next = None

    def _may_come(self, begun: _Undecided) -> bool:
        """Whether anybody that is welcome has not come yet."""
        return begun.welcome is None or bool(self._turning)

    async def _step(self, start_ns: int) -> None:
        """Run the step that starts at `start_ns`, until its end."""
        self._hand_over(start_ns)
        if not self.core.has_work:  # all were cancelled meanwhile
            return
        self._before = before = self.core.counters()
        computed_before = self.core.computed_prompt_tokens
        self._end_ns, finished = self.core.advance(start_ns, max_steps=1)
        self.core.catch_up()
        due = self._prepare(finished)
        await self._sleep_until(self._end_ns)
        self._before = None
        for told in due:
            self._tell(told)
        brought = (self.core.counters().output_tokens or 0) - (before.output_tokens or 0)
        computed = self.core.computed_prompt_tokens - computed_before
        self.stats.step_tokens.observe(computed + brought)
        self.stats.late_s.observe((self._now_ns() - self._end_ns) / _NS_PER_S)

    def _hand_over(self, start_ns: int) -> None:
        """Queue in the core those who came before the step starts."""
        arrived, self._arrived = self._arrived, []
        for ticket in arrived:
            if ticket.due_ns > start_ns:
                self._arrived.append(ticket)
                continue
            sequence = self.core.submit(ticket.prompt_ids, ticket.output_tokens, ticket.due_ns)
            ticket.sequence = sequence
            self._open[sequence] = ticket

    def _prepare(self, finished: list[Sequence]) -> list[_Told]:
        """Return what the step in progress brings, ready to be told.

        First come those who may act on it: whose answer ends, then whose first token comes.
        """
        due = []
        for sequence in [*finished, *self._open]:
            ticket = self._open[sequence]
            tokens = sequence.generated_tokens - ticket.told_tokens
            if tokens:
                tell = ticket.listener.prepare(sequence, ticket.told_tokens)
                due.append(_Told(ticket, sequence, tokens, ticket.told_tokens == 0, tell))
                ticket.told_tokens = sequence.generated_tokens
        due.sort(key=_Told.urgency)
        return due

    def _tell(self, told: _Told) -> None:
        """Let a client have what the step that ends now brought."""
        ticket, sequence, stats = told.ticket, told.sequence, self.stats
        if sequence not in self._open:  # cancelled while the step ran
            return
        took_s = (self._end_ns - ticket.due_ns) / _NS_PER_S
        if told.is_first:
            stats.first_token_s.observe(took_s)
        for place in range(told.tokens - 1):
            stats.accepted_at[place] = stats.accepted_at.get(place, 0) + 1
        if sequence.finished_ns is not None:
            del self._open[sequence]
            self._turning.add(ticket.connection)
            stats.finished += 1
            stats.answer_s.observe(took_s)
            started_ns = sequence.started_ns or ticket.due_ns
            stats.queued_s.observe(max(0, started_ns - ticket.due_ns) / _NS_PER_S)
        self._release(ticket)
        if told.is_first and ticket.delay_ns and sequence.finished_ns is None:
            self._hold(ticket, told.tell)
        else:
            told.tell()

    def _hold(self, ticket: Ticket, tell: Callable[[], None]) -> None:
        """Tell as much later as `ticket` came, before anything else is told of it."""
        self._held[ticket] = tell
        at_s = (self._end_ns + min(ticket.delay_ns, self._turnaround_ns)) / _NS_PER_S
        asyncio.get_running_loop().call_at(at_s, self._release, ticket)

    def _release(self, ticket: Ticket) -> None:
        tell = self._held.pop(ticket, None)
        if tell is not None:
            tell()

    async def _sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns`, not before; other tasks get their turn even when that has passed."""
        ahead_ns = when_ns - self._fine_ns - self._now_ns()
        await asyncio.sleep(max(ahead_ns, 0) / _NS_PER_S)
        while self._now_ns() < when_ns:
            pass

    async def _wait(self, until_ns: int | None) -> None:
        """Return when `_wake` is called, at the latest at `until_ns`."""
        loop = asyncio.get_running_loop()
        self._wanted = wanted = loop.create_future()
        timer = None if until_ns is None else loop.call_at(until_ns / _NS_PER_S, self._wake)
        try:
            await wanted
        finally:
            self._wanted = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
