"""One small request beside a load: which optional fields a server takes, so that no other is sent.

Servers differ in what they refuse, and one that refuses a field refuses every request of a load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from harness.adapters import Target, Transport
from harness.client import RequestOptions
from harness.load import ClosedLoop, play_http
from harness.results.store import RequestRecord
from harness.results.warnings import one_line
from harness.workloads import Conversation, Segment, Turn, text_names

_PROMPT_TOKENS = 8
_LONGEST_S = 30.0  # for the probe; a server that is slower is loaded as if it took all
_REFUSALS = ("http_400", "http_422")
_USAGE = "include_usage"
# Each field with what follows from leaving it out, the least missed first.
_FIELDS = {
    "continuous_usage_stats": "events of several tokens are not told apart, itl_ms may be absent",
    "ignore_eos": "answers may be shorter than asked",
    "seed": "answers may differ from run to run",
    _USAGE: "tokens are counted by events",
}
_TEXT = "prompts go out as text, so that their tokens are the server's to count"

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

    What the refusal names is left out first, then each field by itself; where that is not enough,
    all are left out, at last the token ids too, and added again one by one.
    """
    first = send(target)
    if not refused(first):
        return Probed(transport=target)
    refusal = first.error or ""
    for name in sorted(_optional(target), key=lambda name: name not in refusal):
        less = _without(target, name)
        if not refused(send(less)):
            return Probed(transport=less, notes=(_note(name, refusal),))
    for barest in _barest(target):
        if not refused(send(barest)):
            return _refilled(target, barest, send, refusal)
    return Probed(transport=target)  # it is none of the fields; the load will show what it is


def _refilled(target: Target, barest: Target, send: Try, refusal: str) -> Probed:
    kept = barest
    for name in reversed(_optional(target)):
        more = replace(kept, fields=kept.fields | {name})
        if not refused(send(more)):
            kept = more
    notes = [_note(name, refusal) for name in _optional(target) if name not in kept.fields]
    if kept.vocabulary is None and target.vocabulary is not None:
        notes.append(f"the server refuses prompts of token ids ({one_line(refusal)}): {_TEXT}")
    return Probed(transport=kept, notes=tuple(notes))


def _barest(target: Target) -> Iterator[Target]:
    bare = replace(target, fields=frozenset())
    yield bare
    if target.vocabulary is not None:
        yield replace(bare, vocabulary=None)


def _optional(target: Target) -> list[str]:
    return [name for name in _FIELDS if name in target.fields]


def _without(target: Target, name: str) -> Target:
    """Return `target` without a field; running usage is none without the usage."""
    gone = {name, "continuous_usage_stats"} if name == _USAGE else {name}
    return replace(target, fields=target.fields - gone)


def refused(record: RequestRecord) -> bool:
    """Return whether a server refused what the request contains."""
    return record.error_kind in _REFUSALS


def _note(name: str, refusal: str) -> str:
    field = f"stream_options.{name}" if "usage" in name else name
    return f"the server refuses {field} ({one_line(refusal)}), so it is not sent: {_FIELDS[name]}"
