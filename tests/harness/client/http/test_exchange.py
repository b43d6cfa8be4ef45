"""From what a socket saw to a record: times by the read, failures by their kind."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import (
    DONE,
    LAST_CHUNK,
    MS,
    STREAM_HEAD,
    chunk,
    chunked,
    delta,
    event,
    events_ms,
    exchange,
    record,
    token,
    until_close,
    usage_event,
    with_length,
)

from harness.client.http.exchange import record_of, unread_record
from harness.client.http.http1 import read_head
from harness.results.store.records import RequestRecord

RESET = ("connection_reset", "ConnectionResetError: gone")
ANSWER = (token("a"), token(" b"), token(" c", finish="stop"), usage_event(3, cached=16), DONE)


def test_an_event_happens_with_the_read_that_completed_it() -> None:
    """Cut events have the time of their last piece; events of one read have one time."""
    first, second, third = token("a"), token("b"), token("c", finish="stop")
    reads = [
        STREAM_HEAD + chunk(first)[:30],
        chunk(first)[30:],
        chunk(second) + chunk(third)[:-3],  # without the chunk's end, and one byte of the event
        chunk(third)[-3:] + chunk(DONE) + LAST_CHUNK,
    ]

    one = record(reads, [10, 20, 30, 45])

    assert events_ms(one) == [(20, 1), (30, 1), (45, 1)]
    assert (one.first_byte_ns, one.closed_ns, one.sent_ns) == (10 * MS, 45 * MS, 0)


def test_a_good_answer_is_told_whole() -> None:
    """Ids and counts of the server, and what was asked."""
    one = record(chunked(*ANSWER))

    assert (one.request_id, one.conversation, one.turn) == ("c00000-t00", "a", 0)
    assert (one.response_id, one.finish_reason) == ("cmpl-7", "stop")
    assert (one.prompt_tokens, one.cached_prompt_tokens, one.asked_tokens) == (20, 16, 5)
    assert (one.output_tokens, one.output_tokens_source) == (3, "usage")
    assert (one.error_kind, one.error) == (None, None)
    assert one.token_events.dtype == np.int64


def test_without_usage_the_clients_count_stands_and_is_marked() -> None:
    """Never the number that was asked for."""
    one = record(chunked(token("a"), token("b", finish="stop"), DONE))

    assert (one.output_tokens, one.output_tokens_source, one.asked_tokens) == (2, "client", 5)


def test_without_usage_the_prompt_has_the_tokens_that_were_sent() -> None:
    """So that totals hold every prompt; the server's count, which knows its template, goes first.

    A failed request has no count of either kind.
    """
    usage = event({"choices": [], "usage": {"prompt_tokens": 39, "completion_tokens": 1}})
    untold = record(chunked(token("a", finish="stop"), DONE))
    told = record(chunked(token("a", finish="stop"), usage, DONE))
    cut = record(chunked(token("a"))[:-1], eof=True)

    assert (untold.prompt_tokens, untold.output_tokens_source) == (20, "client")
    assert (told.prompt_tokens, told.output_tokens_source) == (39, "usage")
    assert (cut.error_kind, cut.prompt_tokens) == ("truncated", None)


@pytest.mark.parametrize(
    "reads",
    [
        chunked(*ANSWER),
        until_close(*ANSWER),
        [with_length(b"".join(ANSWER), kind="text/event-stream")],
        chunked(*ANSWER[:-1]),  # without [DONE], with a finish reason
        chunked(*(one.replace(b"\n", b"\r\n") for one in ANSWER)),
        chunked(*(one.replace(b"data: ", b"data:") for one in ANSWER)),
        chunked(b": ping\n\n", *ANSWER, b": bye\n\n"),
        chunked(delta(role="assistant", content=""), *ANSWER),
    ],
)
def test_every_framing_brings_the_same_answer(reads: list[bytes]) -> None:
    """Chunks, a length, the end of the connection; with and without [DONE]; any line ends."""
    one = record(reads, eof=True)

    assert (len(one.token_events), one.output_tokens, one.error_kind) == (3, 3, None)


@pytest.mark.parametrize(
    ("counted", "tokens", "source"),
    [(0, 3, "client"), (1, 3, "unbelieved"), (2, 3, "unbelieved"), (3, 3, "usage"),
     (5, 5, "usage"), (60, 60, "usage"), (70, 3, "unbelieved"),
     (2**31 - 1, 3, "unbelieved"), (2**31, 3, "client")],
)  # fmt: skip
def test_a_count_that_cannot_be_is_not_believed(counted: int, tokens: int, source: str) -> None:
    """Five were requested and three events came: fewer than three or seventy cannot be true."""
    one = record(chunked(*ANSWER[:3], usage_event(counted), DONE))

    assert (one.output_tokens, one.output_tokens_source) == (tokens, source)
    assert one.token_events[:, 1].tolist() == [1, 1, 1]


def test_more_than_asked_is_believed_where_the_events_show_it() -> None:
    """A server that knows no max_tokens brings as many as it counts."""
    one = record(chunked(*[token("a")] * 200, token("b", finish="stop"), usage_event(201), DONE))

    assert (one.output_tokens, one.output_tokens_source, one.asked_tokens) == (201, "usage", 5)


def test_running_totals_that_cannot_be_are_no_tokens_of_events() -> None:
    """Each event then is one token, whatever it said."""
    events = [token("a", total=10**6 * n) for n in (1, 2, 3)]
    one = record(chunked(*events, token("b", finish="stop", total=4 * 10**6), DONE))

    assert [tokens for _, tokens in events_ms(one)] == [1, 1, 1, 1]
    assert (one.output_tokens, one.output_tokens_source) == (4, "unbelieved")


@pytest.mark.parametrize(("prompt", "cached", "told"), [
    (39, 16, (39, 16)), (39, 40, (39, None)), (10**9, 5, (None, 5)), (0, 0, (0, 0)),
])  # fmt: skip
def test_prompt_tokens_that_cannot_be_are_none(
    prompt: int, cached: int, told: tuple[int | None, int | None]
) -> None:
    """Twenty were sent: no template makes a thousand million of them, nor are more cached."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 1,
             "prompt_tokens_details": {"cached_tokens": cached}}  # fmt: skip
    one = record(chunked(token("a", finish="stop"), event({"choices": [], "usage": usage}), DONE))

    assert (one.prompt_tokens, one.cached_prompt_tokens) == told


