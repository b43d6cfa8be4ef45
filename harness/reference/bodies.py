"""The HTTP of the reference server: parsing of requests and bytes of answers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from harness import __version__

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_DEFAULT_TOKENS = 16  # for a request without a length, as in OpenAI's completions
_TEXT = " token"
_CREATED_S = 1_767_225_600  # constant, because computing it for each answer costs time
_MAX_MODEL_LEN = 131_072
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ID = "<id>"  # placeholder for the id of an answer in a cached event
_USAGE = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 411: "Length Required"}


class BadRequestError(ValueError):
    """A request that cannot be answered; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete request."""

    method: str
    path: str  # without a query
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """The fields of one completion request."""

    response_id: str
    model: str
    chat: bool
    stream: bool
    tokens: int
    prompt_tokens: int
    usage: bool  # usage at the end of the stream
    running_usage: bool  # usage in every event


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Remove the first request from `buffer` and return it; None if it is incomplete.

    Raises `BadRequestError` for a body without a Content-Length.
    """
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    method, _, rest = bytes(buffer[: buffer.find(b"\r\n")]).decode("latin-1").partition(" ")
    stated = _LENGTH.search(buffer, 0, head_end + 2)
    if stated is None and method == "POST":
        raise BadRequestError("missing Content-Length")
    body_at = head_end + 4
    end = body_at + (int(stated[1]) if stated else 0)
    if len(buffer) < end:
        return None
    body = bytes(buffer[body_at:end])
    del buffer[:end]
    return HttpRequest(method, rest.partition(" ")[0].partition("?")[0], body)


def waits_for_continue(buffer: bytearray) -> bool:
    """Return whether the client waits for 100 Continue before it sends the body."""
    return buffer.endswith(b"\r\n\r\n") and b"100-continue" in buffer.lower()


def read_completion(request: HttpRequest, number: int, *, running_usage: bool) -> CompletionRequest:
    """Parse `request` as completion number `number`. Raises `BadRequestError`.

    With `running_usage` False, events have no usage even if the request contains
    `continuous_usage_stats`.
    """
    chat = request.path.endswith("/chat/completions")
    try:
        body = json.loads(request.body)
        options = body.get("stream_options") or {}
        limits = (body.get("max_completion_tokens"), body.get("max_tokens"), _DEFAULT_TOKENS)
        tokens = next(limit for limit in limits if limit is not None)
        prompt_tokens = _prompt_tokens(body, chat=chat)
    except (ValueError, AttributeError, KeyError, TypeError) as cause:
        raise BadRequestError(f"the body is not a completion request: {cause!r}") from cause
    if not isinstance(tokens, int) or tokens < 1:
        raise BadRequestError(f"max_tokens must be an integer of at least 1, got {tokens!r}")
    return CompletionRequest(
        response_id=f"{'chatcmpl' if chat else 'cmpl'}-{number}",
        model=str(body.get("model", "")),
        chat=chat,
        stream=bool(body.get("stream")),
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        usage=bool(options.get("include_usage")),
        running_usage=running_usage and bool(options.get("continuous_usage_stats")),
    )


def _prompt_tokens(body: dict[str, Any], *, chat: bool) -> int:
    """Return the number of prompt ids, or of words of a text: the server has no tokenizer."""
    if chat:
        return sum(len(str(message["content"]).split()) for message in body["messages"])
    prompt = body["prompt"]
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def events(completion: CompletionRequest) -> Iterator[bytes]:
    """Yield the bytes of each token: one event in one HTTP chunk.

    The first bytes of a chat begin with the role event, which contains no token.
    """
    name = completion.response_id.encode()
    role = (
        _chunk(_form(completion.model, completion.chat, "role") % name) if completion.chat else b""
    )
    middle, last = (
        _form(completion.model, completion.chat, kind) % name for kind in ("token", "last")
    )
    if completion.running_usage:
        counted = _counted(completion, middle, last)
        return chain([role + next(counted)], counted)
    if completion.tokens == 1:
        return iter([role + _chunk(last)])
    middle = _chunk(middle)
    return chain([role + middle], repeat(middle, completion.tokens - 2), [_chunk(last)])


def _counted(completion: CompletionRequest, middle: bytes, last: bytes) -> Iterator[bytes]:
    """Yield the events with running usage."""
    prompt_tokens, begin = completion.prompt_tokens, middle.removesuffix(b"}\n\n")
    for count in range(1, completion.tokens):
        yield _chunk(begin + _USAGE % (prompt_tokens, prompt_tokens + count, count))
    total = (prompt_tokens, prompt_tokens + completion.tokens, completion.tokens)
    yield _chunk(last.removesuffix(b"}\n\n") + _USAGE % total)


def tail(completion: CompletionRequest) -> bytes:
    """Return the bytes after the last token: usage if requested, [DONE], the end of the body."""
    if not completion.usage:
        return _END
    begin = _form(completion.model, completion.chat, "usage") % completion.response_id.encode()
    total = (
        completion.prompt_tokens,
        completion.prompt_tokens + completion.tokens,
        completion.tokens,
    )
    return _chunk(begin.removesuffix(b"}\n\n") + _USAGE % total) + _END


@lru_cache(maxsize=64)  # the requests of a load are the same
def _form(model: str, chat: bool, kind: str) -> bytes:
    """Return an event of the kind role, token, last or usage, with `%b` as its id."""
    delta = {"role": {"role": "assistant", "content": ""}}.get(kind, {"content": _TEXT})
    choice = {"index": 0, "delta": delta} if chat else {"index": 0, "text": _TEXT}
    choice |= {"logprobs": None, "finish_reason": "length" if kind == "last" else None}
    event = {
        "id": _ID,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": _CREATED_S,
        "model": model,
        "choices": [] if kind == "usage" else [choice],
    }
    data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return data.replace(b"%", b"%%").replace(_ID.encode(), b"%b", 1)


def whole_answer(completion: CompletionRequest) -> bytes:
    """Return the answer to a request without streaming."""
    text = _TEXT * completion.tokens
    content = (
        {"message": {"role": "assistant", "content": text}} if completion.chat else {"text": text}
    )
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length"}
    usage = {
        "prompt_tokens": completion.prompt_tokens,
        "total_tokens": completion.prompt_tokens + completion.tokens,
        "completion_tokens": completion.tokens,
    }
    answer = {
        "id": completion.response_id,
        "object": "chat.completion" if completion.chat else "text_completion",
        "created": _CREATED_S,
        "model": completion.model,
        "choices": [choice],
        "usage": usage,
    }
    return plain_answer(200, answer)


def page(request: HttpRequest, model: str) -> bytes:
    """Return the answer to a request other than a completion, such as /health."""
    if request.method != "GET" or request.path not in ("/health", "/v1/models", "/version"):
        return refusal(404, f"no route {request.method} {request.path}")
    facts = {"id": model, "object": "model", "owned_by": "harness", "max_model_len": _MAX_MODEL_LEN}
    documents = {
        "/health": None,
        "/v1/models": {"object": "list", "data": [facts]},
        "/version": {"version": __version__, "kind": "simulated"},
    }
    return plain_answer(200, documents[request.path])


def plain_answer(status: int, document: Any) -> bytes:
    """Return a complete JSON answer; without a body if `document` is None."""
    body = b"" if document is None else json.dumps(document).encode()
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def refusal(status: int, message: str) -> bytes:
    """Return an error answer."""
    return plain_answer(status, {"error": {"message": message, "code": status}})


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
