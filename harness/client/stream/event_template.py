"""Reads events that differ from one already read in their text and their counts only. Pure.

Nearly all events of a stream are such. To match their bytes is exact, and several times cheaper
than to parse each as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

# Fields of a delta that hold what the model put out.
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_OUTPUT = (*TEXTS, "tool_calls")
_TEXT_BEGINS = re.compile(rb'"(?:text|content|reasoning_content|reasoning)": ?"')
_PLAIN = re.compile(rb"([ !#-\[\]-~]*)")  # characters that stand for themselves in a JSON string
_COUNT = re.compile(rb'"(?P<name>(?:total|completion)_tokens)": ?(?P<count>0|[1-9][0-9]{0,17})')
_OUTPUT_COUNT = "completion_tokens"
_NUMBER = rb"0|[1-9][0-9]{0,17}"
TEXT_GROUP = 1  # of a match: the text


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTemplate:
    """The bytes of one event around its text and its counts."""

    before: bytes  # up to the text's opening quote, included
    after: bytes  # from its closing quote to the first count, or to the end
    behind_counts: tuple[bytes, ...]  # what follows each count, up to the next
    output_count: int  # which of the counts is that of output tokens; -1: none of them

    def match(self, events: Sequence[bytes]) -> list[re.Match[bytes] | None]:
        """Match each event: the match holds its text and counts. None where it differs elsewhere.

        `before` is compared on its own, since it holds the id of the response: a pattern of all
        would have to be compiled for each response.
        """
        rest = _rest(self.after, self.behind_counts).fullmatch
        begun = map(bytes.startswith, events, repeat(self.before))
        at = len(self.before)
        return [rest(one, at) if fits else None for one, fits in zip(events, begun, strict=True)]

    @property
    def count_group(self) -> int | None:
        """The group of a match that is the running count of output tokens; None: there is none."""
        return None if self.output_count < 0 else TEXT_GROUP + 1 + self.output_count


@lru_cache(maxsize=256)  # a server has few
def _rest(after: bytes, behind_counts: tuple[bytes, ...]) -> re.Pattern[bytes]:
    counts = (b"(" + _NUMBER + b")" + re.escape(behind) for behind in behind_counts)
    return re.compile(b"".join((_PLAIN.pattern, re.escape(after), *counts)))


def learn_template(data: bytes, value: Mapping[str, Any]) -> EventTemplate | None:
    """Return the template of events like `data`, whose JSON is `value`; None where there is none.

    The text and the counts are changed and the whole is parsed: only where just these have changed
    in the result is the template right.
    """
    for begin in _TEXT_BEGINS.finditer(data):
        text = _PLAIN.match(data, begin.end())
        if text is not None and data[text.end() : text.end() + 1] == b'"':
            pieces, counts = _cut_at_counts(data[text.end() :])
            changed = data[: text.start()] + text[0] + b"x" + pieces[0]
            for (_, count), piece in zip(counts, pieces[1:], strict=True):
                changed += b"%d" % (count + 1) + piece
            if _is_same_event(changed, text[0].decode(), dict(counts), value):
                names = [name for name, _ in counts]
                return EventTemplate(
                    before=data[: text.start()],
                    after=pieces[0],
                    behind_counts=tuple(pieces[1:]),
                    output_count=names.index(_OUTPUT_COUNT) if _OUTPUT_COUNT in names else -1,
                )
    return None


def _cut_at_counts(data: bytes) -> tuple[list[bytes], list[tuple[str, int]]]:
    """Return `data` without its counts, in pieces, and the counts with their names."""
    pieces, counts, at = [], [], 0
    for match in _COUNT.finditer(data):
        pieces.append(data[at : match.start("count")])
        counts.append((match["name"].decode(), int(match["count"])))
        at = match.end()
    return [*pieces, data[at:]], counts


def _is_same_event(
    changed: bytes, text: str, counts: Mapping[str, int], value: Mapping[str, Any]
) -> bool:
    """Return whether `changed` is `value` but for one x behind its text and counts one higher."""
    try:
        parsed = json.loads(changed)
        choice = parsed["choices"][0]
        if not _take_back_text(choice, text):
            return False
        usage = parsed.get("usage") or {}
        for name, count in counts.items():
            if not isinstance(usage.get(name), int) or usage[name] != count + 1:
                return False
            usage[name] = count
        return bool(parsed == value and (_OUTPUT_COUNT in counts) == (_OUTPUT_COUNT in usage))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _take_back_text(choice: dict[str, Any], text: str) -> bool:
    """Undo the change where the text is all the output of `choice`; return whether it was."""
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    for holder, name in ((choice, "text"), *((delta, name) for name in _OUTPUT)):
        if holder.get(name) == f"{text}x":
            holder[name] = ""
            alone = not has_output(choice)
            holder[name] = text
            return alone
    return False


def has_output(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice brings text, ids of tokens, reasoning, a tool call or a refusal."""
    if choice.get("text") or choice.get("token_ids"):
        return True
    delta = choice.get("delta") or choice.get("message")
    return isinstance(delta, dict) and any(delta.get(name) for name in _OUTPUT)
