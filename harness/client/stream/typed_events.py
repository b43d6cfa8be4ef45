"""Events of OpenAI's Responses and Anthropic's Messages API as the events of a chat. Pure.

Both name the kind of an event in its field `type`. Each event that matters is written as the chunk
of a chat that has the same meaning, so that one reader makes the record of every API.

https://platform.openai.com/docs/api-reference/responses-streaming
https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

_MESSAGES_KINDS = (
    *("message_start", "message_delta", "message_stop", "ping", "message"),
    *("content_block_start", "content_block_delta", "content_block_stop"),
)
_FAILED = ("failed", "cancelled")
_ENDS = (
    *("response.completed", "response.incomplete", "response.failed", "response.cancelled"),
    "message_stop",
)
# Why an answer of the Messages API ended → the finish reason of a chat.
_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_INCOMPLETE = {"max_output_tokens": "length", "max_tokens": "length"}
_DELTAS = ("text", "thinking", "partial_json")  # fields of a delta with output
_CALLS = ("function_call", "tool_use", "server_tool_use", "mcp_call", "custom_tool_call")


def is_typed(value: object) -> bool:
    """Return whether a JSON value is an event, or a whole answer, of one of the two APIs."""
    if not isinstance(value, Mapping) or "choices" in value:
        return False
    kind = value.get("type")
    typed = isinstance(kind, str) and (kind.startswith("response.") or kind in _MESSAGES_KINDS)
    return typed or value.get("object") == "response"


def ends_answer(value: Mapping[str, Any]) -> bool:
    """Return whether nothing belongs to the answer after this event, or whole answer."""
    kind = value.get("type")
    return kind in _ENDS or not isinstance(kind, str) or kind == "message"


def chat_chunks(value: Mapping[str, Any], *, has_output: bool) -> list[dict[str, Any]]:
    """Return what a typed event means as chunks of a chat; none where that is nothing.

    `has_output`: events before had output. Else the text of a whole answer is its output.
    """
    kind = str(value.get("type") or "")
    if kind in _MESSAGES_KINDS:
        return _message_event(value, kind, has_output=has_output)
    if value.get("object") == "response" or kind in _ENDS:
        response = _mapping(value.get("response")) or value
        return _response(response, kind, has_output=has_output)
    return _inside_of_response(value, kind)


def _message_event(
    value: Mapping[str, Any], kind: str, *, has_output: bool
) -> list[dict[str, Any]]:
    if kind in ("message_start", "message"):
        return _message(_mapping(value.get("message")) or value, has_output=has_output)
    if kind == "message_delta":
        usage = _messages_usage(_mapping(value.get("usage")))
        return _chunks(finish=_stop_reason(_mapping(value.get("delta"))), usage=usage)
    if kind == "content_block_start":
        return _chunks(text=_block_text(_mapping(value.get("content_block"))))
    if kind == "content_block_delta":
        return _chunks(text=_first_text(_mapping(value.get("delta")), _DELTAS))
    return []


def _inside_of_response(value: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    if kind == "response.created":
        return [{"id": _mapping(value.get("response")).get("id")}]
    if kind == "response.output_item.added":
        return _chunks(text=_block_text(_mapping(value.get("item"))))
    return _chunks(text=_first_text(value, ("delta",))) if kind.endswith(".delta") else []


def _response(response: Mapping[str, Any], kind: str, *, has_output: bool) -> list[dict[str, Any]]:
    """Return the chunks of a whole response: text that is new, how it ended, its counts."""
    error, status = response.get("error"), response.get("status")
    if error or status in _FAILED or kind.removeprefix("response.") in _FAILED:
        return [{"error": error or {"message": f"the response ended as {status or kind}"}}]
    why = _mapping(response.get("incomplete_details")).get("reason")
    usage = _mapping(response.get("usage"))
    cached = _mapping(usage.get("input_tokens_details")).get("cached_tokens")
    return _chunks(
        name=response.get("id"),
        text=None if has_output else _texts(_items(response.get("output"))),
        finish="stop" if why is None else _INCOMPLETE.get(str(why), str(why)),
        usage={
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    )


def _message(message: Mapping[str, Any], *, has_output: bool) -> list[dict[str, Any]]:
    """Return the chunks of a message: of its start, which has no content, or of a whole one.

    The count of output tokens at the start is none of the answer: the last event has it.
    """
    content, finish = _items(message.get("content")), _stop_reason(message)
    usage = _messages_usage(_mapping(message.get("usage")))
    if not content and finish is None:
        del usage["completion_tokens"]
    text = None if has_output else _texts(content)
    return _chunks(name=message.get("id"), text=text, finish=finish, usage=usage)


def _messages_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of the Messages API, whose input tokens leave out what a cache had."""
    fresh, cached, written = (
        usage.get(f"{name}input_tokens") for name in ("", "cache_read_", "cache_creation_")
    )
    total = sum(count for count in (fresh, cached, written) if _is_whole(count))
    found: dict[str, Any] = {"completion_tokens": usage.get("output_tokens")}
    if _is_whole(fresh) and total > 0:
        found |= {
            "prompt_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    return found


def _stop_reason(holder: Mapping[str, Any]) -> str | None:
    reason = holder.get("stop_reason")
    return _STOP_REASONS.get(reason, reason) if isinstance(reason, str) else None


def _chunks(
    *,
    name: object = None,
    text: str | None = None,
    finish: str | None = None,
    usage: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return chunks of a chat. Counts without a text of their own have one without a choice.

    The reader would take the count of a choice for tokens that the same event has.
    """
    chunks: list[dict[str, Any]] = []
    if text or finish:
        chunks.append({"choices": [{"text": text or "", "finish_reason": finish}]})
    if usage is not None and text:
        chunks[0]["usage"] = dict(usage)
    elif usage is not None:
        chunks.append({"choices": [], "usage": dict(usage)})
    return [{"id": name, **chunk} for chunk in chunks]


def _block_text(block: Mapping[str, Any]) -> str | None:
    """Return the output with which a block or an item starts: for a call that is its name."""
    if block.get("type") in _CALLS:
        return _first_text(block, ("name",))
    return _first_text(block, ("text", "thinking", "data"))


def _texts(blocks: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the first output of a whole answer's blocks; None where there is none."""
    for block in blocks:
        inside = (*_items(block.get("content")), *_items(block.get("summary")))
        text = _block_text(block) or next(filter(None, map(_block_text, inside)), None)
        if text:
            return text
    return None


def _first_text(holder: Mapping[str, Any], names: Iterable[str]) -> str | None:
    found = (holder.get(name) for name in names)
    return next((text for text in found if isinstance(text, str) and text), None)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