def test_a_redirect_tells_where_to() -> None:
    """It is not followed: what is there is another server."""
    moved = b"HTTP/1.1 307 X\r\nLocation: http://h/v2\r\nContent-Length: 0\r\n\r\n"

    assert record([moved]).error == "the server sends elsewhere, to http://h/v2"


FAILURES: dict[str, tuple[list[bytes], dict[str, Any], str, int]] = {
    "429": ([with_length(b'{"error":{"message":"slow down"}}', "429 X")], {}, "http_429", 0),
    "503 in plain text": ([with_length(b"busy", "503 X", "text/plain")], {}, "http_503", 0),
    "redirected": ([with_length(b"", "307 Temporary Redirect")], {}, "http_307", 0),
    "refused in a stream": (
        [STREAM_HEAD.replace(b"200 OK", b"400 Bad"), *chunked(event({"error": "x"}))[1:]],
        {},
        "http_400",
        0,
    ),
    "error body with 200": ([with_length(b'{"error":"x"}')], {}, "error_event", 0),
    "error event": (
        chunked(token("a"), event({"error": {"message": "x"}}), DONE),
        {},
        "error_event",
        1,
    ),
    "error event, then reset": (
        chunked(token("a"), event({"error": "x"}))[:-1],
        {"failure": RESET},
        "error_event",
        1,
    ),
    "no finish, no [DONE]": (chunked(token("a"), token("b")), {}, "truncated", 2),
    "closed in the middle": (
        until_close(token("a"), token("b")[:9]),
        {"eof": True},
        "truncated",
        1,
    ),
    "closed between chunks": (chunked(token("a"))[:-1], {"eof": True}, "truncated", 1),
    "finished, then cut": (chunked(token("a", finish="stop"))[:-1], {"eof": True}, "truncated", 1),
    "closed short of its length": ([with_length(b"{}" * 9)[:-1]], {"eof": True}, "truncated", 0),
    "closed in the head": ([STREAM_HEAD[:20]], {"eof": True}, "truncated", 0),
    "closed without a byte": ([], {"eof": True}, "connection_reset", 0),
    "reset": (chunked(token("a"), token("b"))[:-1], {"failure": RESET}, "connection_reset", 2),
    "reset before a byte": ([], {"failure": RESET}, "connection_reset", 0),
    "timeout": (chunked(token("a"))[:-1], {"failure": ("timeout", "1 s")}, "timeout", 1),
    "aborted": (chunked(token("a"), token("", finish="abort"), DONE), {}, "aborted", 1),
    "a page": ([with_length(b"<html>", kind="text/html")], {}, "bad_body", 0),
    "no JSON": (chunked(b"data: {a}\n\n", DONE), {}, "bad_body", 0),
    "nothing": ([with_length(b"")], {}, "bad_body", 0),
    "no HTTP": ([b"+PONG\r\n"], {}, "bad_body", 0),
    "no chunk size": ([STREAM_HEAD, token("a")], {"eof": True}, "bad_body", 0),
    "packed": (
        [with_length(b"\x1f\x8b").replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1)],
        {},
        "bad_body",
        0,
    ),
    "no token": (chunked(token("", finish="stop"), usage_event(4), DONE), {}, "no_token", 0),
    "another protocol": ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], {}, "bad_body", 0),
    "a page in a stream": (chunked(token("a"), b"<html>\n\n", DONE), {}, "bad_body", 1),
    "a message in a stream": (
        chunked(token("a"), event({"detail": "x"}), DONE),
        {},
        "error_event",
        1,
    ),
    "only [DONE]": (chunked(DONE), {}, "no_token", 0),
    "only comments": (chunked(b": ping\n\n"), {}, "truncated", 0),
}


