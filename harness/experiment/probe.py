"""One small request beside a load: which fields a server takes, so that no other is sent.

Servers differ in what they refuse, and one that refuses a field refuses every request of a load.
One that refuses the API itself is requested for a token over each of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from harness.adapters import API_PATHS, RequestShape, Target, Transport
from harness.client import RequestOptions
from harness.load import ClosedLoop, play_http
from harness.results.store import RequestRecord
from harness.results.warnings import one_line
from harness.workloads import Conversation, Segment, Turn, text_names

_PROMPT_TOKENS = 8
_LONGEST_S = 30.0  # for the probe; a server that is slower is loaded as if it took all
_REFUSALS = ("http_400", "http_422")
_NO_ROUTE = ("http_404", "http_405")
_USAGE, _LENGTH = "include_usage", "max_tokens"
# Each field with what follows from leaving it out, the least missed first.
_FIELDS = {
    "continuous_usage_stats": "events of several tokens are not told apart, itl_ms may be absent",
    "ignore_eos": "answers may be shorter than asked",
    "seed": "answers may differ from run to run",
    _USAGE: "tokens are counted by events",
}
# As above, of the fields that every request has.
_ALWAYS = {
    _LENGTH: "the length is sent as max_completion_tokens",
    "temperature": "it is not sent: answers are sampled at the server's own temperature",
}
_CHATS = ("completions", "chat")  # the APIs in which max_tokens has another name
_TEXT = "prompts go out as text, so that their tokens are the server's to count"

_ANSWERED = (None, "no_token")  # one token may be a thought that is not sent

Try = Callable[[Target], RequestRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A transport without what its server refuses, and what a reader must know of that."""

    transport: Transport
    notes: tuple[str, ...] = ()


def probe(transport: Transport, timeout_s: float | None) -> Probed:
    """Return `transport` without what its server refuses; as it is where that is not known.

    Versions differ in what they take, and somebody else's server may be anything. Sends one request
    for one token, and a few more where that one is refused.
    """
    if not transport.may_refuse_fields:
        return Probed(transport=transport)
    options = RequestOptions(timeout_s=min(timeout_s or _LONGEST_S, _LONGEST_S))
    text = Segment(text_names(options.seed, "probe", [0])[0], _PROMPT_TOKENS)
    conversation = Conversation(
        conversation_id="probe", turns=(Turn(prompt=(text,), output_tokens=1),)
    )

    def send(target: Target) -> RequestRecord:
        once = ClosedLoop(concurrency=1)
        (record,) = play_http(target, once, (conversation,), lambda _: None, options).records
        return record

    return settled(transport, send)


def settled(target: Target, send: Try) -> Probed:
    """Return what the server takes, found out by `send`.

    What a refusal names is left out, or renamed, as long as that changes the refusal. Where nothing
    is named, each field is left out by itself; where that is not enough, all are left out, at last
    the token ids too, and added again one by one.
    """
    first = send(target)
    if first.error_kind in _NO_ROUTE:
        return Probed(transport=target, notes=_other_apis(target, send, first))
    if not refused(first):
        return Probed(transport=target)
    found = _by_name(target, first, send) or _by_trial(target, first.error or "", send)
    # Else it is none of the fields, and the load will show what it is.
    return found or Probed(transport=target, notes=_other_apis(target, send, first))


def _by_name(target: Target, refusal: RequestRecord, send: Try) -> Probed | None:
    """Leave out what one refusal after the other names; None where that does not end well."""
    notes: list[str] = []
    while refused(refusal):
        text = refusal.error or ""
        name = next((name for name in _removable(target) if _names(text, name)), None)
        if name is None:
            return None
        target = _without(target, name)
        notes.append(_note(name, text))
        refusal = send(target)
        if refused(refusal) and refusal.error == text:
            return None  # the text names all that was sent
    return Probed(transport=target, notes=tuple(notes))


def _names(refusal: str, name: str) -> bool:
    words = ("stream_options", name) if "usage" in name else (name,)
    return any(re.search(rf"(?<!\w){word}(?!\w)", refusal) for word in words)


