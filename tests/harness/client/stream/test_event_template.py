"""Events told by their bytes say what they say as JSON, or are left to JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import delta, event, token

from harness.client.stream.event_template import (
    TEXT_GROUP,
    EventTemplate,
    has_output,
    learn_template,
)


def data_of(one: bytes) -> bytes:
    """The data of one event."""
    return one.removeprefix(b"data: ").strip()


def form_of(one: bytes) -> EventTemplate | None:
    """The form learned of one event."""
    return learn_template(data_of(one), json.loads(data_of(one)))


def told(form: EventTemplate, one: bytes) -> tuple[bool, int | None] | None:
    """Output and running count of an event, read by its form; None where it is not alike."""
    [match] = form.match([data_of(one)])
    if match is None:
        return None
    group = form.count_group
    return bool(match[TEXT_GROUP]), None if group is None else int(match[group])


def as_json(one: bytes) -> tuple[bool, int | None]:
    """Output and running count of an event, parsed."""
    value = json.loads(data_of(one))
    return has_output(value["choices"][0]), (value.get("usage") or {}).get("completion_tokens")


MAKERS: dict[str, Any] = {
    "completion": lambda text, total: token(text, total=total),
    "chat": lambda text, total: delta(content=text, total=total),
    "first of a chat": lambda text, total: delta(role="assistant", content=text, total=total),
    "reasoning": lambda text, total: delta(reasoning_content=text, content=None, total=total),
    "spaced": lambda text, total: json.dumps(
        json.loads(data_of(token(text, total=total)))
    ).encode(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("total", [None, 7])
def test_events_of_one_form_are_told_without_parsing(make: Any, total: int | None) -> None:
    """Another text, none, and another count are all read from the bytes."""
    form = form_of(make(" hello", total))
    later = None if total is None else 123_456

    assert form is not None
    assert told(form, make("x", later)) == (True, later)
    assert told(form, make("", later)) == (False, later)


@given(
    st.sampled_from(list(MAKERS.values())),
    st.text(max_size=8),
    st.one_of(st.none(), st.integers(min_value=0, max_value=10**6)),
)
def test_what_is_told_is_what_parsing_says(make: Any, text: str, total: int | None) -> None:
    """Quotes, escapes, other scripts, other forms: told right, or not told."""
    form = form_of(make(" hello", total))
    other = make(text, total)

    assert form is not None
    assert told(form, other) in (None, as_json(other))


@pytest.mark.parametrize(
    "other",
    [
        token("a", finish="length"),
        token('a"b'),
        token("a\\b"),
        token("ä"),
        token("a", total=3),
        b'data: {"error":"x"}\n\n',
        data_of(token("a"))[:-1],
        data_of(token("a")) + b"}",
        data_of(token("a")).replace(b'_reason":null', b'_reason":"ab"'),  # as long
        data_of(token("a")).replace(b"a", b"a\tb"),
    ],
)
def test_an_event_that_differs_elsewhere_is_not_told(other: bytes) -> None:
    """A finish reason, an escape, a usage, a missing byte: all of that is for the parser."""
    form = form_of(token(" hello"))

    assert form is not None
    assert told(form, other) is None


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"text": None}], "note": {"text": "a"}},  # the text is no output
        {"choices": [{"text": "a", "delta": {"content": "b"}}]},  # more output than the text
        {"choices": [{"delta": {"tool_calls": [{"text": "a"}]}}]},
        {"choices": [{"delta": {}}], "text": "a"},
        {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1.5}},
        {"choices": [{"text": "a"}], "usage": {"completion_tokens": "7"}},
        {"choices": [{"text": "a"}], "usage": {"inner": {"completion_tokens": 7}}},
    ],
)
def test_a_form_that_would_mislead_is_not_learned(value: dict[str, Any]) -> None:
    """Where text or count stand somewhere else than an answer has them, every event is parsed."""
    assert form_of(event(value)) is None


def test_the_first_of_several_texts_is_not_taken_for_the_answer() -> None:
    """A field called content before the delta stays a fixed part of the form."""

    def make(text: str) -> bytes:
        value = {"note": {"content": "n"}, "choices": [{"delta": {"content": text}}]}
        return data_of(event(value))

    form = learn_template(make("a"), json.loads(make("a")))

    assert form is not None
    assert told(form, make("bc")) == (True, None)
    assert told(form, make("bc").replace(b'"n"', b'"m"')) is None
