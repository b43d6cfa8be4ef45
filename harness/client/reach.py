"""Which client reaches a server: the project's own over plain HTTP, aiohttp for anything else."""

from __future__ import annotations

from harness.adapters.asking import through_proxy
from harness.adapters.base import Target
from harness.client.http import HttpClient
from harness.client.http_by_aiohttp import AiohttpClient
from harness.client.request_body import Asking, endpoint
from harness.timing.clock import Clock


def client_for(
    target: Target, clock: Clock, asking: Asking | None = None
) -> HttpClient | AiohttpClient:
    """Return the client that reaches `target`, to be entered with `async with`.

    A proxy that the environment names is used, but never to reach this machine itself. Raises
    `ValueError` for a URL or an API that no client knows.
    """
    proxied = through_proxy(target.url)
    if proxied or endpoint(target).scheme == "https":
        return AiohttpClient(target, clock, asking, through_proxy=proxied)
    return HttpClient(target, clock, asking)
