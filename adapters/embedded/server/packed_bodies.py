"""Bodies of requests that came packed: gzip and deflate, up to the size that a body may have."""

from __future__ import annotations

import zlib

from harness.adapters.embedded.server.request_error import RequestError

_WINDOW_BITS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}  # deflate comes in two forms


def unpacked(body: bytes, coding: str, most_bytes: int) -> bytes:
    """Return `body` as it was before it was packed. Raises `RequestError`."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW_BITS:
        message = f"Content-Encoding {coding!a} is not known; send it as gzip, deflate or plain"
        raise RequestError(message, status=415)
    for bits in _WINDOW_BITS[coding]:
        unpacking = zlib.decompressobj(bits)
        try:
            data = unpacking.decompress(body, most_bytes + 1)
        except zlib.error:
            continue
        if len(data) > most_bytes:
            raise RequestError(f"the body is larger than {most_bytes} bytes", status=413)
        if not unpacking.eof:
            raise RequestError(f"the body ends inside its {coding}")
        return data
    raise RequestError(f"the body is no {coding}, as its Content-Encoding says")
