"""The bytes of a request, whole before the clock starts but for the later turns of live chats."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from harness.adapters import API_PATHS, Target, adapter_at
from harness.client.base import Request
from harness.client.http.live_history import prompt_ids, token_id_fields
from harness.workloads.prompts import prompt_text

_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "*/*",
    "Accept-Encoding": "identity",  # a packed stream would be read in lumps
    "User-Agent": "llm-serving-harness",
}
_LENGTH_FIELDS = {"responses": "max_output_tokens"}  # of an API that does not call it max_tokens
_DRAWS = 1 << 64  # of an adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of every request of a run, beyond its own prompt and length."""

    seed: int = 0
    cache_salt: str | None = None  # sent where the target takes one: no other run's cache answers
    timeout_s: float | None = None  # for a whole request, connecting included; None: no limit

    def __post_init__(self) -> None:
        """Refuse a limit that no request could keep."""
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")


def endpoint(target: Target) -> SplitResult:
    """Return the URL that requests go to, in its parts.

    Raises `ValueError` for a URL without http(s) or host, and for an API that is not known.
    """
    if target.api not in API_PATHS:
        raise ValueError(f"api must be one of {', '.join(API_PATHS)}, got {target.api!r}")
    parts = urlsplit(target.endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a URL such as http://127.0.0.1:8000 is needed, got {target.url!r}")
    return parts


def body_bytes(target: Target, options: RequestOptions, request: Request) -> bytes:
    """Return the JSON body of `request`; of what a server may not take, only what `target` lists.

    A chat is one user message: a recorded history stands inside it as text, so that all arms send
    the same bytes, whatever the answers were. The user's own fields replace those of the harness.
    """
    body: dict[str, Any] = {"model": _model(target, options, request), **_prompt(target, request)}
    body[_length_field(target)] = request.output_tokens
    if "temperature" not in target.refused:
        body["temperature"] = 0
    body["stream"] = True
    if "seed" in target.fields:
        body["seed"] = options.seed
    if "ignore_eos" in target.fields:
        body["ignore_eos"] = True
    stream_options = {
        name: True for name in ("include_usage", "continuous_usage_stats") if name in target.fields
    }
    if stream_options:
        body["stream_options"] = stream_options
    if "cache_salt" in target.fields and options.cache_salt is not None:
        body["cache_salt"] = options.cache_salt
    if request.live:
        body |= token_id_fields(target)
    body |= target.body
    return json.dumps(body, separators=(",", ":")).encode()


def _model(target: Target, options: RequestOptions, request: Request) -> str:
    """Return the model of a request: the base model, or an adapter drawn for its conversation.

    The draw depends on the seed and the conversation only, so all arms send the same.
    """
    if not target.lora:
        return target.model
    drawn = hashlib.blake2b(f"{options.seed} {request.conversation}".encode(), digest_size=8)
    point = int.from_bytes(drawn.digest()) / _DRAWS
    return adapter_at(target.lora, point) or target.model


def _length_field(target: Target) -> str:
    if "max_tokens" in target.refused:
        return "max_completion_tokens"
    return _LENGTH_FIELDS.get(target.api, "max_tokens")


def _prompt(target: Target, request: Request) -> dict[str, Any]:
    if target.api == "responses":
        return {"input": prompt_text(request.prompt)}
    if target.api in ("chat", "messages"):
        return {"messages": [{"role": "user", "content": prompt_text(request.prompt)}]}
    if target.vocabulary is None:
        return {"prompt": prompt_text(request.prompt)}
    return {"prompt": prompt_ids(request, target.vocabulary).tolist()}


def request_headers(target: Target) -> dict[str, str]:
    """Return the headers of every request; those of `target` stand in place of the same own ones.

    Raises `ValueError` for a header that would break out of its line.
    """
    given = {name.lower() for name in target.headers}
    own = {name: text for name, text in _HEADERS.items() if name.lower() not in given}
    headers = {**own, **target.headers}
    if any(sign in part for header in headers.items() for part in header for sign in "\r\n"):
        raise ValueError("a header holds a line break")
    return headers


def head_bytes(target: Target, length: int) -> bytes:
    """Return the head of an HTTP/1.1 request whose body has `length` bytes, blank line included.

    Raises `ValueError` as `endpoint` and `request_headers` do.
    """
    parts = endpoint(target)
    headers = {
        "Host": parts.netloc.rpartition("@")[2],
        **request_headers(target),
        "Content-Length": str(length),
    }
    lines = [f"POST {parts.path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
