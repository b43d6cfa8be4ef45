"""Parse the body of a response: token events, counts, how it ended. Pure; knows no time.

OpenAI's `completions`, `chat.completions` and Responses and Anthropic's Messages, streamed or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from operator import lt
from typing import Any

from harness.client.stream.event_template import (
    TEXT_GROUP,
    TEXTS,
    EventTemplate,
    has_output,
    learn_template,
)
from harness.client.stream.sse import Events, read_events
from harness.client.stream.typed_events import chat_chunks, ends_answer, is_typed

_TEXT_LIMIT = 500  # characters of a foreign text that an error keeps
_NAME_LIMIT = 200  # characters of an id or a finish reason
_MOST_TOKENS = (1 << 31) - 1  # no answer holds more: a larger count of a server is none
_DONE = b"[DONE]"
# Events without a payload: gateways send them to keep a stream alive.
_NOTHING = frozenset({b"", b"null", b"{}"})
_STREAM = re.compile(rb"(\xef\xbb\xbf)?(data|event|id|retry)?:")  # how a stream of events begins
_MESSAGES = ("message", "detail")  # fields of an error where there is no answer
_RESPONSE_EVENTS = (None, "message", "error")  # names of events that belong to the answer
# A finish reason that is no end of an answer → the kind of failure.
# What is no JSON, what is nested beyond all sense, and what fills the memory.
_NO_JSON = (ValueError, RecursionError, MemoryError)
_BAD_ENDS = {"abort": "aborted", "error": "error_event"}
# From how many events of one stream a template is learned: the first may differ, and a later one.
_LESSONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """The facts of one response body. Absent is None."""

    response_id: str | None = None
    token_ends: list[int] = field(default_factory=list)  # body bytes up to each token event's end
    tokens: list[int] = field(default_factory=list)  # of each token event
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None  # the server's count
    finish_reason: str | None = None
    done: bool = False  # [DONE] came, or the one JSON text is whole
    error_kind: str | None = None  # what is wrong with the part that came
    error: str | None = None


def parse_response(body: bytes) -> ParsedResponse:
    """Parse `body`, as far as it came: events, or one JSON text.

    `error_kind` is `error_event`, `aborted`, `bad_body` or None. Whatever a server sends, its
    strings can be stored, and its counts are 0 to 2³¹ − 1 or None.
    """
    start = body[:64].lstrip()
    if start.startswith(b"{"):
        return _read_json(body)
    if start and not _STREAM.match(start):
        return ParsedResponse(
            error_kind="bad_body", error=f"neither events nor JSON: {shown(body)}"
        )
    reader = _EventReader()
    _read_stream(reader, read_events(body))
    return reader.response()


def _read_json(body: bytes) -> ParsedResponse:
    """Parse the response of a server that does not stream: one event, complete at its last byte."""
    try:
        value = json.loads(body)
    except _NO_JSON:
        return ParsedResponse(
            error_kind="bad_body", error=f"JSON that does not parse: {shown(body)}"
        )
    reader = _EventReader()
    if is_typed(value):
        reader.take_typed(value, len(body))
        return reader.response()
    reader.take(value, len(body), named_error=False)
    if "choices" not in value:
        reader.fail("bad_body", f"JSON that is no answer: {shown(body)}")
    reader.done = True
    return reader.response()


def _read_stream(reader: _EventReader, events: Events) -> None:
    if events.names or events.strays:
        _read_each(reader, events)
        return
    template: EventTemplate | None = None
    lessons_left = _LESSONS
    matches: list[re.Match[bytes] | None] = [None] * (len(events.data) + 1)  # the last ends a run
    at = 0
    while at < len(events.data):
        run_end = matches.index(None, at)
        if template is not None and run_end > at:
            reader.take_matched(events.ends[at:run_end], template, matches[at:run_end])
            at = run_end
            continue
        value = _read_event(reader, events, at)
        if reader.done:
            return  # the answer has ended; what follows belongs to nothing
        if lessons_left and value is not None:
            lessons_left -= 1
            template = learn_template(events.data[at], value) or template
            rest = events.data[at + 1 :]
            matches[at + 1 :] = [
                *(template.match(rest) if template else repeat(None, len(rest))),
                None,
            ]
        at += 1


def _read_each(reader: _EventReader, events: Events) -> None:
    """Read a stream in which not every line is an event's data."""
    strays = list(reversed(events.strays))
    for index, end in enumerate(events.ends):
        while strays and strays[-1][1] <= end:
            reader.fail("bad_body", f"a line that is no event: {shown(strays.pop()[0])}")
        _read_event(reader, events, index)
        if reader.done:
            return
    for stray, _ in reversed(strays):
        reader.fail("bad_body", f"a line that is no event: {shown(stray)}")


