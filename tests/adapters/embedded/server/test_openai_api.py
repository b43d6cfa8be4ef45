"""Request and response bodies: accepted and refused requests, and the form of responses."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from engine_play import LinearTimer, config
from hypothesis import given
from hypothesis import strategies as st

from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import SpeculativeConfig
from harness.adapters.embedded.server.openai_requests import ServedModel, ServedRequest, parse
from harness.adapters.embedded.server.openai_responses import DONE, CompletionBody
from harness.adapters.embedded.server.request_error import RequestError
from harness.adapters.embedded.server.words import FIRST_WORD_ID, chat_ids, ids_of, text_of

MODEL = ServedModel(name="m", max_model_len=100, vocabulary=5000)


def parsed_request(chat: bool = False, **fields: Any) -> ServedRequest:
    given = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": [5, 6, 7]}
    return parse(json.dumps({"model": "m"} | given | fields).encode(), MODEL, chat=chat)


def refused(body: bytes, *, chat: bool = False) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body, MODEL, chat=chat)
    return caught.value


def test_token_ids_are_used_unchanged() -> None:
    """A list of ids is the prompt; a list with only that list is the same prompt."""
    assert parsed_request(prompt=[0, 4999, 17]).prompt_ids.tolist() == [0, 4999, 17]
    assert parsed_request(prompt=[[3, 4]]).prompt_ids.tolist() == [3, 4]
    assert parsed_request(prompt=[3]).prompt_ids.dtype == np.int32


def test_a_text_has_one_token_per_word() -> None:
    """Any white space separates words, and equal words have equal ids."""
    ids = parsed_request(prompt=" to be\n or  not to\tbe").prompt_ids.tolist()

    assert len(ids) == 6
    assert ids[:2] == ids[4:]
    assert len(set(ids)) == 4
    assert all(FIRST_WORD_ID <= token < MODEL.vocabulary for token in ids)
    assert parsed_request(prompt=["to be"]).prompt_ids.tolist() == ids[:2]


@given(st.lists(st.integers(0, 4999)))
def test_the_text_of_an_output_maps_to_its_ids(ids: list[int]) -> None:
    """An output in the history therefore finds its blocks in the prefix cache."""
    assert ids_of(text_of(ids), 5000) == ids


def test_a_word_that_looks_like_a_token_beyond_the_vocabulary_is_a_word() -> None:
    """` t5000` from another model's output is an ordinary word, and is not refused."""
    (token,) = ids_of("t5000", 5000)

    assert token < 5000


def test_the_next_turn_begins_with_the_previous_chat_and_its_answer() -> None:
    """The template appends each turn, so that the whole history can be reused."""
    first = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there"}]
    answer = [41, 42, 43]
    more = [{"role": "assistant", "content": text_of(answer)}, {"role": "user", "content": "so?"}]

    before, after = chat_ids(first, 5000), chat_ids([*first, *more], 5000)

    assert after[: len(before) + 3] == before + answer
    assert len(before) == 7  # four words and three role ids
    assert len(after) == len(before) + 3 + 3


def test_the_parts_of_a_message_are_one_text() -> None:
    """A list of text parts equals the joined text; a message without content has only its role."""
    whole = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": ""}]
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        {"role": "assistant", "content": None},
    ]

    one, other = (
        parsed_request(chat=True, messages=whole),
        parsed_request(chat=True, messages=parts),
    )

    assert one.prompt_ids.tolist() == other.prompt_ids.tolist()


def test_the_default_output_length() -> None:
    """A completion has 16 tokens, or fewer if the context is full; a chat fills the context."""
    assert parsed_request().output_tokens == 16
    assert parsed_request(prompt=[1] * 90).output_tokens == 10
    assert parsed_request(chat=True).output_tokens == 100 - 3
    assert parsed_request(chat=True, max_completion_tokens=7, max_tokens=9).output_tokens == 7
    assert parsed_request(chat=True, max_tokens=9).output_tokens == 9
    assert parsed_request(max_tokens=97).output_tokens == 97


