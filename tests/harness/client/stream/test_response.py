"""Answers as servers send them: what counts as a token, what the counts are, what is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import DONE, delta, event, token, usage, usage_event

from harness.client.stream.response import ParsedResponse, parse_response, refusal_text


def read(*events: bytes) -> ParsedResponse:
    """The answer that these pieces of a body make."""
    return parse_response(b"".join(events))


def ends_of(events: tuple[bytes, ...], *chosen: int) -> list[int]:
    """Where the chosen events end in the body."""
    return [len(b"".join(events[: index + 1])) for index in chosen]


def test_a_plain_stream() -> None:
    """Text events are tokens, each complete at its end; id, counts and finish reason are kept."""
    events = (token("a"), token("b"), token("c", finish="length"), usage_event(3, cached=16), DONE)

    answer = read(*events)

    assert answer == ParsedResponse(
        response_id="cmpl-7",
        token_ends=ends_of(events, 0, 1, 2),
        tokens=[1, 1, 1],
        prompt_tokens=20,
        cached_prompt_tokens=16,
        output_tokens=3,
        finish_reason="length",
        done=True,
    )


@pytest.mark.parametrize("content", ["", None])
def test_what_brings_no_output_is_no_token(content: str | None) -> None:
    """Role, empty text, finish, ping and usage events are none."""
    events = (
        delta(role="assistant", content=content),
        b": keep-alive\n\n",
        b"event: ping\ndata: {}\n\n",
        b"event: ping\ndata: still here\n\n",
        delta(content="Hi"),
        delta(content=content),
        delta("stop"),
        usage_event(1),
        DONE,
    )

    answer = read(*events)

    assert answer.token_ends == ends_of(events, 4)
    assert answer.error_kind is None


@pytest.mark.parametrize(
    "beat",
    [b"data:\n\n", b"data: \n\n", b"data: null\n\n", b"data:null \r\n\r\n", b"data: {}\n\n",
     b"event: message\ndata: null\n\n", b"id: 7\ndata:\n\n"],
)  # fmt: skip
def test_an_event_without_a_payload_keeps_the_stream_alive(beat: bytes) -> None:
    """Gateways send such between tokens: they are neither tokens nor a broken answer."""
    events = (beat, token("a"), beat, beat, token("b", finish="stop"), usage_event(2), beat, DONE)

    answer = read(*events)

    assert (answer.error_kind, answer.output_tokens, answer.done) == (None, 2, True)
    assert answer.token_ends == ends_of(events, 1, 4)


@pytest.mark.parametrize("data", [b"", b"null", b"{}"])
def test_an_error_without_a_text_is_an_error(data: bytes) -> None:
    """Its name says so."""
    assert read(token("a"), b"event: error\ndata: " + data + b"\n\n").error_kind == "error_event"


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "Hm"},
        {"reasoning": "Hm", "content": None},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"refusal": "No"},
    ],
)
def test_reasoning_and_tool_calls_are_output(fields: dict[str, Any]) -> None:
    """The first token of an answer may be one that a reader never sees as text."""
    events = (delta(role="assistant", content=""), delta(**fields), delta(content="x"), DONE)

    assert read(*events).token_ends == ends_of(events, 1, 2)


def test_a_running_total_tells_the_tokens_of_each_event() -> None:
    """Speculation puts several tokens into one event: differences of the total say how many."""
    events = (
        delta(role="assistant", content="", total=0),
        delta(content="a", total=1),
        delta(content="b c d e", total=5),
        delta("length", content="f g", total=7),
        usage_event(7),
        DONE,
    )

    answer = read(*events)

    assert (answer.tokens, answer.output_tokens) == ([1, 4, 2], 7)


def test_an_empty_text_counts_while_the_running_total_grows() -> None:
    """Text that is held back was generated all the same; a total that stands tells of none."""
    events = (
        token("", total=1),
        token("a", total=2),
        token("", total=3),
        token("", total=3),
        token("", total=4, finish="stop"),
        DONE,
    )

    answer = read(*events)

    assert answer.token_ends == ends_of(events, 0, 1, 2, 4)
    assert answer.tokens == [1, 1, 1, 1]


def test_an_empty_text_does_not_count_without_running_totals() -> None:
    """A total that comes with the finish only says nothing of the empty text beside it."""
    events = (token("a"), token("b"), token("", finish="length", total=5), DONE)

    answer = read(*events)

    assert answer.token_ends == ends_of(events, 0, 1)
    assert (answer.tokens, answer.output_tokens) == ([1, 1], 5)


@pytest.mark.parametrize(
    "totals",
    [[1, None, 3], [0, 0, 0], [3, 2, 4], [None, 2, 3]],
    ids=["gap", "zero", "back", "late"],
)
def test_totals_that_do_not_grow_with_every_text_tell_no_tokens(totals: list[int | None]) -> None:
    """Placeholders and gaps are no running total: each event then is one token."""
    events = [token("x", total=total) for total in totals]

    answer = read(*events, usage_event(9), DONE)

    assert (answer.tokens, answer.output_tokens) == ([1, 1, 1], 9)


def test_the_last_running_total_is_the_count() -> None:
    """Some servers send no usage event behind the text, and some streams do not come so far."""
    events = (token("a", total=1), token("b", total=2), token("c d", total=4))

    assert read(*events, token("e", finish="length", total=5), DONE).output_tokens == 5
    assert read(*events).output_tokens == 4


def test_a_count_of_none_though_text_came_is_no_count() -> None:
    """A proxy that writes 0 does not know; 0 without any text is a count."""
    assert read(token("a"), usage_event(0), DONE).output_tokens is None
    assert read(usage_event(0), DONE).output_tokens == 0


def test_an_answer_without_usage_has_no_counts() -> None:
    """Absent stays absent, also where the field is there and null."""
    answer = read(event({"choices": [{"text": "a"}], "usage": None, "id": None}), DONE)

    assert (answer.prompt_tokens, answer.cached_prompt_tokens, answer.output_tokens) == (
        None,
        None,
        None,
    )
    assert answer.response_id is None


@pytest.mark.parametrize(
    "failing",
    [
        event({"error": {"message": "worker lost", "code": 500}}),
        event({"error": "worker lost"}),
        event({"object": "error", "message": "worker lost"}),
        b'event: error\ndata: {"message": "worker lost"}\n\n',
        b"event: error\ndata: worker lost\n\n",
    ],
)
def test_an_error_event_fails_the_answer(failing: bytes) -> None:
    """Whatever form a server gives it, and though [DONE] follows; what came before is kept."""
    answer = read(token("one"), failing, DONE)

    assert (answer.error_kind, answer.error) == ("error_event", "worker lost")
    assert (len(answer.token_ends), answer.done) == (1, True)


@pytest.mark.parametrize(
    "failing",
    [
        event({"detail": "worker lost"}),
        event({"message": "worker lost", "type": "InternalServerError"}),
        event({"id": "x", "detail": "worker lost"}),
    ],
)
def test_an_event_with_a_message_and_no_answer_is_an_error(failing: bytes) -> None:
    """Gateways have forms of their own; [DONE] behind it makes no answer of it."""
    answer = read(token("one"), failing, DONE)

    assert (answer.error_kind, answer.error) == ("error_event", "worker lost")


@pytest.mark.parametrize(
    "choices",
    [
        "x",
        [5],
        {"0": {"text": "a"}},
        [{"text": 9}],
        [{"text": ["a"]}],
        [{"delta": "a"}],
        [{"delta": {"content": {"type": "text"}}}],
        [{"delta": {"reasoning_content": 3}}],
    ],
)
def test_choices_of_another_type_fail_the_answer(choices: object) -> None:
    """A text that is no string is not output, and the answer is not a success without it."""
    answer = read(token("one"), event({"choices": choices}), DONE)

    assert answer.error_kind == "bad_body"
    assert "choices of another form" in (answer.error or "")
    assert len(answer.token_ends) == 1


def test_a_content_of_parts_is_output() -> None:
    """Mistral streams thinking as a list of parts."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}]

    answer = read(event({"choices": [{"delta": {"content": parts}}]}), DONE)

    assert (answer.error_kind, len(answer.token_ends)) == (None, 1)


