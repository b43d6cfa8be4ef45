"""The step loop in real time. A step's tokens are sent when the monotonic clock reaches its end.

    start           decided                            end = start of the next step
      │ requests join   │ compute it, prepare the events  │ send │
      └─────────────────┴─────────────────────────────────┴──────┴────── …

Each step starts at the end of the previous step, even if the process wakes up late, so delays do
not accumulate. The step is simulated, so its work can be decided shortly after its start. Sockets
and parsing therefore take no engine time, as on virtual time:

* The arrival time of a request is the time at which its bytes were read. The decision waits while
  a request is being parsed.
* A request that arrives within `turnaround_ns` after the previous response on its connection ended
  joins the step that started at that end. A request that arrives within `turnaround_ns` after a
  request to the idle engine joins the same step. Its first token is sent later by the same delay.

Every other request waits for the end of the step in progress.
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
# Timers are set this much early, and a busy loop waits for the rest: the kernel rounds a sleep up
# by 50 µs, and waking a process takes about the same time.
_FINE_NS = 150_000


class Listener(Protocol):
    """The receiver of one sequence's tokens. Its methods must not block."""

    def prepare(self, sequence: Sequence, sent_tokens: int) -> Callable[[], None]:
        """Return a function that sends the tokens after `sent_tokens` at the end of the step."""
        ...

    def drop(self) -> None:
        """End the response without further tokens, because the engine stops."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request to the engine, and its receiver."""

    prompt_ids: NDArray[np.int32]
    output_tokens: int  # requested
    listener: Listener
    arrived_ns: int  # on the monotonic clock
    connection: Hashable  # connection of the request and of possible later requests
    delay_ns: int = 0  # arrival after the start of its first step
    sequence: Sequence | None = None  # None until a step includes it
    sent_tokens: int = 0  # includes the tokens of the step in progress

    @property
    def due_ns(self) -> int:
        """The effective arrival time."""
        return self.arrived_ns - self.delay_ns


@dataclass(frozen=True, slots=True)
class _StepOutput:
    """The tokens of one request in one step."""

    ticket: Ticket
    sequence: Sequence
    tokens: int
    is_first: bool  # contains the first token
    send: Callable[[], None]

    def urgency(self) -> int:
        """Return the sort key for sending; lower keys are sent first."""
        return 0 if self.sequence.finished_ns is not None else 1 if self.is_first else 2


@dataclass(frozen=True, slots=True)
class _Undecided:
    """A started step that requests may still join."""

    start_ns: int
    late_until_ns: int  # latest arrival on a connection in `welcome`
    welcome: frozenset[Hashable] | None  # None: all connections

    def admits(self, connection: Hashable, read_ns: int) -> bool:
        """Return whether a request that was read at `read_ns` joins the step."""
        welcome = self.welcome is None or connection in self.welcome
        return read_ns <= (self.late_until_ns if welcome else self.start_ns)


class RealTimeEngine:
    """An engine core that runs in real time, in one asyncio loop.

    A step is decided at most `turnaround_ns` after its start, or `patience_ns` while a request is
    being parsed. `now_ns` is the clock of the loop's timers. Timers are set `fine_ns` early, and a
    busy loop waits for the rest.
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
        self._arrived: list[Ticket] = []  # requests that no step includes yet
        self._open: dict[Sequence, Ticket] = {}
        self._end_ns = 0  # end of the step in progress, or of the last step
        self._before: ServerCounters | None = None  # counters before the step in progress
        self._expected: dict[Hashable, int] = {}  # connection → read time of its request
        self._turning: set[Hashable] = set()  # connections whose request ended with the last step
        self._next: _Undecided | None = None
        self._delayed: dict[Ticket, Callable[[], None]] = {}  # first tokens to send later
        self._woken: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return bool(self._arrived or self._open)

    @property
    def running(self) -> int:
        """The number of sequences with KV blocks."""
        return self.core.scheduler.running

    @property
    def waiting(self) -> int:
        """The number of requests without KV blocks: new or preempted ones."""
        return len(self._arrived) + len(self.core.scheduler.waiting)

    def counters(self) -> ServerCounters:
        """Return the running totals, without the step in progress."""
        return self._before or self.core.counters()

    def expect(self, connection: Hashable, read_ns: int) -> None:
        """Record that bytes arrived on `connection`, probably a request that is being parsed."""
        self._expected[connection] = read_ns
        self._wake()

    def settle(self, connection: Hashable) -> None:
        """Record that the request on `connection` is handled."""
        if self._expected.pop(connection, None) is not None:
            self._wake()

    def submit(self, ticket: Ticket) -> None:
        """Add a request to the first step that it may join.

        Raises `EngineError` after the engine has stopped.
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
        """Cancel a request after a disconnect. Does nothing if it has ended."""
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
        """Clear the prefix cache. Raises `EngineError` while requests are in flight."""
        if self.busy:
            raise EngineError("the prefix cache cannot be reset while requests are in flight")
        self.core.reset()

    async def run(self) -> None:
        """Run steps until cancelled, then end all open requests."""
        try:
            while True:
                await self._step(await self._next_start_ns())
        finally:
            self.stopped = True
            for ticket in [*self._arrived, *self._open.values()]:
                ticket.listener.drop()

    async def _next_start_ns(self) -> int:
        """Wait until the requests of the next step are decided, and return its start."""
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
        """Wait until no further request can join the step."""
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
        """Return whether a request that joins the step can still arrive."""
        return begun.welcome is None or bool(self._turning)

    async def _step(self, start_ns: int) -> None:
        """Run the step that starts at `start_ns`, and wait for its end."""
        self._submit_arrived(start_ns)
        if not self.core.has_work:  # all requests were cancelled
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

    def _submit_arrived(self, start_ns: int) -> None:
        """Submit the requests that arrived before the step starts to the core."""
        arrived, self._arrived = self._arrived, []
        for ticket in arrived:
            if ticket.due_ns > start_ns:
                self._arrived.append(ticket)
                continue
            sequence = self.core.submit(ticket.prompt_ids, ticket.output_tokens, ticket.due_ns)
            ticket.sequence = sequence
            self._open[sequence] = ticket

    def _prepare(self, finished: list[Sequence]) -> list[_StepOutput]:
        """Return the output of the step in progress, in the order of sending.

        Output that a client may react to comes first: ends of requests, then first tokens.
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
        """Send the output of the step that ends now to one client."""
        ticket, sequence, stats = output.ticket, output.sequence, self.stats
        if sequence not in self._open:  # cancelled during the step
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
        """Send the first token later by the delay of `ticket`, but before its next token."""
        self._delayed[ticket] = send
        at_s = (self._end_ns + min(ticket.delay_ns, self._turnaround_ns)) / _NS_PER_S
        asyncio.get_running_loop().call_at(at_s, self._release, ticket)

    def _release(self, ticket: Ticket) -> None:
        send = self._delayed.pop(ticket, None)
        if send is not None:
            send()

    async def _sleep_until(self, when_ns: int) -> None:
        """Wait until `when_ns`. Other tasks run at least once, even if it has passed."""
        ahead_ns = when_ns - self._fine_ns - self._now_ns()
        await asyncio.sleep(max(ahead_ns, 0) / _NS_PER_S)
        while self._now_ns() < when_ns:
            pass

    async def _wait(self, until_ns: int | None) -> None:
        """Wait for a call of `_wake`, at most until `until_ns`."""
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