def test_fields_without_an_effect_are_ignored() -> None:
    """As in vLLM, sampling fields, unknown fields and fields with empty values are ignored."""
    one = parsed_request(
        model="m", temperature=0.7, seed=3, ignore_eos=True, top_p=1, nonsense={"a": 1}, user=None,
        stop=[], n=1, stream=False, stream_options=None, logprobs=None, echo=False, best_of=1,
        tools=[], response_format={"type": "text"}, logit_bias={},
    )  # fmt: skip

    assert one.prompt_ids.tolist() == [5, 6, 7]
    assert not one.stream


@pytest.mark.parametrize(
    ("options", "include", "continuous"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, False, False),  # alone it does nothing, as in vLLM
    ],
)
def test_usage_in_a_stream(
    options: dict[str, bool] | None, *, include: bool, continuous: bool
) -> None:
    """Usage is sent on request; usage in every event needs both options."""
    one = parsed_request(stream=True, stream_options=options)

    assert (one.stream, one.include_usage, one.continuous_usage) == (True, include, continuous)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{", None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b"[1]", None, "must be a JSON object, got list"),
        (b"{}", "prompt", "a text or a list of token ids"),
        (b'{"prompt": ""}', "prompt", "no token"),
        (b'{"prompt": []}', "prompt", "no token"),
        (b'{"prompt": [1, 2.0]}', "prompt", "list of token ids"),
        (b'{"prompt": [1, true]}', "prompt", "list of token ids"),
        (b'{"prompt": [1, "two"]}', "prompt", "list of token ids"),
        (b'{"prompt": [["a"]]}', "prompt", "list of token ids"),
        (b'{"prompt": {"a": 1}}', "prompt", "list of token ids"),
        (b'{"prompt": ["a", "b"]}', "prompt", "one prompt per request, got 2"),
        (b'{"prompt": [-1]}', "prompt", "from 0 to 4999"),
        (b'{"prompt": [5000]}', "prompt", "from 0 to 4999"),
        (b'{"prompt": [99999999999999999999]}', "prompt", "from 0 to 4999"),
        (b'{"prompt": [1], "n": 2}', "n", "n must be 1"),
        (b'{"prompt": [1], "max_tokens": 0}', "max_tokens", "at least 1, got 0"),
        (b'{"prompt": [1], "max_tokens": -4}', "max_tokens", "at least 1, got -4"),
        (b'{"prompt": [1], "max_tokens": 2.5}', "max_tokens", "at least 1, got 2.5"),
        (b'{"prompt": [1], "max_tokens": true}', "max_tokens", "at least 1"),
        (b'{"prompt": [1], "max_tokens": 100}', "max_tokens", "for a total of 101 tokens"),
        (b'{"prompt": [1], "stream_options": {}}', "stream_options", "`stream=True`"),
        (b'{"prompt": [1], "stream": true, "stream_options": 4}', "stream_options", "an object"),
        (
            b'{"prompt": [1], "stream": true, "stream_options": {"include_usage": 1}}',
            "stream_options",
            "include_usage must be true or false",
        ),
    ],
)
def test_bad_completions_are_refused(body: bytes, param: str | None, words: str) -> None:
    """The error has the wrong parameter and the value found or expected."""
    error = refused(body)

    assert words in str(error)
    assert error.body() == {
        "error": {"message": str(error), "type": "BadRequestError", "param": param, "code": 400}
    }


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "at least one message"),
        ([], "at least one message"),
        ("hello", "at least one message"),
        (["hello"], "an object with a role"),
        ([{"content": "hello"}], "an object with a role"),
        ([{"role": "user", "content": 4}], "a text or a list of texts"),
        ([{"role": "user"}], "must have content"),
        ([{"role": "user", "content": None}], "must have content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "must be a text"),
        ([{"role": "user", "content": ["hello"]}], "must be a text"),
    ],
)
def test_bad_chats_are_refused(messages: object, words: str) -> None:
    """A chat with content other than text is refused."""
    error = refused(json.dumps({"messages": messages}).encode(), chat=True)

    assert (error.param, error.status) == ("messages", 400)
    assert words in str(error)


