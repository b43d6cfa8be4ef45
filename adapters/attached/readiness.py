"""Finds the root of a server's API, and waits until the model behind it generates.

A gateway answers before its model does: a refused connection, 502, 503 and 504 mean "not ready
yet". The list of models shows the root. One token is requested only where the list leaves
something open, because a healthy server's own count of requests should stay that of the load.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.adapters.attached.address import ApiRoot, api_roots
from harness.adapters.attached.names import may_be_served
from harness.adapters.base import EngineError
from harness.adapters.http_queries import NO_REPLY, Access, HttpReply, proxy_of, query
from harness.adapters.request_shape import API_PATHS, AS_MADE, RequestShape, one_token_bodies

NOT_READY = (502, 503, 504)
_NO_KEY = (401, 403)
_NO_ROUTE = (404, 405)
_POLL_S = 0.2
_QUERY_S = 10.0
_TOKEN_S = 30.0  # for one token: a cold engine compiles kernels first
_WORDS = 200  # characters of a server's message that an error quotes
_LISTED = 10  # names of a list that an error or a note quotes
Found = TypeVar("Found")


class _NotReadyError(Exception):
    """The server or its model is not ready yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The server and the model that are waited for."""

    url: str
    model: str
    shape: RequestShape = AS_MADE  # what the user sets of every request
    access: Access = field(default_factory=Access)
    api_key_env: str | None = None  # the variable with the key, for messages
    wait_s: float = 30.0
    model_check: bool = True
    waiting: Callable[[str], None] = lambda _: None  # called once, with what is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApi:
    """Where the API is, and what its list of models reports."""

    root: ApiRoot
    models: Mapping[str, Mapping[str, Any]]  # name → entry of the list; empty: no list
    waited_s: float
    notes: tuple[str, ...]


def found_api(wanted: Wanted) -> FoundApi:
    """Return the API at `wanted.url` once it is ready.

    Raises `EngineError` for an address that is none, at once where no route or another model
    answers, and after `wait_s` where the server is not ready.
    """
    roots, begun_s = api_roots(wanted.url), time.monotonic()

    def find(waited: bool) -> tuple[ApiRoot, Mapping[str, Mapping[str, Any]], tuple[str, ...]]:
        root, models = _root(wanted, roots)
        return root, models, _checked_model(wanted, root, models, waited=waited)

    root, models, notes = _patiently(wanted, roots[0].url, find)
    waited_s = time.monotonic() - begun_s
    return FoundApi(root=root, models=models, waited_s=waited_s, notes=notes)


def wait_for_token(wanted: Wanted, root: ApiRoot) -> float:
    """Return the seconds until the model generates. Raises `EngineError` after `wait_s`."""
    begun_s = time.monotonic()
    _patiently(wanted, root.url, lambda _: _token(wanted, root))
    return time.monotonic() - begun_s


def _patiently(wanted: Wanted, url: str, find: Callable[[bool], Found]) -> Found:
    """Return what `find` finds, which is called until the server is ready; True: not at first."""
    begun_s, why = time.monotonic(), ""
    while True:
        try:
            return find(bool(why))
        except _NotReadyError as cause:
            if not why:
                wanted.waiting(f"waiting up to {wanted.wait_s:g} s for {url}: {cause}")
            why = str(cause)
        if time.monotonic() - begun_s + _POLL_S > wanted.wait_s:
            break
        time.sleep(_POLL_S)
    error = EngineError(f"no server answered at {url} within {wanted.wait_s:g} s: {why}")
    error.add_note(
        "start the proxy, or unset the variable that names it; NO_PROXY names hosts without one"
        if proxy_of(url)
        else "start it first, or look at the port; --wait (in a sweep start_timeout) waits longer"
    )
    raise error


def _root(
    wanted: Wanted, roots: tuple[ApiRoot, ...]
) -> tuple[ApiRoot, Mapping[str, Mapping[str, Any]]]:
    """Return the root that answers, and the models that it lists."""
    replies = []
    for root in roots:
        reply = _reply(wanted, root.url, "/models")
        if (models := _models(reply)) is not None:
            return root, models
        replies.append((root, reply))
    _raise_for(wanted, [(f"{root.url}/models", reply) for root, reply in replies])
    return _generating_root(wanted, roots), {}


def _generating_root(wanted: Wanted, roots: tuple[ApiRoot, ...]) -> ApiRoot:
    """Return the first root that generates, else the first one whose routes answer at all."""
    answers = []
    for api in sorted(API_PATHS, key=lambda api: api != wanted.shape.api):
        for root in roots:
            reply = _token_reply(wanted, root, api)
            if reply is None or _is_good(reply):
                return root
            answers.append((root, root.url + API_PATHS[api], reply))
    _raise_for(wanted, [(url, reply) for _, url, reply in answers])
    for root, _, reply in answers:
        if reply.status not in _NO_ROUTE:
            return root
    tried = ", ".join(f"{url} ({reply.status})" for _, url, reply in answers)
    error = EngineError(f"no API answers at {wanted.url}; requested were {tried}")
    error.add_note(f"the server's words: {_words(wanted, answers[0][2])}")
    error.add_note("give the root of the API, which is what stands before /chat/completions")
    raise error


def _checked_model(
    wanted: Wanted, root: ApiRoot, models: Mapping[str, Any], *, waited: bool
) -> tuple[str, ...]:
    """Return notes on the model's name; raise `EngineError` where the server does not take it."""
    if wanted.model in models or not models or not wanted.model_check:
        if models and (waited or _is_unwell(wanted, root)):
            _token(wanted, root)
        if wanted.model in models:
            return ()
        return () if wanted.model_check else ("the model's name was not checked (no model check)",)
    names = _names(models)
    if not may_be_served(wanted.model, models):
        raise _other_model(wanted, root, names)
    reply = _token_reply(wanted, root, wanted.shape.api)
    if reply is None or not _is_good(reply):
        error = _other_model(wanted, root, names)
        error.add_note(f"one token was requested, and the answer was {_words(wanted, reply)}")
        raise error
    return (f"the server answers for {wanted.model}, which it does not list; it lists {names}",)


