"""Invalid HTTP requests to the embedded server."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable

import pytest
from served import MODEL, Served, with_server

from harness.adapters.embedded.server.openai_requests import unpacked
from harness.adapters.embedded.server.request_error import RequestError

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("coding", "pack", "status", "message"),
    [
        ("gzip", gzip.compress, 200, ""),
        ("deflate", zlib.compress, 200, ""),
        ("identity", bytes, 200, ""),
        ("gzip", bytes, 400, "not valid gzip"),
        ("deflate", bytes, 400, "not valid deflate"),
        ("gzip", lambda body: gzip.compress(body)[:-9], 400, "the gzip body is incomplete"),
        ("br", bytes, 415, "unknown Content-Encoding 'br'"),
        ("utf-8", bytes, 415, "unknown Content-Encoding 'utf-8'"),
    ],
)
def test_compressed_bodies_are_decompressed_or_refused(
    coding: str,
    pack: Callable[[bytes], bytes],
    status: int,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An invalid compressed body gets a JSON error, and nothing is logged."""

    async def main(served: Served) -> None:
        body = json.dumps({"model": MODEL, "prompt": "a b", "max_tokens": 2}).encode()
        headers = {"Content-Encoding": coding}
        post = served.session.post(
            served.url + COMPLETIONS, data=pack(body), headers=headers, skip_auto_headers=()
        )
        async with post as response:
            answer = json.loads(await response.read())

        assert response.status == status
        assert message in answer.get("error", {}).get("message", "")

    with_server(main)
    assert caplog.text == ""


def test_the_size_limit_applies_to_the_decompressed_body() -> None:
    """A small body that decompresses to gigabytes is refused early."""
    with pytest.raises(RequestError, match="larger than 1000 bytes") as caught:
        unpacked(gzip.compress(bytes(10_000_000)), "gzip", 1000)

    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("path", "allowed"), [(COMPLETIONS, {"POST"}), ("/health", {"GET", "HEAD"})]
)
def test_a_wrong_method_gets_the_allowed_ones(path: str, allowed: set[str]) -> None:
    """A wrong method gets 405 with `Allow`, as HTTP requires."""

    async def main(served: Served) -> None:
        async with served.session.delete(served.url + path) as response:
            body = await response.json()

        assert (response.status, body["error"]["code"]) == (405, 405)
        assert set(response.headers["Allow"].split(",")) == allowed

    with_server(main)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_without_a_log_entry(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A port scan gets 400 and no log entry, and the server continues."""

    async def main(served: Served) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes)

        answer = await reader.read()

        writer.close()
        assert answer.split(b"\r\n")[0].endswith(b"400 Bad Request")
        assert (await served.get("/health"))[0] == 200

    with_server(main)
    assert caplog.text == ""