def _read_event(reader: _EventReader, events: Events, index: int) -> dict[str, Any] | None:
    """Parse one event as JSON; return it where it carries output."""
    data, name = events.data[index], events.names.get(index)
    text = data.strip()
    if text == _DONE:
        reader.done = True
        return None
    if text in _NOTHING and name != "error":
        return None
    try:
        value = json.loads(data)
    except _NO_JSON:
        cut = events.unfinished and index == len(events.data) - 1
        if name == "error":
            reader.fail("error_event", shown(data))
        elif name is None and not cut:  # an event with another name is a ping
            reader.fail("bad_body", f"an event that is no JSON: {shown(data)}")
        return None
    if name != "error" and is_typed(value):
        reader.take_typed(value, events.ends[index])
        return None
    if (
        name not in _RESPONSE_EVENTS
        and isinstance(value, dict)
        and not {"choices", "error"} & set(value)
    ):
        return None  # a ping or a status that has a message
    carries_output = reader.take(value, events.ends[index], named_error=name == "error")
    return value if carries_output else None


class _EventReader:
    """Collects the facts of one response from its events."""

    def __init__(self) -> None:
        self.done = False
        self._response_id: str | None = None
        self._finish_reason: str | None = None
        self._error: tuple[str, str] | None = None
        self._usage: dict[str, int] = {}
        self._ends: list[int] = []
        self._totals: list[int] = []  # running total of output tokens at each token event
        self._running = True  # every event with output so far carried a total that had grown
        self._total = 0  # the last running total

    def take(self, value: object, end: int, *, named_error: bool) -> bool:
        """Take one JSON event whose last byte is body byte `end`; return whether it has output."""
        if not isinstance(value, dict) and not named_error:
            self.fail("bad_body", f"an event that is no answer: {shown(_text(value))}")
            return False
        if not isinstance(value, dict) or named_error or _is_error(value):
            self.fail("error_event", _error_message(value) or shown(_text(value)))
            return False
        if self._response_id is None and value.get("id"):
            self._response_id = _name(value["id"])
        usage = value.get("usage")
        total = self._take_usage(usage) if isinstance(usage, dict) else None
        choices = value.get("choices")
        if not choices:
            return False
        if not _well_formed(choices):
            self.fail("bad_body", f"choices of another form than the API's: {shown(_text(value))}")
            return False
        if choices[0].get("finish_reason"):
            self._finish_reason = _name(choices[0]["finish_reason"])
        carries_output = has_output(choices[0])
        self.take_output(end, carries_output, total)
        return carries_output

    def take_typed(self, value: Mapping[str, Any], end: int) -> None:
        """Take one event, or a whole answer, of an API whose events have types."""
        for chunk in chat_chunks(value, has_output=bool(self._ends)):
            self.take(chunk, end, named_error=False)
        self.done = self.done or ends_answer(value)

    def take_output(self, end: int, has_text: bool, total: int | None) -> None:
        """Take one event's output, or none, and the running total that it carried.

        Without text it is an event only while running totals count the tokens and this one grew.
        """
        if total is not None and not _is_count(total):
            total = None
        self._running = self._running and (not has_text or (total or 0) > self._total)
        if has_text or (self._running and (total or 0) > self._total):
            self._ends.append(end)
            self._totals.append(total or 0)
        if total is not None:
            self._total = self._usage["output"] = total

    def take_matched(self, ends: list[int], template: EventTemplate, matches: list[Any]) -> None:
        """Take events that `template` matched, as `take_output` does; all at once where it can."""
        group = template.count_group
        texts = [match[TEXT_GROUP] for match in matches]
        totals = [] if group is None else [int(match[group]) for match in matches]
        if all(texts) and group is None:
            self._running = False
            self._take_all(ends, [0] * len(ends))
        elif all(texts) and _rises([self._total, *totals]):
            self._take_all(ends, totals)
            self._total = self._usage["output"] = totals[-1]
        else:
            for end, text, total in zip(ends, texts, totals or repeat(None)):  # noqa: B905
                self.take_output(end, bool(text), total)

    def _take_all(self, ends: list[int], totals: list[int]) -> None:
        self._ends += ends
        self._totals += totals

    def _take_usage(self, usage: Mapping[str, Any]) -> int | None:
        """Keep the counts of a usage object; return that of output tokens."""
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        counts: dict[str, Any] = {
            "prompt": usage.get("prompt_tokens"),
            "cached": cached,
            "output": usage.get("completion_tokens"),
        }
        known = {name: n for name, n in counts.items() if n is not None and _is_count(n)}
        self._usage |= known
        return known.get("output")

    def fail(self, kind: str, text: str) -> None:
        """Keep the first failure; later ones change nothing."""
        self._error = self._error or (kind, text)

    def response(self) -> ParsedResponse:
        """Return the facts of all events together."""
        counted = self._usage.get("output")
        if self._finish_reason in _BAD_ENDS:
            text = f"the server ended the answer with finish_reason {self._finish_reason}"
            self.fail(_BAD_ENDS[self._finish_reason], text)
        return ParsedResponse(
            response_id=self._response_id,
            token_ends=self._ends,
            tokens=self._tokens(),
            prompt_tokens=self._usage.get("prompt"),
            cached_prompt_tokens=self._usage.get("cached"),
            output_tokens=None if self._ends and not counted else counted,  # text is no 0 tokens
            finish_reason=self._finish_reason,
            done=self.done,
            error_kind=self._error[0] if self._error else None,
            error=self._error[1] if self._error else None,
        )

    def _tokens(self) -> list[int]:
        """Return the tokens of each token event: differences of the running total, else 1 each."""
        if not self._running:
            return [1] * len(self._ends)
        return [
            total - before for before, total in zip([0, *self._totals], self._totals, strict=False)
        ]


