"""Single requests to a server, for readiness, counters and resets. Never the load."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# What `query` raises for a server that is not there, not ready or dying.
NO_REPLY = (OSError, http.client.HTTPException)


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
        """Return the body as data; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


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
    headers: Mapping[str, str] | None = None,
) -> HttpReply:
    """Return the reply to a GET, or to a POST of `body` as JSON, at `path` below `url`.

    Takes the same route as the load: through a proxy exactly where `through_proxy` is true. Trusts
    the authorities that OpenSSL trusts here, or those in the file that SSL_CERT_FILE names. Raises
    one of `NO_REPLY`.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - callers check the scheme
        url.rstrip("/") + path,
        data=data,
        headers={"Content-Type": "application/json", **(headers or {})},
        method="POST" if post or data else "GET",
    )
    named = urllib.request.getproxies() if through_proxy(url) else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(named), _NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return HttpReply(response.status, response.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return HttpReply(refusal.code, refusal.read())
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError):
            raise error.reason from error
        raise


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