@pytest.mark.parametrize(
    "harmless",
    [
        event({"choices": [], "message": "hm"}),
        event({"message": None, "detail": ""} | {"usage": None}),
        b'event: status\ndata: {"message": "queued"}\n\n',
        b"retry: 3000\nid: 7\n\n",
        b"x-unknown: as the standard says, ignored\n\n",
    ],
)
def test_what_only_looks_like_an_error_is_none(harmless: bytes) -> None:
    """Choices or usage tell what an event is, and unknown fields of a stream are ignored."""
    answer = read(token("one"), harmless, token("two", finish="stop"), DONE)

    assert (answer.error_kind, len(answer.token_ends)) == (None, 2)


@pytest.mark.parametrize(
    "line",
    [b"Internal Server Error\n\n", b"<html>502</html>\n", b"Error: worker lost\n\n", b"{oops}\n\n",
     b"Traceback (most recent call last):\n\n"],
)  # fmt: skip
def test_a_line_that_is_no_event_fails_the_answer(line: bytes) -> None:
    """Written by whoever gave up in the middle; what came before is kept."""
    answer = read(token("one"), line, DONE)

    assert (answer.error_kind, len(answer.token_ends)) == ("bad_body", 1)
    assert line.strip().decode() in (answer.error or "")


def test_what_follows_done_belongs_to_nothing() -> None:
    """No token is counted, and no error heard, behind [DONE]."""
    after = (token("b"), usage_event(9), event({"error": "late"}), b"garbage\n\n")

    answer = read(token("a", finish="stop"), usage_event(1), DONE, *after)

    assert (len(answer.token_ends), answer.output_tokens, answer.error_kind) == (1, 1, None)


