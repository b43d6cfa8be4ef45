"""Which client reaches a server: the project's own over plain HTTP, aiohttp for anything else."""

from __future__ import annotations

import ipaddress
import urllib.request

from adapters.base import Target
from harness.aiohttp_client import AiohttpClient
from harness.clock import Clock
from harness.http_client import HttpClient
from harness.request_body import Asking, endpoint


def client_for(
    target: Target, clock: Clock, asking: Asking | None = None
) -> HttpClient | AiohttpClient:
    """Return the client that reaches `target`, to be entered with `async with`.

    A proxy that the environment names is used, but never to reach this machine itself. Raises
    `ValueError` for a URL or an API that no client knows.
    """
    parts = endpoint(target)
    proxied = _proxied(parts.scheme, parts.hostname or "")
    if proxied or parts.scheme == "https":
        return AiohttpClient(target, clock, asking, through_proxy=proxied)
    return HttpClient(target, clock, asking)


def _proxied(scheme: str, host: str) -> bool:
    if host == "localhost" or _is_loopback(host):
        return False
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
