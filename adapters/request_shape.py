"""What a user sets of every request to a server: API, fields, headers, LoRA adapters, TLS.

The only place that checks them: the sweep file and the command line both come here.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["completions", "chat", "responses", "messages"]
# The route of each API below its root.
API_PATHS: Mapping[str, str] = {
    "completions": "/completions",
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
_LENGTH = "the workload sets the length of each answer"
_PROMPT = "the workload makes the prompt"
_COUNTING = "the harness reads token times and counts from the stream"
OWNED_FIELDS: Mapping[str, str] = {
    "model": "--model, or the key model of the engine, sets it",
    "messages": _PROMPT,
    "prompt": _PROMPT,
    "input": _PROMPT,
    "stream": _COUNTING,
    "stream_options": _COUNTING,
    "max_tokens": _LENGTH,
    "max_completion_tokens": _LENGTH,
    "max_output_tokens": _LENGTH,
    "ignore_eos": _LENGTH,
    "n": "each request has one answer",
}
_CONNECTION = {"connection", "keep-alive", "proxy-connection", "te", "upgrade", "expect"}
_OWNED_HEADERS = _CONNECTION | {
    *("host", "content-length", "transfer-encoding", "trailer", "accept-encoding"),
}
# The optional fields of an API; None: all that the server takes.
_API_FIELDS: Mapping[str, frozenset[str] | None] = {
    "completions": None,
    "chat": None,
    "responses": frozenset({"seed", "ignore_eos", "cache_salt"}),
    "messages": frozenset({"cache_salt"}),
}
_MESSAGES_VERSION = {"anthropic-version": "2023-06-01"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_GREEDY = 0  # the temperature of a request that sets none
_MOST = 1 << 64
_DEEPEST = 32  # levels of a field's value
_ROUNDING = 1e-9  # of shares that add up to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What a user sets of every request; the default is what the harness sends by itself."""

    api: str = "completions"
    body: Mapping[str, Any] = field(default_factory=dict)  # merged into the body, JSON values
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # never stored or printed
    lora: Mapping[str, float] = field(default_factory=dict)  # adapter → its share of the requests
    verify_tls: bool | str = True  # a text: the file with the authorities to trust

    @property
    def is_default(self) -> bool:
        """Whether nothing was set."""
        return self == AS_MADE

    def facts(self) -> dict[str, Any] | None:
        """Return what plans and manifests hold of it, no header's value; None: nothing was set."""
        if self.is_default:
            return None
        return {
            "api": self.api,
            "body": dict(self.body),
            "headers": sorted(self.headers),
            "lora": dict(self.lora),
            "verify_tls": self.verify_tls,
        }

    def describe(self) -> str:
        """Return it in one line for a plan; empty: nothing was set. No header's value is in it."""
        parts = [f"api {self.api}"] if self.api != "completions" else []
        parts += [f"{name}={json.dumps(value)}" for name, value in self.body.items()]
        parts += [f"header {name}" for name in self.headers]
        parts += [f"lora {name} {share:.4g}" for name, share in self.lora.items()]
        parts += [] if self.verify_tls is True else [f"verify_tls={json.dumps(self.verify_tls)}"]
        return ", ".join(parts)

    def fields(self, taken: frozenset[str]) -> frozenset[str]:
        """Return those optional fields of `taken`, which a server takes, that the API has."""
        known = _API_FIELDS[self.api]
        return taken if known is None else taken & known

    def all_headers(self, key: str | None = None) -> dict[str, str]:
        """Return the headers of every request, with the API key where there is one.

        The Messages API has the key in a header of its own. Servers of that API differ in which
        one they read, so both are sent. The user's headers replace the harness's.
        """
        own = {} if key is None else {"Authorization": f"Bearer {key}"}
        if self.api == "messages":
            own |= _MESSAGES_VERSION | ({} if key is None else {"x-api-key": key})
        given = {name.lower() for name in self.headers}
        kept = {name: value for name, value in own.items() if name.lower() not in given}
        return {**kept, **self.headers}

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of results must know of such requests."""
        found = []
        temperature = self.body.get("temperature", _GREEDY)
        if temperature != _GREEDY:
            found.append(
                f"temperature {temperature} in every request: answers are sampled, and the "
                "acceptance of draft tokens depends on it"
            )
        if self.api == "messages":
            found.append(
                "the Messages API has no ignore_eos: answers may be shorter than requested"
            )
        if self.verify_tls is False:
            found.append("the server's certificate was not verified (verify_tls: false)")
        return tuple(found)


AS_MADE = RequestShape()  # requests as the harness makes them


def one_token_bodies(api: str) -> tuple[dict[str, Any], ...]:
    """Return the bodies that request one token, without the model: the usual one, then others.

    Some servers take only `max_completion_tokens`.
    """
    if api == "responses":
        return ({"input": "a", "max_output_tokens": 1},)
    if api == "completions":
        return ({"prompt": "a", "max_tokens": 1},)
    chat = {"messages": [{"role": "user", "content": "a"}]}
    if api == "messages":
        return ({**chat, "max_tokens": 1},)
    return ({**chat, "max_tokens": 1}, {**chat, "max_completion_tokens": 1})


def checked_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields for every request as plain JSON values.

    Raises `ValueError` for a field that the harness sets itself, and for what JSON cannot hold.
    """
    for name, value in fields.items():
        if not name:
            raise ValueError("a field of a request needs a name")
        if reason := OWNED_FIELDS.get(name):
            raise ValueError(f"the field {name} cannot be set: {reason}")
        _check_json(value, name, _DEEPEST)
    return dict(fields)


