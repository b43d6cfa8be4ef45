"""One request with all that was read of its response, and the record of it. Pure.

Nothing here runs while the clock does: a client stores exchanges, and they are read afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from harness.client.base import Request, network_error_kind
from harness.client.http.http1 import Body, Head, NotHttpError, read_body, read_head
from harness.client.stream import ParsedResponse, parse_response, refusal_text, shown
from harness.results.store import UNBELIEVED, RequestRecord

_UNREAD = ("unread", "the answer is kept, and read when the run is over")
# By so many tokens a response may exceed the request: the last step of a speculative engine
# produces several.
_BUNDLE_TOKENS = 64
# What no tokenizer and no template make of a prompt: more tokens than so many times those sent, and
# so many on top.
_PROMPT_TIMES, _TEMPLATE_TOKENS = 16, 1 << 14
READ_BYTES = 100  # of memory that a read costs beside its bytes: two objects and their places
_NO_EVENTS = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """What was seen of one request, byte by byte and read by read. Times in ns of the run."""

    request: Request
    scheduled_ns: int
    sent_ns: int | None  # None: the request never left whole
    connect_ns: int | None
    reads: Sequence[bytes]  # what each read of the socket returned
    read_times_ns: Sequence[int]  # when it had returned, and `origin_ns` on top
    closed_ns: int
    head: Head | None = None  # None: it is in `reads`, before the body
    eof: bool = False  # the connection, or a body without its head, came to a good end
    failure: tuple[str, str] | None = None  # what the socket or the clock ended it with: kind, text
    origin_ns: int = 0  # of the clock that stamped the reads

    @property
    def memory_bytes(self) -> int:
        """The memory that the reads take."""
        return sum(map(len, self.reads)) + READ_BYTES * len(self.reads)


def ended_by(error: Exception, limit_s: float | None = None) -> tuple[str, str]:
    """Return kind and text of what ended a request; `limit_s` where its time was up.

    Raises `error` where no network can have caused it.
    """
    if limit_s is not None:
        return "timeout", f"no end of the answer within {limit_s:g} s"
    kind = network_error_kind(error)
    if kind is None:
        raise error
    return kind, f"{type(error).__name__}: {error}".removesuffix(": ")


def unread_record(exchange: Exchange) -> RequestRecord:
    """Return the record with what needs no reading: the times, and how the connection failed.

    Its `error_kind` is `unread` where only the answer can tell whether the request failed.
    """
    request, times_ns = exchange.request, exchange.read_times_ns
    kind, text = exchange.failure or _UNREAD
    return RequestRecord(
        request_id=request.request_id,
        conversation=request.conversation,
        turn=request.turn,
        scheduled_ns=exchange.scheduled_ns,
        sent_ns=exchange.sent_ns,
        first_byte_ns=times_ns[0] - exchange.origin_ns if times_ns else None,
        token_events=_NO_EVENTS,
        closed_ns=exchange.closed_ns,
        connect_ns=exchange.connect_ns,
        asked_tokens=request.output_tokens,
        error_kind=kind,
        error=text,
    )


def record_of(exchange: Exchange) -> RequestRecord:
    """Return the record of a request, its answer read.

    A token event's time is that of the socket read that completed it. Kinds of failure:
    `http_<status>`, `error_event` (an error inside a stream that began well), the socket's own
    (`connection_reset`, `timeout`, …), `too_long`, `truncated` (ended without finish reason or
    [DONE]), `aborted`, `bad_body`, `no_token`. A count of output tokens that fits neither the
    request nor the events is not believed: the events are counted, and marked so. A count of
    prompt tokens that cannot be is none.
    """
    try:
        return _read_record(exchange)
    except NotHttpError as error:
        failed = ParsedResponse(error_kind="bad_body", error=str(error))
    except MemoryError:
        text = "the answer takes more memory to read than this process may have"
        failed = ParsedResponse(error_kind="too_long", error=text)
    return _record(exchange, failed, np.empty(0, dtype=np.int64))


def _read_record(exchange: Exchange) -> RequestRecord:
    raw = b"".join(exchange.reads)
    head = exchange.head or read_head(raw)
    body = None if head is None else _body(exchange, raw, head)
    if head is None or body is None:
        return unread_record(replace(exchange, failure=_no_head(exchange)))
    if not 200 <= head.status < 300:
        why = _coding(head) or _refusal(head, body.data)
        failed = ParsedResponse(error_kind=f"http_{head.status}", error=why)
        return _record(exchange, failed, np.empty(0, dtype=np.int64))
    answer = parse_response(body.data)
    kind, text = _judge(exchange, head, body, answer)
    answer = replace(answer, error_kind=kind, error=text)
    return _record(exchange, answer, body.raw_ends(answer.token_ends))


def _refusal(head: Head, body: bytes) -> str | None:
    """Return why there is no answer: where it is to be had, the server's words, or the status."""
    elsewhere = head.headers.get("location")
    if elsewhere is not None and 300 <= head.status < 400:
        return f"the server sends elsewhere, to {shown(elsewhere.encode())}"
    return refusal_text(body) or head.reason or None


