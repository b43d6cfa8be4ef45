"""The HTTP client: connections, their pool, and what each request saw on the socket."""

from harness.client.http.aiohttp_client import AiohttpClient
from harness.client.http.client import HttpClient
from harness.client.http.descriptors import allow_open_files
from harness.client.http.live_history import continued, playable, with_answers
from harness.client.http.request_body import RequestOptions, endpoint

__all__ = [
    "AiohttpClient",
    "HttpClient",
    "RequestOptions",
    "allow_open_files",
    "continued",
    "endpoint",
    "playable",
    "with_answers",
]
