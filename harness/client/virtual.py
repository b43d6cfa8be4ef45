"""The client of an engine in this process, on virtual time: sending costs no time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from harness.adapters import InProcessEngine
from harness.adapters.embedded import Sequence
from harness.client.base import Request
from harness.client.http import continued, with_answers
from harness.results.store import RequestRecord
from harness.timing import VirtualLoop
from harness.workloads import Segment, TokenIds
from harness.workloads.prompts import Texts


class VirtualClient:
    """Hands requests to the engine core and lets it step between the loop's instants.

    A step begins only when all who woke at an instant have sent what they wanted to send, and the
    core never looks past the loop's next timer, when somebody may send again.
    """

    def __init__(
        self,
        engine: InProcessEngine,
        loop: VirtualLoop,
        expected: Iterable[Segment] = (),
    ) -> None:
        """`expected` are the texts of the prompts to come, which are then made many at once."""
        self._request_ns = engine.request_ns
        self._core = engine.core
        self._loop = loop
        self._texts = Texts(expected)
        self._waiting: dict[Sequence, asyncio.Future[None]] = {}
        self._stepping = False
        self._answers = 0
        self._live: dict[str, TokenIds] = {}  # request of a live chat → its answer

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Return the record of `request`; its token times are the ones that the core wrote."""
        sent_ns = self._loop.now_ns
        if self._request_ns:
            arrived = self._loop.create_future()
            self._loop.call_at_ns(sent_ns + self._request_ns, arrived.set_result, None)
            await arrived
        ids = with_answers(request, self._texts.token_ids(request.prompt))
        sequence = self._core.submit(
            ids, request.output_tokens, self._loop.now_ns, output_read=request.live
        )
        ended = self._loop.create_future()
        self._waiting[sequence] = ended
        if not self._stepping:
            self._stepping = True
            self._loop.call_when_idle(self._step)
        await ended
        if request.live:
            self._live[request.request_id] = sequence.output_ids.copy()
        return self._record(request, scheduled_ns, sent_ns, sequence)

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the engine's own answer to `before` in its prompt."""
        return continued(request, before, self._live.pop(before.request_id, None))

    def _step(self) -> None:
        end_ns, finished = self._core.advance(self._loop.now_ns, self._loop.next_timer_ns())
        self._loop.call_at_ns(end_ns, self._answer, finished)

    def _answer(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            ended = self._waiting.pop(sequence)
            if not ended.done():  # a run that was interrupted waits no more
                ended.set_result(None)
        self._stepping = self._core.has_work
        if self._stepping:
            self._loop.call_when_idle(self._step)

    def _record(
        self, request: Request, scheduled_ns: int, sent_ns: int, sequence: Sequence
    ) -> RequestRecord:
        events = self._core.token_events(sequence)
        self._answers += 1
        return RequestRecord(
            request_id=request.request_id,
            response_id=f"sim-{self._answers}",
            conversation=request.conversation,
            turn=request.turn,
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns,
            first_byte_ns=int(events[0, 0]),
            token_events=events,
            closed_ns=int(events[-1, 0]),
            prompt_tokens=len(sequence.prompt_ids),
            cached_prompt_tokens=sequence.cached_tokens,
            output_tokens=sequence.generated_tokens,
            output_tokens_source="usage",
            asked_tokens=request.output_tokens,
            finish_reason="length",
        )