def checked_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """Return headers for every request. Raises `ValueError`, which never repeats a value."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header: use letters, digits and '-'")
        if name.lower() in _OWNED_HEADERS:
            raise ValueError(f"the header {name} cannot be set: the client sets it itself")
        if name.lower() in {other.lower() for other in found}:
            raise ValueError(f"the header {name} is given twice; give it once")
        found[name] = _header_value(name, value)
    return found


def _header_value(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"the header {name} needs a text as its value")  # noqa: TRY004 - as others
    text = str(value).strip(" \t")
    if not text:
        raise ValueError(f"the header {name} has an empty value")
    if not text.isascii() or not text.isprintable():
        raise ValueError(
            f"the value of the header {name} has a character that no header can carry; "
            "use printable ASCII without line breaks"
        )
    return text


def checked_lora(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the share of requests of each LoRA adapter; the base model gets the rest.

    Raises `ValueError` for a share outside 0 to 1, and for shares whose sum is above 1.
    """
    for name, share in shares.items():
        if not name:
            raise ValueError("a LoRA adapter needs a name")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"the share of {name} must be above 0 and at most 1, found {share!r}")
    total = math.fsum(shares.values())
    if total > 1 + _ROUNDING:
        raise ValueError(f"the shares of LoRA adapters sum to {total:g}; at most 1 is possible")
    return {name: float(share) for name, share in shares.items()}


def adapter_at(lora: Mapping[str, float], point: float) -> str | None:
    """Return the adapter of a request whose draw from 0 to 1 is `point`; None: the base model."""
    edges = list(_edges(lora.values()))
    return next((name for name, edge in zip(lora, edges, strict=True) if point < edge), None)


def _edges(shares: Iterable[float]) -> Iterable[float]:
    total = 0.0
    for share in shares:
        total += share
        yield math.inf if total > 1 - _ROUNDING else total


def tls_context(verify_tls: bool | str) -> ssl.SSLContext | None:
    """Return the context of connections over TLS; None: this machine's usual one.

    Raises `ValueError` for a file without certificates.
    """
    if verify_tls is True:
        return None
    if verify_tls is False:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=verify_tls)
    except OSError as cause:  # an SSLError is one
        why = cause.strerror or str(cause)
        raise ValueError(f"{verify_tls}: no certificates in PEM form: {why}") from cause


def _check_json(value: object, name: str, levels: int) -> None:
    """Raise `ValueError` for a value that JSON cannot hold."""
    if not levels:
        raise ValueError(f"the field {name} is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Mapping):
        for key in value:
            _check_scalar(str(key), name)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_json(item, name, levels - 1)
    else:
        _check_scalar(value, name)


def _check_scalar(value: object, name: str) -> None:
    fault = None
    if isinstance(value, float) and not math.isfinite(value):
        fault = f"{value}, which JSON cannot hold"
    elif isinstance(value, int) and abs(value) >= _MOST:
        fault = "a number of more than 64 bits"
    elif isinstance(value, str) and not _is_unicode(value):
        fault = "a text that is not UTF-8"
    elif not (value is None or isinstance(value, bool | int | float | str)):
        fault = "a value that JSON cannot hold"
    if fault is not None:
        raise ValueError(f"the field {name} has {fault}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
