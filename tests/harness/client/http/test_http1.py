"""HTTP/1.1 answers are read from bytes: heads, framing, and where a body's bytes lay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.http.http1 import BodyEnd, Head, NotHttpError, read_body, read_head


def head_of(text: str) -> Head:
    """The head that these lines make."""
    head = read_head(text.replace("\n", "\r\n").encode("latin-1"))
    assert head is not None
    return head


def test_a_head_is_read_once_it_is_whole() -> None:
    """Status, reason and headers, whose names have no case; nothing before the blank line came."""
    raw = b"HTTP/1.1 429 Too Many\r\nContent-LENGTH: 3\r\nX-A:  b \r\nx-a: c\r\n\r\nabc"

    assert all(read_head(raw[:cut]) is None for cut in range(len(raw) - 3))
    head = read_head(raw)

    assert head is not None
    assert (head.status, head.reason, head.size_bytes) == (429, "Too Many", len(raw) - 3)
    assert head.headers == {"content-length": "3", "x-a": "b, c"}
    assert (head.body_bytes, head.chunked, head.persistent) == (3, False, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 X\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_seen_at_once(raw: bytes) -> None:
    """Another protocol, interim answers without end, a length that is none: nobody waits."""
    with pytest.raises(NotHttpError):
        read_head(raw)


def test_the_protocols_name_may_be_written_small() -> None:
    """As it is by servers that nobody else has complained to."""
    head = read_head(b"http/1.1 200 ok\r\ncontent-length: 0\r\n\r\n")

    assert head is not None
    assert (head.status, head.reason) == (200, "ok")


def test_interim_answers_are_passed_over() -> None:
    """What 100 Continue and 103 Early Hints say is not the answer."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    head = read_head(interim + final)

    assert read_head(interim) is None
    assert head is not None
    assert (head.status, head.size_bytes) == (200, len(interim + final))


def test_lines_may_end_without_a_carriage_return() -> None:
    """Small servers write line feeds only."""
    raw = b"HTTP/1.1 200\nContent-Length: 1\n\n"

    head = read_head(raw + b"x")

    assert head is not None
    assert (head.reason, head.body_bytes, head.size_bytes) == ("", 1, len(raw))


@pytest.mark.parametrize(
    ("lines", "persistent"),
    [
        ("HTTP/1.1 200 OK\nContent-Length: 1\n\n", True),
        ("HTTP/1.1 200 OK\nContent-Length: 1\nConnection: Close\n\n", False),
        ("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", True),
        ("HTTP/1.1 200 OK\n\n", False),  # only the end of the connection ends its body
        ("HTTP/1.1 204 No Content\n\n", True),
        ("HTTP/1.0 200 OK\nContent-Length: 1\n\n", False),
        ("HTTP/1.0 200 OK\nContent-Length: 1\nConnection: keep-alive\n\n", True),
    ],
)
def test_a_head_says_whether_the_connection_is_kept(lines: str, persistent: bool) -> None:
    """By version and Connection, and only where the body has an end of its own."""
    assert head_of(lines).persistent is persistent


def test_chunks_go_before_a_length() -> None:
    """A server that states both means the chunks; gzip alone is no framing."""
    both = head_of("HTTP/1.1 200 OK\nContent-Length: 9\nTransfer-Encoding: gzip, Chunked\n\n")
    packed = head_of("HTTP/1.1 200 OK\nContent-Length: 9\nTransfer-Encoding: gzip\n\n")

    assert (both.chunked, both.body_bytes) == (True, None)
    assert (packed.chunked, packed.body_bytes) == (False, 9)


def test_a_length_that_is_said_twice_is_one_length() -> None:
    """Equal repetitions are one, others are refused."""
    assert head_of("HTTP/1.1 200 OK\nContent-Length: 9\nContent-Length: 9\n\n").body_bytes == 9
    with pytest.raises(NotHttpError, match="Content-Length is '9, 8'"):
        head_of("HTTP/1.1 200 OK\nContent-Length: 9\nContent-Length: 8\n\n")


@pytest.mark.parametrize(
    "raw",
    [
        b"<html>",
        b"HTTQ",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20),
    ],
)
def test_what_is_no_http_is_refused(raw: bytes) -> None:
    """Other protocols, impossible lengths, and a head without end."""
    with pytest.raises(NotHttpError):
        read_head(raw)


