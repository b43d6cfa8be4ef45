"""Parse and check request bodies. Errors have the wording of vLLM's API."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.server.request_error import RequestError
from harness.adapters.embedded.server.request_fields import check_fields, shown
from harness.adapters.embedded.server.words import chat_ids, ids_of

_DEFAULT_COMPLETION_TOKENS = 16  # vLLM's; a chat's output may fill the context
_WINDOW_BITS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}  # deflate has two formats


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The served model and its limits for requests."""

    name: str
    max_model_len: int  # prompt tokens plus output tokens
    vocabulary: int  # exclusive upper limit of token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A checked request."""

    chat: bool
    prompt_ids: NDArray[np.int32]
    output_tokens: int
    stream: bool
    include_usage: bool  # usage at the end of the stream
    continuous_usage: bool  # usage also in every event of the stream
    token_ids: bool = False  # return the token ids of prompt and output


def unpacked(body: bytes, coding: str, most_bytes: int) -> bytes:
    """Decompress `body` to at most `most_bytes`. Raises `RequestError`."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW_BITS:
        message = f"unknown Content-Encoding {coding!a}; use gzip, deflate or no compression"
        raise RequestError(message, status=415)
    for bits in _WINDOW_BITS[coding]:
        unpacking = zlib.decompressobj(bits)
        try:
            data = unpacking.decompress(body, most_bytes + 1)
        except zlib.error:
            continue
        if len(data) > most_bytes:
            raise RequestError(f"the body is larger than {most_bytes} bytes", status=413)
        if not unpacking.eof:
            raise RequestError(f"the {coding} body is incomplete")
        return data
    raise RequestError(f"the body is not valid {coding}, but Content-Encoding is {coding}")


def parse(body: bytes, model: ServedModel, *, chat: bool) -> ServedRequest:
    """Return the request in `body`. Raises `RequestError`.

    Unknown fields are ignored, as in vLLM. Known fields that the engine does not support are
    refused. Every output has the requested length, with or without `ignore_eos`, because the engine
    has no end-of-text token.
    """
    fields = _fields(body)
    check_fields(fields)
    name = fields.get("model")
    if name is not None and name != model.name:
        message = f"The model `{name if isinstance(name, str) else shown(name)}` does not exist."
        raise RequestError(message, param="model", kind="NotFoundError", status=404)
    if fields.get("n") not in (None, 1):
        raise RequestError("n must be 1; the embedded engine returns one choice", param="n")
    prompt_ids = _chat_prompt(fields, model) if chat else _prompt(fields.get("prompt"), model)
    output_tokens = _output_tokens(fields, len(prompt_ids), model, chat=chat)
    options = _stream_options(fields)
    if name is None:
        raise RequestError(f"model is missing; set it to {model.name}", param="model")
    return ServedRequest(
        chat=chat,
        prompt_ids=prompt_ids,
        output_tokens=output_tokens,
        stream=fields.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        token_ids=fields.get("return_token_ids") is True,
        continuous_usage=(
            options.get("include_usage") is True and options.get("continuous_usage_stats") is True
        ),
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, got {type(fields).__name__}")
    return fields


def _prompt(prompt: Any, model: ServedModel) -> NDArray[np.int32]:
    """Return the ids of a completion's prompt: text, token ids, or a list with one of these."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            message = f"the embedded engine accepts one prompt per request, got {len(prompt)}"
            raise RequestError(message, param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = ids_of(prompt, model.vocabulary)
    elif not isinstance(prompt, list) or any(type(token) is not int for token in prompt):
        raise RequestError("prompt must be a text or a list of token ids", param="prompt")
    return _checked_ids(prompt, model)


def _chat_prompt(fields: dict[str, Any], model: ServedModel) -> NDArray[np.int32]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    plain = [_plain_message(message) for message in messages]
    return _checked_ids(chat_ids(plain, model.vocabulary), model)


def _plain_message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError("each message must be an object with a role", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_plain_part(part) for part in content)
    if content is None and message["role"] != "assistant":  # an assistant may call a tool
        raise RequestError("each message must have content", param="messages")
    if content is not None and not isinstance(content, str):
        raise RequestError("content must be a text or a list of texts", param="messages")
    return {"role": message["role"], "content": content or ""}


def _plain_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise RequestError("each part of a message must be a text", param="messages")
    return text


def _checked_ids(ids: list[int], model: ServedModel) -> NDArray[np.int32]:
    if not ids:
        raise RequestError("the prompt has no token", param="prompt")
    if min(ids) < 0 or max(ids) >= model.vocabulary:
        message = f"token ids must be from 0 to {model.vocabulary - 1}"
        raise RequestError(message, param="prompt")
    if len(ids) >= model.max_model_len:
        message = (
            f"This model's maximum context length is {model.max_model_len} tokens. However, your "
            f"prompt contains {len(ids)} input tokens, which leaves no token for the output."
        )
        raise RequestError(message, param="input_tokens")
    return np.array(ids, dtype=np.int32)


def _output_tokens(
    fields: dict[str, Any], prompt_tokens: int, model: ServedModel, *, chat: bool
) -> int:
    """Return the number of output tokens. Raises `RequestError`."""
    most = model.max_model_len - prompt_tokens
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    given = [fields[name] for name in names if fields.get(name) is not None]
    if not given:
        return most if chat else min(_DEFAULT_COMPLETION_TOKENS, most)
    tokens = given[0]
    if type(tokens) is not int or tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, got {tokens}.", param="max_tokens")
    if tokens > most:
        message = (
            f"This model's maximum context length is {model.max_model_len} tokens. However, you "
            f"requested {tokens} output tokens and your prompt contains {prompt_tokens} input "
            f"tokens, for a total of {tokens + prompt_tokens} tokens."
        )
        raise RequestError(message, param="max_tokens")
    return tokens


def _stream_options(fields: dict[str, Any]) -> dict[str, Any]:
    options = fields.get("stream_options")
    if options is None:
        return {}
    if fields.get("stream") is not True:
        message = "Stream options can only be defined when `stream=True`."
        raise RequestError(message, param="stream_options")
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", param="stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name), bool | None):
            message = f"stream_options.{name} must be true or false, got {shown(options[name])}"
            raise RequestError(message, param="stream_options")
    return options