def test_a_prompt_that_fills_the_context_is_too_long() -> None:
    """One token must be left for the output; the message has both numbers."""
    error = refused(json.dumps({"prompt": [1] * 100, "max_tokens": 1}).encode())

    assert "maximum context length is 100 tokens" in str(error)
    assert "contains 100 input tokens" in str(error)
    assert error.param == "input_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "x"), ("stop", ["x"]), ("stop_token_ids", [1]), ("logprobs", 0), ("logprobs", 5),
        ("logprobs", True), ("top_logprobs", 3), ("prompt_logprobs", 0), ("echo", True),
        ("suffix", "."), ("best_of", 2), ("logit_bias", {"5": 1}), ("use_beam_search", True),
        ("tools", [{"type": "function"}]), ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}), ("guided_json", {"type": "object"}),
        ("cache_salt", "x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chat", [False, True])
def test_unsupported_fields_are_refused_by_name(name: str, value: Any, *, chat: bool) -> None:
    """An ignored field would look supported, so the error names it."""
    with pytest.raises(RequestError, match=f"does not support `{name}`") as caught:
        parsed_request(chat=chat, **{name: value})

    assert (caught.value.param, caught.value.status) == (name, 400)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"), ("temperature", -1), ("temperature", True), ("temperature", [1]),
        ("top_p", 2), ("stream", "yes"), ("stream", 1), ("ignore_eos", "no"), ("seed", 1.5),
        ("presence_penalty", 3), ("frequency_penalty", "x"),
    ],
)  # fmt: skip
def test_fields_with_a_wrong_type_are_refused_by_name(name: str, value: Any) -> None:
    """Fields without an effect are checked too, because other servers also refuse them."""
    with pytest.raises(RequestError, match=f"{name} must be ") as caught:
        parsed_request(**{name: value})

    assert (caught.value.param, caught.value.status) == (name, 400)


def test_a_request_must_name_its_model() -> None:
    """A missing or null model is refused, and the error has the served model."""
    for model in ("", '"model": null, '):
        error = refused(f'{{{model}"prompt": [1]}}'.encode())

        assert (str(error), error.param) == ("model is missing; set it to m", "model")


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
known_fields = st.sampled_from(
    [
        "model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options",
        "n", "logprobs", "stop", "seed", "response_format", "best_of",
    ]
)  # fmt: skip


@given(value=any_json, name=known_fields, chat=st.booleans())
def test_any_value_of_a_field_is_accepted_or_refused(
    value: object, name: str, *, chat: bool
) -> None:
    """No value of any field causes a server error."""
    fields = {"model": "m", "prompt": "a b", "messages": [{"role": "user", "content": "a"}]}
    body = json.dumps({**fields, name: value}).encode()
    with suppress(RequestError):
        ask = parse(body, MODEL, chat=chat)
        assert len(ask.prompt_ids) > 0
        assert ask.output_tokens > 0