def _body(exchange: Exchange, raw: bytes, head: Head) -> Body:
    if exchange.head is not None:
        return Body(data=raw, starts=[0], raw_starts=[0], whole=exchange.eof)
    return read_body(raw, head, closed=exchange.eof)


def _no_head(exchange: Exchange) -> tuple[str, str]:
    """Return the failure of an exchange in which no whole head came."""
    if exchange.failure is not None:
        return exchange.failure
    if exchange.reads:
        return "truncated", "the connection was closed inside the head of the answer"
    return "connection_reset", "the server closed the connection without an answer"


def _judge(
    exchange: Exchange, head: Head, body: Body, answer: ParsedResponse
) -> tuple[str, str] | tuple[None, None]:
    """Return kind and text of the failure of an answer that began well; (None, None): it is good.

    The server's own error comes first, then how the connection ended. After [DONE] nothing is
    missing, however the connection ended.
    """
    failed = None
    if answer.error_kind == "error_event":
        failed = answer.error_kind, answer.error or ""
    elif not answer.done and exchange.failure is not None:
        failed = exchange.failure
    elif not answer.done and not body.whole:
        failed = "truncated", "the connection was closed inside the answer"
    elif answer.error_kind is not None:
        failed = answer.error_kind, answer.error or ""
    elif not body.data:
        failed = "bad_body", "the answer is empty"
    elif not answer.done and answer.finish_reason is None:
        failed = "truncated", "the answer ended without a finish reason or [DONE]"
    elif not answer.token_ends:
        counted = answer.output_tokens
        counted_text = "" if counted is None else f"; the server counted {counted} tokens"
        failed = "no_token", f"the answer ended well and brought no output{counted_text}"
    coding = _coding(head)
    if failed and failed != exchange.failure and coding is not None:
        failed = "bad_body", coding
    return failed or (None, None)


def _coding(head: Head) -> str | None:
    """Return what is wrong with a body that is packed; None for one that is not."""
    coding = head.headers.get("content-encoding", "").strip()
    if coding.lower() in ("", "identity"):
        return None
    shown_coding = shown(coding.encode("latin-1", "replace"))
    return f"the answer came in Content-Encoding {shown_coding}, which was not requested"


def _record(
    exchange: Exchange, answer: ParsedResponse, raw_ends: NDArray[np.int64]
) -> RequestRecord:
    request = exchange.request
    times_ns = np.asarray(exchange.read_times_ns, dtype=np.int64) - exchange.origin_ns
    read_ends = np.fromiter(accumulate(map(len, exchange.reads)), np.int64, len(exchange.reads))
    events = np.empty((len(raw_ends), 2), dtype=np.int64)
    events[:, 0] = times_ns[np.searchsorted(read_ends, raw_ends)]
    events[:, 1] = answer.tokens
    counted, prompt, source = answer.output_tokens, answer.prompt_tokens, "usage"
    sent = _sent_tokens(request)
    if counted is None and answer.error_kind is None:
        counted, source = len(events), "client"
        prompt = sent if prompt is None else prompt
    elif counted is not None and not len(events) <= counted <= _most_tokens(request, len(events)):
        counted, source = len(events), UNBELIEVED
        events[:, 1] = 1
    return RequestRecord(
        request_id=request.request_id,
        response_id=answer.response_id,
        conversation=request.conversation,
        turn=request.turn,
        scheduled_ns=exchange.scheduled_ns,
        sent_ns=exchange.sent_ns,
        first_byte_ns=int(times_ns[0]) if len(times_ns) else None,
        token_events=events,
        closed_ns=exchange.closed_ns,
        connect_ns=exchange.connect_ns,
        prompt_tokens=_believed(prompt, _PROMPT_TIMES * sent + _TEMPLATE_TOKENS),
        cached_prompt_tokens=_believed(answer.cached_prompt_tokens, answer.prompt_tokens or sent),
        output_tokens=counted,
        output_tokens_source=None if counted is None else source,
        asked_tokens=request.output_tokens,
        finish_reason=answer.finish_reason,
        error_kind=answer.error_kind,
        error=answer.error,
    )


def _most_tokens(request: Request, events: int) -> int:
    """Return the largest count of output tokens that can be true.

    The smallest is the number of events: one with text holds at least a token.
    """
    return max(request.output_tokens, events) + _BUNDLE_TOKENS


def _believed(counted: int | None, most: int) -> int | None:
    """Return a count of the server; None where there is none, or it cannot be so large."""
    return None if counted is None or counted > most else counted


def _sent_tokens(request: Request) -> int:
    """Return the tokens of the prompt, without what a chat template adds."""
    return sum(segment.tokens for segment in request.prompt)
