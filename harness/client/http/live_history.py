"""Live history: a server's own answer in the prompt of the next turn, as token ids.

The body of a later turn can only be made when the answer before has ended. Of that answer no more
is read than its ids; all else waits until the clock has stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.adapters import Target, Transport
from harness.client.base import Request
from harness.client.http.exchange import Exchange
from harness.client.http.http1 import NotHttpError, read_body, read_head
from harness.workloads import Conversation, Segment, TokenIds
from harness.workloads.prompts import draw_token_ids

# Fields of a request for the token ids of its answer; TensorRT-LLM sends them in place of a text.
_TOKEN_ID_FIELDS = {"return_token_ids": True, "detokenize": False}
# In a JSON text these bytes are a key: a quote inside of a string follows a backslash.
_IDS = re.compile(rb'"token_ids": ?\[([0-9, ]*)\]')
_DONE = b"[DONE]"


def token_id_fields(target: Target) -> dict[str, bool]:
    """Return the fields of a body by which `target` returns the token ids of its answer."""
    return {name: value for name, value in _TOKEN_ID_FIELDS.items() if name in target.fields}


def playable(
    transport: Transport, conversations: Sequence[Conversation]
) -> tuple[tuple[Conversation, ...], tuple[str, ...]]:
    """Return the conversations as `transport` can play them, and notes on what differs."""
    chats = tuple(conversations)
    if transport.live_history or not any(one.live for one in chats):
        return chats, ()
    note = (
        "this server tells no token ids of its answers: its history is recorded, not live, and "
        "the drawn answers stand in the prompts"
    )
    return tuple(replace(one, live=False) for one in chats), (note,)


def prompt_ids(request: Request, vocabulary: int = 128_000) -> TokenIds:
    """Return the token ids of a request's prompt, the server's own answers among them."""
    return with_answers(request, draw_token_ids(request.prompt, vocabulary))


def with_answers(request: Request, drawn: TokenIds) -> TokenIds:
    """Put the server's own answers into `drawn`, the ids of a request's prompt, and return it."""
    if not request.answers:
        return drawn
    at = np.cumsum([0, *(segment.tokens for segment in request.prompt)])
    for place, answer in request.answers.items():
        drawn[at[place] : at[place + 1]] = answer
    return drawn


def continued(request: Request, before: Request, answer: TokenIds | None) -> Request:
    """Return `request` with `answer`, that to `before`, behind the prompt of `before`.

    With None the drawn answer stands there: the turns after a failed one are sent all the same.
    """
    place = len(before.prompt)
    drawn, *question = request.prompt[place:]
    answers = dict(before.answers)
    if answer is not None and len(answer):
        answers[place] = answer
        drawn = Segment(drawn.text, len(answer))
    return replace(request, prompt=(*before.prompt, drawn, *question), answers=answers)


def answer_ids(exchange: Exchange) -> TokenIds | None:
    """Return the ids of an answer; None where it failed or has none."""
    raw = b"".join(exchange.reads)
    try:
        head = exchange.head or read_head(raw)
        if head is None or not 200 <= head.status < 300:
            return None
        data = raw if exchange.head else read_body(raw, head, closed=exchange.eof).data
    except NotHttpError:
        return None
    parts = _IDS.findall(data)
    if not parts or _DONE not in data[-64:]:
        return None
    return np.array(b",".join(part for part in parts if part).split(b","), dtype=np.int32)


class LiveAnswers:
    """Keeps what came for the turns of live chats until the next turn is made."""

    def __init__(self, capacity_bytes: int) -> None:
        self.free_bytes = capacity_bytes
        self.recorded_turns = 0  # made with the drawn answer, since the server returned no ids
        self._answered: dict[str, Exchange] = {}

    def keep(self, exchange: Exchange) -> None:
        """Keep the answer to a turn of a live chat; others are let go, and what is too much."""
        if exchange.request.live and (size_bytes := exchange.memory_bytes) <= self.free_bytes:
            self.free_bytes -= size_bytes
            self._answered[exchange.request.request_id] = exchange

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the answer to `before` in its prompt."""
        exchange = self._answered.pop(before.request_id, None)
        answer = None
        if exchange is not None:
            self.free_bytes += exchange.memory_bytes
            answer = answer_ids(exchange)
        self.recorded_turns += answer is None
        return continued(request, before, answer)
