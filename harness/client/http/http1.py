"""HTTP/1.1 answers as bytes: the head, where the body lies, where it ends. Pure, without time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import add

import numpy as np
from numpy.typing import NDArray

_CRLF = b"\r\n"
_HEAD_LIMIT_BYTES = 1 << 16
_LINE_LIMIT_BYTES = 1 << 14  # of a line with the size of a chunk
_INTERIM_LIMIT_BYTES = 1 << 16  # of answers before the answer
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"(?i:HTTP)/(\d)\.(\d) (\d{3})(?: ([^\r\n]*))?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_SWITCHING = 101
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\Z")
_TRAILERS_END = re.compile(rb"\n\r?\n")
_NO_BODY = frozenset((204, 205, 304))


class NotHttpError(ValueError):
    """Bytes that are no HTTP/1.1 answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers of one answer."""

    status: int
    reason: str
    headers: Mapping[str, str]  # names in lower case; values of one name joined by commas
    size_bytes: int  # up to where the body begins, interim answers (100 Continue) included
    persistent: bool  # the server keeps the connection after this answer

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks, the last of which is empty."""
        codings = self.headers.get("transfer-encoding", "").lower()
        return codings.rsplit(",", 1)[-1].strip() == "chunked"

    @property
    def body_bytes(self) -> int | None:
        """The body's length; None where chunks or the end of the connection end it."""
        if self.status in _NO_BODY:
            return 0
        stated = self.headers.get("content-length")
        return None if self.chunked or stated is None else int(stated)


def read_head(data: bytes) -> Head | None:
    """Return the head that `data` begins with; None when it has not all come yet.

    Interim answers are passed over, and lines may end without a carriage return. Raises
    `NotHttpError`, also for an answer after which no HTTP comes any more, and for one that never
    comes to its point.
    """
    begin = 0
    while True:
        if not b"HTTP/".startswith(data[begin : begin + 5].upper()):
            raise NotHttpError(f"the answer begins with {data[begin : begin + 40]!r}")
        end = _HEAD_END.search(data, begin)
        if end is None:
            if len(data) - begin > _HEAD_LIMIT_BYTES or begin > _INTERIM_LIMIT_BYTES:
                raise NotHttpError("the head of the answer has no end")
            return None
        head = _parsed_head(data[begin : end.end()], end.end())
        if head.status == _SWITCHING:
            raise NotHttpError(f"the server answers 101 {head.reason}, which nobody asked for")
        if head.status >= 200:
            return head
        begin = end.end()


@lru_cache(maxsize=64)  # the responses of a run begin the same
def _parsed_head(block: bytes, size_bytes: int) -> Head:
    line = _STATUS_LINE.match(block)
    if line is None:
        raise NotHttpError(f"the answer begins with {block[:40]!r}")
    headers = _headers(block[line.end() :].decode("latin-1"))
    stated = headers.get("content-length")
    if stated is not None and not _LENGTH.fullmatch(stated):
        raise NotHttpError(f"Content-Length is {stated!r}")
    options = headers.get("connection", "").lower()
    kept = "keep-alive" in options if line[1] + line[2] == b"10" else "close" not in options
    head = Head(
        status=int(line[3]),
        reason=(line[4] or b"").decode("latin-1").strip(),
        headers=headers,
        size_bytes=size_bytes,
        persistent=kept,
    )
    until_close = head.body_bytes is None and not head.chunked
    return replace(head, persistent=False) if until_close else head