CHUNKED = head_of("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n")


def chunked_raw(pieces: list[bytes], trailer: bytes = b"") -> bytes:
    """A body in chunks, with an extension on each and maybe a trailer."""
    chunks = b"".join(b"%X;x=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return chunks + b"0\r\n" + trailer + b"\r\n"


def test_a_chunk_needs_a_size() -> None:
    """Both readers refuse the same lines: signs, prefixes, nothing."""
    for line in (b"", b"-5", b"0x5", b"+5", b"1_0", b"data: {}"):
        raw = b"\r\n".join([line, b"abc", b"0", b"", b""])
        with pytest.raises(NotHttpError):
            BodyEnd(CHUNKED).feed(raw)
        head = read_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert head is not None
        with pytest.raises(NotHttpError):
            read_body(b" " * head.size_bytes + raw, head, closed=False)


cuts = st.lists(st.integers(min_value=0, max_value=400), max_size=12)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
trailers = st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC: d\r\n"])


def parts(raw: bytes, at: list[int]) -> list[bytes]:
    """`raw` cut at these places."""
    places = sorted({0, len(raw), *(place for place in at if place < len(raw))})
    return [raw[a:b] for a, b in pairwise(places)]


@given(bodies, trailers, cuts)
def test_the_end_of_a_chunked_body_is_seen_at_its_last_byte(
    pieces: list[bytes], trailer: bytes, at: list[int]
) -> None:
    """However the bytes are cut into reads, the end is reached with the last one, not before."""
    raw = chunked_raw(pieces, trailer)
    end = BodyEnd(CHUNKED)

    reached = [end.feed(part) for part in parts(raw, at)]

    assert reached == [False] * (len(reached) - 1) + [True]
    assert not end.surplus
    assert end.feed(b"x")
    assert end.surplus


@given(bodies, trailers, st.integers(min_value=0, max_value=400))
def test_a_chunked_body_is_unpacked_as_far_as_it_came(
    pieces: list[bytes], trailer: bytes, cut: int
) -> None:
    """It is whole only with its end, and each of its bytes is where it was read."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked_raw(pieces, trailer)
    head = read_head(raw)
    assert head is not None
    came = raw[: head.size_bytes + cut]

    body = read_body(came, head, closed=True)

    assert body.whole == (came == raw)
    assert b"".join(pieces).startswith(body.data)
    ends = list(range(1, len(body.data) + 1))
    assert [came[end - 1 : end] for end in body.raw_ends(ends).tolist()] == [
        body.data[end - 1 : end] for end in ends
    ]


def test_a_chunk_of_no_bytes_ends_the_body_whatever_follows() -> None:
    """Bytes behind the end are no part of it, though they look like more chunks."""
    head = head_of("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n")
    raw = b" " * head.size_bytes + b"1\r\na\r\n0\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

    assert read_body(raw, head, closed=False).data == b"a"


def test_a_body_of_known_length_ends_there() -> None:
    """What comes behind it is no part of it; what is missing makes it not whole."""
    head = head_of("HTTP/1.1 200 OK\nContent-Length: 3\n\n")
    raw = b" " * head.size_bytes + b"abcd"
    end = BodyEnd(head)

    assert (end.feed(b"ab"), end.surplus) == (False, False)
    assert (end.feed(b"cd"), end.surplus) == (True, True)
    body = read_body(raw, head, closed=False)
    assert (body.data, body.whole) == (b"abc", True)
    assert not read_body(raw[:-2], head, closed=True).whole
    assert body.raw_ends([1, 3]).tolist() == [head.size_bytes + 1, head.size_bytes + 3]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    """No byte of it is its end; whether it is whole, only the way of closing tells."""
    head = head_of("HTTP/1.1 200 OK\n\n")
    raw = b" " * head.size_bytes + b"abc"
    end = BodyEnd(head)

    assert end.by_connection
    assert not end.feed(b"abc")
    assert read_body(raw, head, closed=True).whole
    assert not read_body(raw, head, closed=False).whole


def test_some_answers_have_no_body() -> None:
    """After 204 nothing follows, whatever the headers say."""
    head = head_of("HTTP/1.1 204 No Content\nTransfer-Encoding: chunked\n\n")

    assert BodyEnd(head).reached
    assert read_body(b" " * head.size_bytes, head, closed=False).whole
