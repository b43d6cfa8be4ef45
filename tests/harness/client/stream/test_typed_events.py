"""Streams of OpenAI's Responses and Anthropic's Messages API make the same record as a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.client.stream.response import ParsedResponse, parse_response

Events = list[dict[str, Any]]


def named(*events: dict[str, Any]) -> bytes:
    """A stream whose events have the name of their type, as both APIs send them."""
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def bare(*events: dict[str, Any]) -> bytes:
    """The same without names, as some gateways pass them on."""
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


def responses(*deltas: dict[str, Any], end: dict[str, Any]) -> Events:
    return [
        {"type": "response.created", "response": {"id": "resp-1", "status": "in_progress"}},
        {"type": "response.in_progress", "response": {"id": "resp-1"}},
        {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
        *deltas,
        {"type": "response.output_text.done", "text": "abc"},
        end,
    ]


def out(text: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "i", "delta": text}


def ended(kind: str = "completed", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 20,
        "output_tokens": 3,
        "input_tokens_details": {"cached_tokens": 16},
    }
    output = [{"type": "message", "content": [{"type": "output_text", "text": "abc"}]}]
    response = {"id": "resp-1", "status": kind, "usage": usage, "output": output, **fields}
    return {"type": f"response.{kind}", "response": response}


def messages(*deltas: dict[str, Any], stop: str = "max_tokens", **usage: int) -> Events:
    start = {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 1}
    return [
        {"type": "message_start", "message": {"id": "msg-1", "content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 3, **usage},
        },
        {"type": "message_stop"},
    ]


def text(words: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": words}


CUT: dict[str, Any] = {"incomplete_details": {"reason": "max_output_tokens"}}
FORMS = {
    "responses": responses(out("a"), out("b"), out("c"), end=ended("incomplete", **CUT)),
    "responses that end as completed": responses(out("a"), out("b"), out("c"), end=ended(**CUT)),
    "reasoning": responses(
        out("a", "reasoning_text"),
        out("b", "reasoning_summary_text"),
        out("c"),
        end=ended("incomplete", **CUT),
    ),
    "a call": responses(
        out("a", "function_call_arguments"), out("b"), out("c", "refusal"), end=ended(**CUT)
    ),
    "messages": messages(text("a"), text("b"), text("c")),
    "messages with input at the end": messages(
        text("a"), text("b"), text("c"), input_tokens=4, cache_read_input_tokens=16
    ),
    "thinking": messages(
        {"type": "thinking_delta", "thinking": "a"},
        text("b"),
        {"type": "signature_delta", "signature": "x"},
        {"type": "input_json_delta", "partial_json": "{"},
    ),
}


@pytest.mark.parametrize("form", [named, bare])
@pytest.mark.parametrize("name", list(FORMS))
def test_each_api_has_the_record_of_a_chat(name: str, form: Any) -> None:
    """A token event for each delta with text, the server's counts, and the end."""
    events = FORMS[name]
    stream = form(*events)

    found = parse_response(stream)

    assert found.error_kind is None
    assert found.tokens == [1, 1, 1]
    assert found.done
    assert found.finish_reason == "length"
    assert (found.prompt_tokens, found.cached_prompt_tokens, found.output_tokens) == (20, 16, 3)
    assert found.response_id in ("resp-1", "msg-1")
    brings = [i for i, e in enumerate(events) if is_delta(e)]
    assert found.token_ends == [len(form(*events[: i + 1])) for i in brings]


def is_delta(event: dict[str, Any]) -> bool:
    holder = event.get("delta")
    if event["type"] == "content_block_delta":
        return holder["type"] != "signature_delta" if isinstance(holder, dict) else False
    return bool(event["type"].endswith(".delta"))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_reasons_to_stop_have_the_words_of_a_chat(reason: str, expected: str) -> None:
    """One that has none keeps its own."""
    assert parse_response(named(*messages(text("a"), stop=reason))).finish_reason == expected


def test_a_response_that_is_complete_has_stopped() -> None:
    """Only an incomplete one has a reason."""
    assert parse_response(named(*responses(out("a"), end=ended()))).finish_reason == "stop"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            responses(out("a"), end=ended("failed", error={"code": "x", "message": "no GPU left"})),
            "no GPU left",
        ),
        (responses(out("a"), end=ended("failed", error=None)), "the response ended as failed"),
        ([{"type": "error", "code": "x", "message": "quota is gone"}], "quota is gone"),
        (
            [
                *messages(text("a"))[:4],
                {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            ],
            "Overloaded",
        ),
    ],
)
@pytest.mark.parametrize("form", [named, bare])
def test_an_error_inside_a_stream_is_one(events: Events, message: str, form: Any) -> None:
    """With the server's own words."""
    found = parse_response(form(*events))

    assert (found.error_kind, found.error) == ("error_event", message)


@pytest.mark.parametrize("cut", [4, 5])
@pytest.mark.parametrize("name", ["responses", "messages"])
def test_a_stream_that_is_cut_off_has_no_end(name: str, cut: int) -> None:
    """It has the events that came, and is not done."""
    found = parse_response(named(*FORMS[name][:cut]))

    assert not found.done
    assert found.finish_reason is None
    assert found.output_tokens is None


WHOLE = {
    "response": ended("incomplete", **CUT)["response"] | {"object": "response"},
    "message": {
        "type": "message",
        "id": "msg-1",
        "content": [{"type": "text", "text": "abc"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 3},
    },
}


@pytest.mark.parametrize("kind", list(WHOLE))
def test_an_answer_that_is_not_streamed_is_one_event(kind: str) -> None:
    """With all its tokens, at its last byte."""
    body = json.dumps(WHOLE[kind]).encode()

    found = parse_response(body)

    assert (found.error_kind, found.tokens, found.token_ends) == (None, [3], [len(body)])
    assert (found.prompt_tokens, found.output_tokens, found.finish_reason) == (20, 3, "length")
    assert found.done


def test_a_response_whose_text_comes_at_its_end_has_an_event() -> None:
    """Some servers send no deltas."""
    found = parse_response(named(*responses(end=ended())))

    assert (found.tokens, found.output_tokens) == ([3], 3)


@pytest.mark.parametrize(
    "strange",
    [
        {"type": "response.output_text.delta", "delta": {"a": 1}},
        {"type": "response.completed", "response": None},
        {"type": "message_start", "message": "x"},
        {"type": "message_delta", "delta": None, "usage": [1]},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": None}},
        {"type": "content_block_start"},
        {"type": "response.future.kind", "x": 1},
        {"type": "response.completed", "response": {"usage": {"output_tokens": True}}},
    ],
)
def test_a_strange_event_has_no_output(strange: dict[str, Any]) -> None:
    """Nor does it end the load."""
    found = parse_response(named(strange))

    assert isinstance(found, ParsedResponse)
    assert found.token_ends == []
    assert found.output_tokens is None
