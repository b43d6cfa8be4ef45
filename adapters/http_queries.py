"""Single requests to a server, for readiness, counters and resets. Never the load."""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from harness.adapters.request_shape import tls_context

# What `query` raises for a server that is not there, not ready or dying.
NO_REPLY = (OSError, http.client.HTTPException)
_HIDDEN, _SHORT = "(not shown)", 8
_WORDS = 300  # characters of a server's reason that an error repeats
_MOST_BYTES = 16 << 20  # of one reply


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The response of a server to one request."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as data; None when it is not JSON, or nested beyond all sense."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError, MemoryError):
            return None

    def words(self) -> str:
        """Return why the server refused, in its own words and in one line; empty: it gave none."""
        document = self.json()
        text = _message(document) if isinstance(document, dict) else None
        line = " ".join((text or self.text).split())
        return line if len(line) <= _WORDS else f"{line[:_WORDS]}…"


def _message(document: dict[str, Any]) -> str | None:
    """Return the message of an error as servers write it; None where there is none."""
    inner = document.get("error")
    holder = inner if isinstance(inner, dict) else document
    found = (holder.get(name) for name in ("message", "detail", "error", "reason"))
    return next((text for text in found if isinstance(text, str) and text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a server needs of every request before it answers: headers, and trust over TLS."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys among them
    verify_tls: bool | str = True  # a text: the file with the authorities to trust

    def masked(self, text: str) -> str:
        """Return `text` without the values of the headers: servers quote what they refuse."""
        return masked(text, self.headers)


def masked(text: str, headers: Mapping[str, str]) -> str:
    """Return `text` without the values of `headers`, each also without its scheme (Bearer …)."""
    values = {value for given in headers.values() for value in (given, given.rpartition(" ")[2])}
    for value in sorted(filter(None, values), key=len, reverse=True):
        whole_word = rf"(?<!\w){re.escape(value)}(?!\w)"  # "1" stands inside of many words
        text = re.sub(whole_word if len(value) < _SHORT else re.escape(value), _HIDDEN, text)
    return text


class TooLongReplyError(http.client.HTTPException):
    """A reply that is longer than any page that is queried."""


class _Arriving(io.RawIOBase):
    """What comes from a socket until a deadline: a time-out of the socket is for one read only."""

    def __init__(self, stream: io.RawIOBase, sock: socket.socket, deadline_s: float) -> None:
        super().__init__()
        self._stream, self._socket, self._deadline_s = stream, sock, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the whole reply did not come in time")
        self._socket.settimeout(left_s)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _TimelyReply(http.client.HTTPResponse):
    """A reply that is read until a deadline, from its first byte."""

    def __init__(self, deadline_s: float, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        stream: Any = self.fp
        self.fp = io.BufferedReader(_Arriving(stream.detach(), sock, deadline_s))


class _Http(urllib.request.HTTPHandler):
    """Opens plain connections whose replies have a deadline."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__()
        self._timely: Any = partial(_TimelyReply, deadline_s)

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **named: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, **named)
        connection.response_class = self._timely
        return connection


class _Https(urllib.request.HTTPSHandler):
    """Opens connections over TLS whose replies have a deadline."""

    def __init__(self, deadline_s: float, access: Access) -> None:
        self._tls = tls_context(access.verify_tls)
        super().__init__(context=self._tls)
        self._timely: Any = partial(_TimelyReply, deadline_s)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **named: Any) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(host, context=self._tls, **named)
        connection.response_class = self._timely
        return connection


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Returns a redirect as the response: what it points to is another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def query(
    url: str,
    path: str,
    body: Any = None,
    *,
    post: bool = False,
    timeout_s: float,
    access: Access | None = None,
) -> HttpReply:
    """Return the reply to a GET, or to a POST of `body` as JSON, at `path` below `url`.

    Takes the same route as the load: through a proxy exactly where `through_proxy` is true. Trusts
    the authorities that OpenSSL trusts here, or those in the file that SSL_CERT_FILE names, unless
    `access` has its own. Raises one of `NO_REPLY`: also where the whole reply has not come within
    `timeout_s`, or has more than 16 MiB.
    """
    access = access or Access()
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - callers check the scheme
        url.rstrip("/") + path,
        data=data,
        headers={"Content-Type": "application/json", **access.headers},
        method="POST" if post or data else "GET",
    )
    named = urllib.request.getproxies() if through_proxy(url) else {}
    deadline_s = time.monotonic() + timeout_s
    proxy = urllib.request.ProxyHandler(named)
    ways = _Http(deadline_s), _Https(deadline_s, access)
    opener = urllib.request.build_opener(proxy, *ways, _NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return HttpReply(response.status, _whole(response))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return HttpReply(refusal.code, _whole(refusal))
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError):
            raise error.reason from error
        raise


def _whole(response: Any) -> bytes:
    """Return the body. Raises `TooLongReplyError`, and `IncompleteRead` for one that was cut."""
    body: bytes = response.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise TooLongReplyError(f"the reply is longer than {_MOST_BYTES >> 20} MiB")
    missing_bytes = getattr(response, "length", None)
    if missing_bytes:
        raise http.client.IncompleteRead(body, missing_bytes)
    return body


def through_proxy(url: str) -> bool:
    """Return whether requests to `url` use a proxy; those to this machine never do."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or _is_loopback(host):
        return False
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def proxy_of(url: str) -> str | None:
    """Return the address of the proxy that requests to `url` use, without its password, or None."""
    if not through_proxy(url):
        return None
    named = urllib.request.getproxies()[urlsplit(url).scheme]
    return named.rpartition("@")[2].rpartition("//")[2]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
