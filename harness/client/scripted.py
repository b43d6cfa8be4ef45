"""A client whose answers are written down beforehand, to check formulas against known times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.client.base import Request
from harness.results.store import RequestRecord
from harness.timing import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """One answer. Times count from the moment of sending, in nanoseconds."""

    events: tuple[tuple[int, int], ...] = ()  # (time after sending in ns, tokens) of each event
    closed_after_ns: int | None = None  # None: with the last event, at once where there is none
    first_byte_after_ns: int | None = None  # None: with the first event
    output_tokens: int | None = None  # the server's count; None: this server reports none
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    finish_reason: str | None = "length"
    error_kind: str | None = None
    error: str | None = None
    raises: Exception | None = None  # raised when the answer would have ended, in place of a record


Script = Callable[[Request, int], ScriptedAnswer]  # (request, time of sending in ns) → its answer


def always(answer: ScriptedAnswer) -> Script:
    """Return the script that gives every request the same answer."""
    return lambda _request, _sent_ns: answer


def even_answer(
    request: Request, *, ttft_ns: int, gap_ns: int, tokens_per_event: int = 1
) -> ScriptedAnswer:
    """Return the answer with all requested tokens, an event every `gap_ns` after `ttft_ns`.

    Each event holds `tokens_per_event` tokens; the last one holds what is left.
    """
    total = request.output_tokens
    firsts = range(0, total, tokens_per_event)  # index of each event's first token
    return ScriptedAnswer(
        events=tuple(
            (ttft_ns + number * gap_ns, min(tokens_per_event, total - first))
            for number, first in enumerate(firsts)
        ),
        output_tokens=total,
        prompt_tokens=sum(segment.tokens for segment in request.prompt),
    )


class ScriptedClient:
    """Answers as its script does, at the scripted nanosecond.

    Sleeps once, to the end of the answer. The record holds the scripted times counted from the
    moment of sending, on a real loop too, where the waking itself is late.
    """

    __slots__ = ("_clock", "_script")

    def __init__(self, clock: Clock, script: Script) -> None:
        self._clock = clock
        self._script = script

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Return the scripted record, or raise the scripted error."""
        sent_ns = self._clock.now_ns()
        answer = self._script(request, sent_ns)
        events = np.array(answer.events, dtype=np.int64).reshape(-1, 2)
        events[:, 0] += sent_ns
        closed_ns = sent_ns + _closed_after_ns(answer)
        await self._clock.sleep_until_ns(closed_ns)
        if answer.raises is not None:
            raise answer.raises
        return RequestRecord(
            request_id=request.request_id,
            conversation=request.conversation,
            turn=request.turn,
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns,
            first_byte_ns=_first_byte_ns(answer, sent_ns),
            token_events=events,
            closed_ns=closed_ns,
            prompt_tokens=answer.prompt_tokens,
            cached_prompt_tokens=answer.cached_prompt_tokens,
            output_tokens=answer.output_tokens,
            output_tokens_source=None if answer.output_tokens is None else "usage",
            asked_tokens=request.output_tokens,
            finish_reason=None if answer.error_kind else answer.finish_reason,
            error_kind=answer.error_kind,
            error=answer.error,
        )


def _closed_after_ns(answer: ScriptedAnswer) -> int:
    if answer.closed_after_ns is not None:
        return answer.closed_after_ns
    return answer.events[-1][0] if answer.events else 0


def _first_byte_ns(answer: ScriptedAnswer, sent_ns: int) -> int | None:
    if answer.first_byte_after_ns is not None:
        return sent_ns + answer.first_byte_after_ns
    return sent_ns + answer.events[0][0] if answer.events else None
