"""The step loop in real time: a step's tokens are sent when the monotonic clock reaches its end.

    start           decided                            end = start of the next step
      │ still open to … │ compute it, prepare the events  │ send │
      └─────────────────┴─────────────────────────────────┴──────┴────── …

Steps follow each other without a gap, however late this process wakes up, so that being late never
adds up. Since nothing really runs, the work of a step is decided a while after it has begun, so
that sockets and parsing cost the engine no time, as on virtual time:

* a request counts from when its bytes were read; the decision waits while it is being parsed;
* a request that arrives within `turnaround_ns` after the end of the one before on its connection
  joins the step that began with that end; so does one that arrives within that time after the one
  that found the engine idle. Its first token is sent as much later as it arrived.

Every other request waits for the step in progress.
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
    """The receiver of one sequence's tokens. None of the calls may wait."""

    def prepare(self, sequence: Sequence, sent_tokens: int) -> Callable[[], None]:
        """Return the call that sends, at the step's end, the tokens after `sent_tokens`."""
        ...

    def drop(self) -> None:
        """End without further tokens: the engine stops."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request in the engine, and its receiver."""

    prompt_ids: NDArray[np.int32]
    output_tokens: int  # requested
    listener: Listener
    arrived_ns: int  # on the monotonic clock
    connection: Hashable  # that it arrived on; the next request on it may follow
    delay_ns: int = 0  # by how much it arrived after the start of its first step
    sequence: Sequence | None = None  # None until a step includes it
    sent_tokens: int = 0  # those of the step in progress included

    @property
    def due_ns(self) -> int:
        """The time that counts as its arrival."""
        return self.arrived_ns - self.delay_ns


@dataclass(frozen=True, slots=True)
class _StepOutput:
    """The tokens that one step gives one request."""

    ticket: Ticket
    sequence: Sequence
    tokens: int
    is_first: bool  # no token was sent before
    send: Callable[[], None]

    def urgency(self) -> int:
        """Return the place in the order of sending; the lowest first."""
        return 0 if self.sequence.finished_ns is not None else 1 if self.is_first else 2


@dataclass(frozen=True, slots=True)
class _Undecided:
    """A step that has begun, and the requests that may still join it."""

    start_ns: int
    late_until_ns: int  # for the connections in `welcome`
    welcome: frozenset[Hashable] | None  # None: everybody

    def admits(self, connection: Hashable, read_ns: int) -> bool:
        """Return whether a request that was read at `read_ns` takes part."""
        welcome = self.welcome is None or connection in self.welcome
        return read_ns <= (self.late_until_ns if welcome else self.start_ns)