def _by_trial(target: Target, refusal: str, send: Try) -> Probed | None:
    for name in _removable(target):
        less = _without(target, name)
        if not refused(send(less)):
            return Probed(transport=less, notes=(_note(name, refusal),))
    for barest in _barest(target):
        if not refused(send(barest)):
            return _refilled(target, barest, send, refusal)
    return None


def _refilled(target: Target, barest: Target, send: Try, refusal: str) -> Probed:
    kept = barest
    for name in reversed(_optional(target)):
        more = replace(kept, fields=kept.fields | {name})
        if not refused(send(more)):
            kept = more
    for name in barest.refused - target.refused:
        more = replace(kept, refused=kept.refused - {name})
        if not refused(send(more)):
            kept = more
    lost = [name for name in _optional(target) if name not in kept.fields]
    lost += [name for name in _ALWAYS if name in kept.refused - target.refused]
    notes = [_note(name, refusal) for name in lost]
    if kept.vocabulary is None and target.vocabulary is not None:
        notes.append(f"the server refuses prompts of token ids ({one_line(refusal)}): {_TEXT}")
    return Probed(transport=kept, notes=tuple(notes))


def _barest(target: Target) -> Iterator[Target]:
    """Yield `target` without any optional field, then without more and more of what is usual."""
    bare = replace(target, fields=frozenset())
    yield bare
    if target.vocabulary is not None:
        bare = replace(bare, vocabulary=None)
        yield bare
    yield replace(bare, refused=target.refused | set(_always(target)))


def _optional(target: Target) -> list[str]:
    return [name for name in _FIELDS if name in target.fields]


def _always(target: Target) -> list[str]:
    """Return the fields of every request that can be left out or renamed."""
    able = {"temperature"} - set(target.body)
    if target.api in _CHATS:
        able.add(_LENGTH)
    return [name for name in _ALWAYS if name in able - target.refused]


def _removable(target: Target) -> list[str]:
    return [*_optional(target), *_always(target)]


def _without(target: Target, name: str) -> Target:
    """Return `target` without a field; running usage is none without the usage."""
    if name in _ALWAYS:
        return replace(target, refused=target.refused | {name})
    gone = {name, "continuous_usage_stats"} if name == _USAGE else {name}
    return replace(target, fields=target.fields - gone)


def _other_apis(target: Target, send: Try, refusal: RequestRecord) -> tuple[str, ...]:
    """Return a note with the APIs that the server answers in place of the one that it refuses.

    A 400 is about what was requested, and another API would be requested for nothing.
    """
    if refusal.error_kind == "http_400":
        return ()
    answering = [
        api
        for api in API_PATHS
        if api != target.api and send(_over(target, api)).error_kind in _ANSWERED
    ]
    if not answering:
        return ()
    options = " or ".join(f"--api {api}" for api in answering)
    status = (refusal.error_kind or "").removeprefix("http_")
    note = (
        f"the server refuses {target.endpoint} ({status}: {one_line(refusal.error or '')}) and "
        f"answers {' and '.join(answering)}: use {options} (in a sweep api: {answering[0]})"
    )
    return (note,)


def _over(target: Target, api: str) -> Target:
    """Return `target` over another API, with the same key and no optional field."""
    shape = RequestShape(api=api, headers=target.headers)
    scheme, _, key = target.headers.get("Authorization", "").partition(" ")
    headers = shape.all_headers(key if scheme == "Bearer" else None)
    return replace(target, api=api, fields=frozenset(), vocabulary=None, headers=headers)


def refused(record: RequestRecord) -> bool:
    """Return whether a server refused what the request contains."""
    return record.error_kind in _REFUSALS


def without_route(record: RequestRecord) -> bool:
    """Return whether a server has no such route, or not for this method."""
    return record.error_kind in _NO_ROUTE


def _note(name: str, refusal: str) -> str:
    if name in _ALWAYS:
        return f"the server refuses {name} ({one_line(refusal)}), so {_ALWAYS[name]}"
    field = f"stream_options.{name}" if "usage" in name else name
    return f"the server refuses {field} ({one_line(refusal)}), so it is not sent: {_FIELDS[name]}"