def test_another_model_is_not_found() -> None:
    """An unknown model gives 404 with its name."""
    error = refused(b'{"model": "other", "prompt": [1]}')

    assert error.body()["error"] == {
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def played(
    ask: ServedRequest, speculation: SpeculativeConfig | None = None
) -> tuple[list[bytes], Sequence, CompletionBody]:
    """Return the bytes sent for `ask` after each step, its sequence, and the whole body."""
    core = EngineCore(config(speculation=speculation), LinearTimer())
    answer = CompletionBody(ask, 'na"me', "mark")
    sequence = core.submit(ask.prompt_ids, ask.output_tokens, 0)
    sent, told, now_ns = [], 0, 0
    while core.has_work:
        now_ns, _ = core.advance(now_ns, max_steps=1)
        core.catch_up()
        if sequence.generated_tokens > told:
            sent.append(answer.events(sequence, told))
            told = sequence.generated_tokens
    return sent, sequence, answer


def data_of(raw: bytes) -> list[Any]:
    """Return the JSON of each event; each event must be one line followed by an empty line."""
    assert raw.endswith(b"\n\n")
    lines = raw[:-2].split(b"\n\n")
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_the_stream_of_a_completion() -> None:
    """Each token is an event; the last one has finish reason and fingerprint; [DONE] follows."""
    sent, sequence, answer = played(parsed_request(stream=True, max_tokens=3))

    assert sent[-1].endswith(DONE)
    events = [data_of(raw.removesuffix(DONE))[0] for raw in sent]
    assert answer.opening_event() == b""
    assert [event["choices"][0]["text"] for event in events] == [
        f" t{token}" for token in sequence.output_ids
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
    assert [event.get("system_fingerprint") for event in events] == [None, None, "mark"]
    assert not any("usage" in event for event in events)
    head = {key: events[0][key] for key in ("object", "model")}
    assert head == {"object": "text_completion", "model": 'na"me'}
    assert events[0]["id"].startswith("cmpl-")
    assert len({event["id"] for event in events}) == 1
    assert events[0]["choices"] == [
        {"index": 0, "text": f" t{sequence.output_ids[0]}", "logprobs": None, "finish_reason": None}
    ]


def test_a_chat_stream_begins_with_a_role() -> None:
    """The first event has no content; each later event has one token."""
    sent, sequence, answer = played(parsed_request(chat=True, stream=True, max_tokens=2))

    (opening,) = data_of(answer.opening_event())
    assert opening["object"] == "chat.completion.chunk"
    assert opening["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    events = [data_of(raw.removesuffix(DONE))[0] for raw in sent]
    assert [event["choices"][0]["delta"] for event in events] == [
        {"content": f" t{token}"} for token in sequence.output_ids
    ]
    assert events[1]["choices"][0]["finish_reason"] == "length"
    assert opening["id"] == events[1]["id"]
    assert opening["id"].startswith("chatcmpl-")


@pytest.mark.parametrize("chat", [False, True])
def test_usage_at_the_end_of_a_stream(*, chat: bool) -> None:
    """An event without choices before [DONE] has all counts, cached tokens and fingerprint."""
    options = {"include_usage": True}
    sent, _, _ = played(
        parsed_request(chat=chat, stream=True, max_tokens=2, stream_options=options)
    )

    last_token, usage = data_of(sent[-1].removesuffix(DONE))
    assert "usage" not in last_token
    assert "system_fingerprint" not in last_token
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert usage["system_fingerprint"] == "mark"


@pytest.mark.parametrize("chat", [False, True])
def test_a_speculative_step_is_one_event_of_several_tokens(*, chat: bool) -> None:
    """The event has the text of all tokens of the step, and the usage so far."""
    certain = SpeculativeConfig(method="draft", draft_tokens=3, acceptance=1.0)
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = parsed_request(chat=chat, stream=True, max_tokens=10, stream_options=options)

    sent, sequence, answer = played(ask, certain)

    events = [data_of(raw.removesuffix(DONE))[0] for raw in sent]
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 5, 9, 10]
    assert events[1]["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}
    choice = events[1]["choices"][0]
    text = choice["delta"]["content"] if chat else choice["text"]
    assert text == text_of(sequence.output_ids[1:5].tolist())
    if chat:
        (opening,) = data_of(answer.opening_event())
        assert opening["usage"]["completion_tokens"] == 0


def test_whole_responses() -> None:
    """A whole response has all tokens in one text or message, with the usage."""
    ask, chat = parsed_request(max_tokens=4), parsed_request(chat=True, max_tokens=4)
    _, sequence, answer = played(ask)
    _, chat_sequence, chat_answer = played(chat)

    body = json.loads(answer.whole(sequence))
    chat_body = json.loads(chat_answer.whole(chat_sequence))

    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": text_of(sequence.output_ids.tolist()),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["completion_tokens"] == 4
    assert chat_body["object"] == "chat.completion"
    assert chat_body["choices"][0]["message"] == {
        "role": "assistant",
        "content": text_of(chat_sequence.output_ids.tolist()),
    }
    assert chat_body["system_fingerprint"] == "mark"