class RealTimeEngine:
    """A core whose steps take their time. Lives in one asyncio loop.

    A step is decided at most `turnaround_ns`, where a request is being parsed `patience_ns`, after
    its start has been reached. `now_ns` is the clock of the loop's timers; `fine_ns` is
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
        self._arrived: list[Ticket] = []  # that no step includes yet
        self._open: dict[Sequence, Ticket] = {}
        self._end_ns = 0  # when the step in progress, or the last one, ends
        self._before: ServerCounters | None = None  # counters before the step in progress
        self._expected: dict[Hashable, int] = {}  # connection → when its request was read
        self._turning: set[Hashable] = set()  # connections whose request ended with the last step
        self._next: _Undecided | None = None
        self._delayed: dict[Ticket, Callable[[], None]] = {}  # first tokens that are sent later
        self._woken: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return bool(self._arrived or self._open)

    @property
    def running(self) -> int:
        """Sequences that have KV blocks."""
        return self.core.scheduler.running

    @property
    def waiting(self) -> int:
        """Requests that have none yet, or none any more."""
        return len(self._arrived) + len(self.core.scheduler.waiting)

    def counters(self) -> ServerCounters:
        """Return the running totals; of the step in progress nothing counts before it ends."""
        return self._before or self.core.counters()

    def expect(self, connection: Hashable, read_ns: int) -> None:
        """Note that bytes arrived on `connection`: probably a request that is being parsed."""
        self._expected[connection] = read_ns
        self._wake()

    def settle(self, connection: Hashable) -> None:
        """Note that the request on `connection` was handled."""
        if self._expected.pop(connection, None) is not None:
            self._wake()

    def submit(self, ticket: Ticket) -> None:
        """Include a request in the first step that it may join.

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
        """Forget a request whose client is gone; nothing happens when it has ended."""
        if ticket in self._arrived:
            self._arrived.remove(ticket)
        elif ticket.sequence is not None and ticket.sequence in self._open:
            del self._open[ticket.sequence]
            self._delayed.pop(ticket, None)
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
        """Step until cancelled; then end the requests that are still open."""
        try:
            while True:
                await self._step(await self._next_start_ns())
        finally:
            self.stopped = True
            for ticket in [*self._arrived, *self._open.values()]:
                ticket.listener.drop()

    async def _next_start_ns(self) -> int:
        """Return when the next step starts, once its requests are decided."""
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
        """Return when no request can join the step any more."""
        self._next = begun
        for one in self._arrived:  # arrived before the start of the step was known
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
        """Whether a request that may join can still arrive."""
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
        for output in due:
            self._deliver(output)
        generated = (self.core.counters().output_tokens or 0) - (before.output_tokens or 0)
        computed = self.core.computed_prompt_tokens - computed_before
        self.stats.step_tokens.observe(computed + generated)
        self.stats.late_s.observe((self._now_ns() - self._end_ns) / _NS_PER_S)

    def _hand_over(self, start_ns: int) -> None:
        """Queue in the core the requests that arrived before the step starts."""
        arrived, self._arrived = self._arrived, []
        for ticket in arrived:
            if ticket.due_ns > start_ns:
                self._arrived.append(ticket)
                continue
            sequence = self.core.submit(ticket.prompt_ids, ticket.output_tokens, ticket.due_ns)
            ticket.sequence = sequence
            self._open[sequence] = ticket

    def _prepare(self, finished: list[Sequence]) -> list[_StepOutput]:
        """Return the output of the step in progress, ready to be sent.

        First comes what a client may act on: the ends of requests, then first tokens.
        """
        due = []
        for sequence in [*finished, *self._open]:
            ticket = self._open[sequence]
            tokens = sequence.generated_tokens - ticket.sent_tokens
            if tokens:
                send = ticket.listener.prepare(sequence, ticket.sent_tokens)
                due.append(_StepOutput(ticket, sequence, tokens, ticket.sent_tokens == 0, send))
                ticket.sent_tokens = sequence.generated_tokens
        due.sort(key=_StepOutput.urgency)
        return due

    def _deliver(self, output: _StepOutput) -> None:
        """Send a client the output of the step that ends now."""
        ticket, sequence, stats = output.ticket, output.sequence, self.stats
        if sequence not in self._open:  # cancelled while the step ran
            return
        took_s = (self._end_ns - ticket.due_ns) / _NS_PER_S
        if output.is_first:
            stats.first_token_s.observe(took_s)
        for place in range(output.tokens - 1):
            stats.accepted_at[place] = stats.accepted_at.get(place, 0) + 1
        if sequence.finished_ns is not None:
            del self._open[sequence]
            self._turning.add(ticket.connection)
            stats.finished += 1
            stats.answer_s.observe(took_s)
            started_ns = sequence.started_ns or ticket.due_ns
            stats.queued_s.observe(max(0, started_ns - ticket.due_ns) / _NS_PER_S)
        self._release(ticket)
        if output.is_first and ticket.delay_ns and sequence.finished_ns is None:
            self._delay(ticket, output.send)
        else:
            output.send()

    def _delay(self, ticket: Ticket, send: Callable[[], None]) -> None:
        """Send as much later as `ticket` arrived, before anything else is sent for it."""
        self._delayed[ticket] = send
        at_s = (self._end_ns + min(ticket.delay_ns, self._turnaround_ns)) / _NS_PER_S
        asyncio.get_running_loop().call_at(at_s, self._release, ticket)

    def _release(self, ticket: Ticket) -> None:
        send = self._delayed.pop(ticket, None)
        if send is not None:
            send()

    async def _sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns`, not before; other tasks get their turn even when that has passed."""
        ahead_ns = when_ns - self._fine_ns - self._now_ns()
        await asyncio.sleep(max(ahead_ns, 0) / _NS_PER_S)
        while self._now_ns() < when_ns:
            pass

    async def _wait(self, until_ns: int | None) -> None:
        """Return when `_wake` is called, at the latest at `until_ns`."""
        loop = asyncio.get_running_loop()
        self._woken = woken = loop.create_future()
        timer = None if until_ns is None else loop.call_at(until_ns / _NS_PER_S, self._wake)
        try:
            await woken
        finally:
            self._woken = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