def _other_model(wanted: Wanted, root: ApiRoot, names: str) -> EngineError:
    error = EngineError(f"{root.url} does not serve {wanted.model[:_WORDS]!r}; it serves {names}")
    error.add_note("name one of them with --model, or look who answers on this port")
    error.add_note(
        "--no-model-check (in a sweep model_check: false) requests the name all the same"
    )
    return error


def _names(models: Mapping[str, Any]) -> str:
    names = sorted(models)
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(name[:_WORDS] for name in names[:_LISTED]) + more


def _is_unwell(wanted: Wanted, root: ApiRoot) -> bool:
    """Return whether the server's own page of health reports that it is not ready."""
    try:
        return query(root.server, "/health", timeout_s=_QUERY_S, access=wanted.access).status in (
            NOT_READY
        )
    except NO_REPLY:
        return False


def _token(wanted: Wanted, root: ApiRoot) -> None:
    """Raise `_NotReadyError` where the model does not generate yet."""
    _token_reply(wanted, root, wanted.shape.api)


def _token_reply(wanted: Wanted, root: ApiRoot, api: str) -> HttpReply | None:
    """Return the answer to a request for one token; None where it took too long or broke off.

    Raises `_NotReadyError`.
    """
    reply = None
    for one_token in one_token_bodies(api):
        body = {"model": wanted.model, **one_token, **wanted.shape.body}
        try:
            reply = query(root.url, API_PATHS[api], body, timeout_s=_TOKEN_S, access=wanted.access)
        except ConnectionRefusedError as refusal:
            raise _NotReadyError(_silence(root.url, refusal)) from refusal
        except NO_REPLY:
            return None
        if reply.status in NOT_READY:
            words = f": {_words(wanted, reply)}" if reply.body else ""
            raise _NotReadyError(f"its model answers {reply.status}, not ready{words}")
        if reply.status not in (400, 422):
            break
    return reply


def _reply(wanted: Wanted, url: str, path: str) -> HttpReply:
    try:
        return query(url, path, timeout_s=_QUERY_S, access=wanted.access)
    except ssl.SSLError as refusal:
        error = EngineError(f"{url}: no trusted connection: {refusal}")
        error.add_note("trust the authorities in a file: --ca FILE, verify_tls or SSL_CERT_FILE")
        error.add_note("or verify nothing with --no-verify-tls (verify_tls: false)")
        raise error from refusal
    except NO_REPLY as silence:
        raise _NotReadyError(_silence(url, silence)) from silence


def _silence(url: str, silence: Exception) -> str:
    """Return why there is no answer, and which proxy stands between where there is one."""
    why = str(silence) or type(silence).__name__
    proxy = proxy_of(url)
    return why if proxy is None else f"the proxy {proxy} did not answer: {why}"


def _raise_for(wanted: Wanted, replies: list[tuple[str, HttpReply]]) -> None:
    """Raise for a server that is not ready, and for one that wants another key."""
    for url, reply in replies:
        if reply.status in NOT_READY:
            through = f" through the proxy {proxy}" if (proxy := proxy_of(url)) else ""
            raise _NotReadyError(f"it answers {reply.status}{through}, not ready")
        if reply.status == 407:
            raise EngineError(
                f"the proxy {proxy_of(url)} answers 407: it wants a name and password"
            )
    for url, reply in replies:
        if reply.status in _NO_KEY:
            raise _no_access(url, reply, wanted)


def _no_access(url: str, reply: HttpReply, wanted: Wanted) -> EngineError:
    """Return the error of a server that wants a key or a header, its own words first."""
    words = wanted.access.masked(reply.words())
    error = EngineError(f"{url} answers {reply.status}" + (f": {words}" if words else ""))
    if wanted.api_key_env is not None:
        error.add_note(f"it may not take the key in {wanted.api_key_env}")
    else:
        error.add_note("if it needs an API key, name the variable that has it: --api-key-env NAME")
    error.add_note("if it needs a header: --header NAME=VALUE or --header-env NAME=VARIABLE")
    error.add_note("in a sweep these are the engine's keys api_key_env and headers")
    return error


def _models(reply: HttpReply) -> Mapping[str, Mapping[str, Any]] | None:
    """Return name → entry of a list of models; None for any other page."""
    document = reply.json() if _is_good(reply) else None
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list):
        return None
    return {str(one.get("id")): one for one in models if isinstance(one, dict)}


def _is_good(reply: HttpReply) -> bool:
    return 200 <= reply.status < 300


def _words(wanted: Wanted, reply: HttpReply | None) -> str:
    if reply is None:
        return "none"
    text = " ".join(wanted.access.masked(reply.text).split())
    return f"{reply.status} {text[:_WORDS]}".strip()