def _well_formed(choices: object) -> bool:
    """Return whether `choices` starts with a choice whose text and delta have the API's types."""
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta") or choices[0].get("message") or {}
    if not isinstance(delta, dict):
        return False
    texts = [choices[0].get("text"), *(delta.get(name) for name in TEXTS)]
    return all(text is None or isinstance(text, str) or _are_parts(text) for text in texts)


def _are_parts(content: object) -> bool:
    """Return whether `content` is a list of parts, such as {"type": "thinking", …}."""
    return isinstance(content, list) and all(isinstance(part, dict) for part in content)


def refusal_text(body: bytes) -> str:
    """Return why the server refused, in its own words; empty where the body is."""
    try:
        message = _error_message(json.loads(body))
    except _NO_JSON:
        message = None
    return message or shown(body)


def _is_error(value: Mapping[str, Any]) -> bool:
    """Return whether an event is an error: by its name, or by a message without an answer."""
    if value.get("error") or value.get("object") == "error":
        return True
    has_message = any(isinstance(value.get(name), str | list | dict) for name in _MESSAGES)
    return has_message and not any(name in value for name in ("choices", "usage"))


def _error_message(value: object) -> str | None:
    """Return the message of an error body as the servers write it; None where there is none.

    `{"error": {"message": …}}`, `{"error": "…"}`, `{"message": …}` or `{"detail": …}`.
    """
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    holder = inner if isinstance(inner, dict) else value
    texts = [holder.get(name) for name in ("error", *_MESSAGES) if holder.get(name)]
    if not texts and not isinstance(inner, dict):
        return None
    return shown(_text(texts[0] if texts else inner))


def _rises(totals: list[int]) -> bool:
    """Return whether these counts grow from each to the next, and the last can be one."""
    return all(map(lt, totals, totals[1:])) and totals[-1] <= _MOST_TOKENS


def _is_count(value: object) -> bool:
    """Return whether a number of a server counts tokens: `true` is a number to Python only."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def _name(value: object) -> str:
    """Return an id or a finish reason as text that can be stored."""
    return _text(value)[:_NAME_LIMIT].decode("utf-8", "replace")


def _text(value: object) -> bytes:
    """Return a value of a server as text; half a character, which JSON can hold, becomes `?`."""
    text = value if isinstance(value, str) else _json_text(value)
    return text.encode("utf-8", "replace")


def _json_text(value: object) -> str:
    try:
        return json.dumps(value)
    except RecursionError:  # as deep as can be read, and no deeper
        return "…"


def shown(text: bytes) -> str:
    """Return `text` for an error message: one line, cut to a length that a person reads."""
    line = " ".join(text[: 4 * _TEXT_LIMIT].decode("utf-8", "replace").split())
    return line if len(line) <= _TEXT_LIMIT else f"{line[:_TEXT_LIMIT]}…"