def _headers(lines: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            same = name == "content-length" and headers.get(name) == value
            headers[name] = f"{headers[name]}, {value}" if name in headers and not same else value
    return headers


class BodyEnd:
    """Sees when the body of one answer has come, from reads of any lengths. Stores no body."""

    __slots__ = ("_line", "_skip_bytes", "_trailers", "chunked", "reached", "surplus")

    def __init__(self, head: Head) -> None:
        self.chunked = head.chunked and head.status not in _NO_BODY
        length = None if self.chunked else head.body_bytes
        self._skip_bytes = 0 if self.chunked else length  # until the next chunk line, or the end
        self._line = b""  # a line of the framing that has begun
        self._trailers = False
        self.reached = length == 0
        self.surplus = False  # bytes came behind the end

    @property
    def by_connection(self) -> bool:
        """Whether only the end of the connection ends the body."""
        return self._skip_bytes is None

    def feed(self, data: bytes) -> bool:
        """Take the next bytes of the body; return whether its end has been reached.

        Raises `NotHttpError` for a chunk without a size.
        """
        if self.reached:
            self.surplus = self.surplus or bool(data)
        elif self.chunked:
            self._feed_chunks(data)
        elif self._skip_bytes is not None:
            self._skip_bytes -= len(data)
            self.reached = self._skip_bytes <= 0
            self.surplus = self._skip_bytes < 0
        return self.reached

    def _feed_chunks(self, data: bytes) -> None:
        at = 0
        while not self.reached:
            skipped = min(self._skip_bytes or 0, len(data) - at)
            at += skipped
            self._skip_bytes = (self._skip_bytes or 0) - skipped
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                _check_line(self._line)
                return
            line, self._line = self._line + data[at:end], b""
            at = end + 1
            self._take_line(line)
        self.surplus = at < len(data)

    def _take_line(self, line: bytes) -> None:
        if self._trailers:
            self.reached = not line.strip()
            return
        size = chunk_size(line)
        self._trailers = size == 0
        self._skip_bytes = size + 2 if size else 0


@lru_cache(maxsize=4096)  # chunks have few sizes
def chunk_size(line: bytes) -> int:
    """Return the bytes of the chunk that `line` (without its line feed) announces."""
    _check_line(line)
    match = _CHUNK_SIZE.match(line)
    if match is None:
        raise NotHttpError(f"a chunk begins with {line[:40]!r} in place of its size")
    return int(match[1], 16)


def _check_line(line: bytes) -> None:
    """Raise `NotHttpError` for a line of the framing that is too long to be one."""
    if len(line) > _LINE_LIMIT_BYTES:
        raise NotHttpError(f"a line with the size of a chunk has no end: {line[:40]!r}…")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Body:
    """The body of one answer, and where its bytes lay among all that was read."""

    data: bytes
    starts: list[int]  # offsets in `data` at which its pieces begin
    raw_starts: list[int]  # where the same pieces begin in what was read
    whole: bool  # by its framing nothing is missing

    def raw_ends(self, ends: list[int]) -> NDArray[np.int64]:
        """Return how much had to be read until the body had come up to each of `ends`."""
        wanted = np.asarray(ends, dtype=np.int64)
        starts = np.asarray(self.starts, dtype=np.int64)
        piece = np.maximum(np.searchsorted(starts, wanted, side="left") - 1, 0)
        raw_starts = np.asarray(self.raw_starts, dtype=np.int64)
        return np.asarray(wanted - starts[piece] + raw_starts[piece], dtype=np.int64)


def read_body(raw: bytes, head: Head, *, closed: bool) -> Body:
    """Return the body of the answer `raw`, as much of it as came.

    `closed`: the server ended the connection in good order, which ends a body of unknown length.
    Raises `NotHttpError` for a chunk without a size.
    """
    begin = head.size_bytes
    if head.chunked and head.body_bytes is None:
        return _chunked_body(raw, begin)
    length = head.body_bytes
    data = raw[begin:] if length is None else raw[begin : begin + length]
    whole = closed if length is None else len(data) == length
    return Body(data=data, starts=[0], raw_starts=[begin], whole=whole)


def _chunked_body(raw: bytes, at: int) -> Body:
    return _plain_chunks(raw, at) or _chunk_by_chunk(raw, at)


def _plain_chunks(raw: bytes, at: int) -> Body | None:
    """Return a whole body whose chunks hold no CR LF, as nearly every stream's; None for others."""
    lines = raw[at:].split(_CRLF)
    sizes, pieces, end = lines[:-3:2], lines[1:-3:2], lines[-3:]
    lengths = list(map(len, pieces))
    try:
        if end != [b"0", b"", b""] or list(map(chunk_size, sizes)) != lengths:
            return None
    except NotHttpError:
        return None
    if not (lengths and all(lengths)):  # a chunk of no bytes ends the body, whatever follows
        return None
    heads = [len(size) + len(_CRLF) for size in sizes]
    chunks = (head + length + len(_CRLF) for head, length in zip(heads, lengths, strict=True))
    return Body(
        data=b"".join(pieces),
        starts=list(accumulate(lengths[:-1], initial=0)),
        raw_starts=list(map(add, accumulate(chunks, initial=at), heads)),
        whole=True,
    )


def _chunk_by_chunk(raw: bytes, at: int) -> Body:
    pieces: list[bytes] = []
    starts, raw_starts = [], []
    length, whole = 0, False
    while (end := raw.find(b"\n", at)) >= 0:
        size = chunk_size(raw[at:end])
        if not size:
            whole = _TRAILERS_END.search(raw, end) is not None
            break
        piece = raw[end + 1 : end + 1 + size]
        pieces.append(piece)
        starts.append(length)
        raw_starts.append(end + 1)
        length += len(piece)
        at = end + 1 + size + 2
    if not whole:
        _check_line(raw[at : at + 2 * _LINE_LIMIT_BYTES])
    return Body(
        data=b"".join(pieces), starts=starts or [0], raw_starts=raw_starts or [at], whole=whole
    )