@pytest.mark.parametrize("count", [10**25, -(10**25), 1 << 31, -1, True, 8.0, "8", None, [8], {}])
def test_what_is_no_count_is_none(count: object) -> None:
    """Beyond what any answer holds, below 0, or no whole number: as if it had not been told."""
    counts = {"prompt_tokens": count, "completion_tokens": count}
    details = {"prompt_tokens_details": {"cached_tokens": count}}

    answer = read(token("a"), event({"choices": [], "usage": {**counts, **details}}), DONE)

    told = (answer.prompt_tokens, answer.output_tokens, answer.cached_prompt_tokens)
    assert told == (None, None, None)


def test_a_running_total_beyond_all_sense_tells_no_tokens() -> None:
    """Also where the event is told by its bytes, like those before it."""
    totals = [1, 2, 3, 4, 10**17, 10**17 + 1]
    answer = read(*[token("x", total=total) for total in totals], DONE)

    assert answer.tokens == [1] * 6
    assert answer.output_tokens == 4


names = st.sampled_from(
    ["choices", "usage", "delta", "text", "content", "finish_reason", "id", "error", "message",
     "completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "object"]
)  # fmt: skip
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(any_json, max_size=4), st.booleans())
def test_whatever_json_a_server_sends_there_is_an_answer(values: list[Any], done: bool) -> None:
    """Streamed or whole: no value of any field is too odd to be read, or to be stored."""
    body = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    bodies = [body + DONE * done, *(json.dumps(value).encode() for value in values[:1])]

    for answer in map(parse_response, bodies):
        for text in (answer.response_id, answer.finish_reason, answer.error):
            assert text is None or text.encode()
        counts = (answer.prompt_tokens, answer.cached_prompt_tokens, answer.output_tokens)
        assert all(count is None or 0 <= count < 1 << 31 for count in counts)
        assert all(abs(tokens) < 1 << 31 for tokens in answer.tokens)


def test_nesting_beyond_all_sense_is_a_bad_body() -> None:
    """In an event and in a whole body; and just as deep as can be read it is no fault either."""
    for depth in (100, 500, 900, 950, 980, 100_000):
        nested = b'{"choices":' + b"[" * depth + b"]" * depth + b',"error":' + b'{"error":' * depth
        nested += b"1" + b"}" * depth + b"}"
        streamed, whole = read(b"data: " + nested + b"\n\n", DONE), parse_response(nested)
        assert streamed.error_kind in ("error_event", "bad_body")
        assert whole.error_kind in ("error_event", "bad_body")
        assert refusal_text(nested)


def test_an_error_field_of_null_is_no_error() -> None:
    """Some servers send the field in every event."""
    answer = read(event({"choices": [{"text": "a"}], "error": None}), DONE)

    assert answer.error_kind is None


