"""Which client reaches a server: the project's own over plain HTTP, aiohttp for anything else."""

from __future__ import annotations

from harness.adapters import Target, through_proxy, tls_context
from harness.client.http import AiohttpClient, HttpClient, RequestOptions, endpoint
from harness.timing import Clock


def client_for(
    target: Target, clock: Clock, options: RequestOptions | None = None
) -> HttpClient | AiohttpClient:
    """Return the client that reaches `target`, to be entered with `async with`.

    A proxy that the environment names is used, but never to reach this machine itself. Raises
    `ValueError` for a URL or an API that no client knows.
    """
    proxied = through_proxy(target.url)
    if proxied or endpoint(target).scheme == "https":
        tls = tls_context(target.verify_tls)
        return AiohttpClient(target, clock, options, through_proxy=proxied, tls=tls)
    return HttpClient(target, clock, options)