@pytest.mark.parametrize(("reads", "how", "kind", "tokens"), FAILURES.values(), ids=FAILURES)
def test_each_failure_has_its_kind(
    reads: list[bytes], how: dict[str, Any], kind: str, tokens: int
) -> None:
    """With a text that is not empty; the tokens before it are kept, but not counted as output."""
    one = record(reads, **how)

    assert one.error_kind == kind
    assert one.error
    assert len(one.token_events) == tokens
    assert one.output_tokens_source in (None, "usage")


def test_the_text_of_a_refusal_is_the_servers_message() -> None:
    """Also where the body was cut; the status says enough where there is none."""
    refused = with_length(b'{"error":{"message":"slow down"}}', "429 Too Many Requests")

    assert record([refused]).error == "slow down"
    assert record([refused[:-3]], eof=True).error == '{"error":{"message":"slow down'
    assert record([with_length(b"", "502 Bad Gateway")]).error == "Bad Gateway"


def test_after_done_nothing_is_missing() -> None:
    """A connection that is reset, cut or late behind [DONE] has brought its answer."""
    reads = chunked(*ANSWER)[:-1]

    for how in ({"failure": RESET}, {"eof": True}, {"failure": ("timeout", "1 s")}):
        assert record(reads, **how).error_kind is None


def test_what_was_counted_by_the_server_is_kept_in_a_failure() -> None:
    """A fact stays a fact; the client's own count of a failed answer is none."""
    aborted = record(chunked(token("a", total=1), token("", finish="abort", total=1), DONE))

    assert (aborted.output_tokens, aborted.output_tokens_source) == (1, "usage")
    assert record(chunked(token("a"))).output_tokens is None


def test_a_body_without_its_head_is_read_the_same() -> None:
    """A client that unpacked the answer itself hands over head and body apart."""
    whole = record(chunked(*ANSWER))
    seen = replace(exchange(ANSWER, eof=True), head=read_head(STREAM_HEAD))

    apart = record_of(seen)

    assert events_ms(apart) == [(1, 1), (2, 1), (3, 1)]
    assert (apart.output_tokens, apart.error_kind) == (whole.output_tokens, None)
    assert record_of(replace(seen, reads=ANSWER[:2], eof=False)).error_kind == "truncated"


def test_a_record_that_is_not_read_yet_cannot_pass_for_a_good_one() -> None:
    """It has the times, and a kind that says that the answer waits; or how the socket failed."""
    waiting = unread_record(exchange(chunked(*ANSWER)))
    lost = unread_record(exchange([], failure=RESET))

    assert (waiting.error_kind, waiting.closed_ns) == ("unread", 7 * MS)
    assert (waiting.first_byte_ns, waiting.token_events.shape) == (MS, (0, 2))
    assert (lost.error_kind, lost.error, lost.first_byte_ns) == (*RESET, None)


def facts(one: RequestRecord) -> dict[str, object]:
    """All that a record holds but times."""
    return {
        field.name: getattr(one, field.name)
        for field in fields(one)
        if not field.name.endswith("_ns") and field.name != "token_events"
    } | {"tokens": one.token_events[:, 1].tolist()}


texts = st.text(max_size=5)
totals = st.lists(st.integers(min_value=0, max_value=3), max_size=6)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of any make: chat or not, running totals or not, good or failed, any line end."""
    events = [delta(role="assistant", content="")] if draw(st.booleans()) else []
    running, total = draw(st.booleans()), 0
    for step, text in zip(draw(totals), draw(st.lists(texts, max_size=6)), strict=False):
        total += step
        known = total if running else None
        chat = draw(st.booleans())
        events.append(delta(content=text, total=known) if chat else token(text, total=known))
    endings = [
        token("", finish="stop"),
        usage_event(total),
        event({"error": "x"}),
        b": ping\n\n",
        b"data: {\n\n",
        DONE,
    ]
    events += draw(st.lists(st.sampled_from(endings), max_size=4))
    pieces = [one for one in events if one]
    if draw(st.booleans()):
        pieces = [one.replace(b"\n", b"\r\n") for one in pieces]
    cut = draw(st.sampled_from([0, 0, 1, 7]))
    raw = b"".join(draw(st.sampled_from([chunked, until_close]))(*pieces))
    return raw[: len(raw) - cut]


@given(streams(), st.lists(st.integers(min_value=1, max_value=2000), max_size=20), st.booleans())
def test_any_cuts_give_the_same_record(raw: bytes, at: list[int], eof: bool) -> None:
    """Only times differ: an event's is that of the first read that ends at or behind its last byte.

    Read byte by byte, and stamped with their number, the reads tell where each event is complete.
    """
    single = record([raw[i : i + 1] for i in range(len(raw))], range(1, len(raw) + 1), eof=eof)
    ends = sorted({*(place for place in at if place < len(raw)), len(raw)})
    pieces = [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    cut = record(pieces, ends, eof=eof)

    assert facts(cut) == facts(single)
    complete = [round(ms) for ms, _ in events_ms(single)]
    assert [ms for ms, _ in events_ms(cut)] == [ends[bisect_left(ends, end)] for end in complete]