@pytest.mark.parametrize(("finish", "kind"), [("abort", "aborted"), ("error", "error_event")])
def test_some_finish_reasons_are_failures(finish: str, kind: str) -> None:
    """A server that shuts down ends its streams in good form, with `abort`."""
    answer = read(token("a"), token("", finish=finish), DONE)

    assert (answer.error_kind, answer.finish_reason) == (kind, finish)
    assert finish in (answer.error or "")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>busy</html>",
        b"no healthy upstream",
        b'{"status": "ok"}',
        b'{"choices": [',
        b"data: {oops}\n\ndata: [DONE]\n\n",
        b'data: "text"\n\ndata: [DONE]\n\n',
        b"data: \xff\xfe\n\n",
    ],
)
def test_what_is_no_answer_is_a_bad_body(body: bytes) -> None:
    """Neither events nor JSON, or events and JSON that say nothing known."""
    assert parse_response(body).error_kind == "bad_body"


def test_an_event_cut_by_the_end_is_left_out() -> None:
    """Half an event is no bad body: that something is missing is told elsewhere."""
    answer = parse_response(token("a") + token("b")[:20])

    assert (len(answer.token_ends), answer.error_kind, answer.done) == (1, None, False)


def test_done_needs_no_blank_line() -> None:
    """Some servers stop right behind it, or put blanks around it."""
    assert parse_response(token("a") + b"data: [DONE]").done
    assert parse_response(token("a") + b"data: [DONE] \n\n").done
    assert not parse_response(token("[DONE]")).done


def test_a_server_that_does_not_stream_answers_in_one_event() -> None:
    """All tokens are there at the last byte; the usage beside them says how many."""
    body = json.dumps(
        {
            "id": "chat-1",
            "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}],
            **usage(4),
        }
    ).encode()

    answer = parse_response(body)

    assert (answer.token_ends, answer.tokens) == ([len(body)], [4])
    assert (answer.output_tokens, answer.finish_reason, answer.done) == (4, "stop", True)


def test_a_whole_body_that_is_an_error_fails() -> None:
    """An error with status 200 is none the better for it."""
    answer = parse_response(b'{"error": {"message": "overloaded"}}')

    assert (answer.error_kind, answer.error) == ("error_event", "overloaded")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "slow down", "code": 429}}', "slow down"),
        (b'{"error": {"code": 429}}', '{"code": 429}'),
        (b'{"detail": [{"msg": "bad"}]}', '[{"msg": "bad"}]'),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b"no healthy\r\n  upstream", "no healthy upstream"),
        (b"[1]", "[1]"),
        (b"", ""),
        (b"x" * 3000, "x" * 500 + "…"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(body: bytes, text: str) -> None:
    """The message of the usual JSON forms, else the body itself, on one line and not too long."""
    assert refusal_text(body) == text


def test_other_scripts_and_escapes_are_text() -> None:
    """Events that are not told by their bytes are parsed, in the middle of those that are."""
    events = (token("a"), token("日本"), token('"'), token("b"), token("\n"), token(""), DONE)

    assert read(*events).token_ends == ends_of(events, 0, 1, 2, 3, 4)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=3), st.one_of(st.none(), st.integers(min_value=0, max_value=2**31))
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_events_read_by_their_form_say_what_each_says_parsed(
    told: list[tuple[str, int | None]], rising: bool
) -> None:
    """The same answer, whether or not names of events, which mean nothing, keep forms from use."""
    counts = [index + 1 if rising else count for index, (_, count) in enumerate(told)]
    events = [token(text, total=count) for (text, _), count in zip(told, counts, strict=True)]
    events += [token("", finish="length"), usage_event(len(told)), DONE]

    by_form = read(*events)
    parsed = read(*(b"event: message\n" + one for one in events))

    named = {end: index for index, end in enumerate(accumulate(len(e) + 15 for e in events))}
    plain = {end: index for index, end in enumerate(accumulate(map(len, events)))}
    assert [plain[end] for end in by_form.token_ends] == [named[end] for end in parsed.token_ends]
    assert replace(by_form, token_ends=[]) == replace(parsed, token_ends=[])
