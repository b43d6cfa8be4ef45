"""Server-sent events are read as the standard says, however long and oddly ended their lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.stream.sse import Events, read_events


def told(stream: bytes) -> list[tuple[bytes, int]]:
    """Data of each event, and where it ends."""
    events = read_events(stream)
    return list(zip(events.data, events.ends, strict=True))


def by_the_book(stream: bytes) -> list[bytes]:
    """The data of all dispatched events, line by line as the standard's algorithm goes."""
    dispatched: list[bytes] = []
    data: list[bytes] = []
    for line in re.split(rb"\r\n|\n|\r", stream)[:-1]:  # what no line end follows is no line
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif not line:
            dispatched += [b"\n".join(data)] if data else []
            data = []
    return dispatched


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("prefix", [b"data: ", b"data:"])
def test_an_event_ends_with_its_blank_line(newline: bytes, prefix: bytes) -> None:
    """LF, CR LF and CR end lines alike, and the blank after the colon may be missing."""
    one = prefix + b'{"a":1}' + newline * 2

    assert told(one * 3) == [(b'{"a":1}', len(one) * (number + 1)) for number in range(3)]


def test_line_ends_may_be_mixed() -> None:
    """A blank line of another kind than the line before it still ends the event."""
    assert told(b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n") == [(b"a", 10), (b"b", 20), (b"c", 30)]


def test_comments_and_other_fields_are_no_events() -> None:
    """Comments, `id`, `retry` and events without data leave no trace; events keep their name."""
    stream = b": ping\n\n:\n\nid: 3\nretry: 5\n\nevent: ping\n\nevent: error\ndata: gone\n\n"

    events = read_events(stream)

    assert events == Events(data=[b"gone"], ends=[len(stream)], names={0: "error"})


def test_lines_that_belong_to_no_event_are_kept_apart() -> None:
    """With where they end, so that one knows what came before; unknown fields are no such lines."""
    stream = b"data: a\n\nBad Gateway\n\nx-y: 1\nError: lost\n\ndata: b\n\n"

    events = read_events(stream)

    assert events.data == [b"a", b"b"]
    assert events.strays == [(b"Bad Gateway", 20), (b"Error: lost", 40)]


def test_a_field_that_the_end_cuts_is_no_stray_line() -> None:
    """`dat` of `data:` tells of a cut stream; any other rest of a line is what somebody wrote."""
    assert read_events(b"data: a\n\ndat").strays == []
    assert read_events(b"data: a\n\nBad Gate").strays == [(b"Bad Gate", 17)]


def test_data_lines_of_one_event_are_joined() -> None:
    """JSON that is broken over data lines comes out with a line feed at each break."""
    assert told(b'data: {"a":\ndata: 1}\n\n') == [(b'{"a":\n1}', 22)]


def test_json_texts_without_a_blank_line_between_are_events_of_their_own() -> None:
    """Each ends with its own line, since no JSON text can go on behind a brace with another one."""
    stream = b"data: {}\ndata: {}\ndata: [DONE]\n"

    assert told(stream) == [(b"{}", 9), (b"{}", 18), (b"[DONE]", 31)]
    assert read_events(stream).unfinished


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    """A stream may begin with a byte order mark, and only begin with one."""
    assert told(b"\xef\xbb\xbfdata: a\n\n") == [(b"a", 12)]
    assert told(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [(b"a", 9)]


def test_what_the_end_of_the_stream_cuts_is_unfinished() -> None:
    """An event without its blank line is given, and marked; one with it is not."""
    assert read_events(b"data: a\n\ndata: b").data == [b"a", b"b"]
    assert read_events(b"data: a\n\ndata: b").unfinished
    assert not read_events(b"data: a\n\n").unfinished
    assert not read_events(b"data: a\n\n: b").unfinished
    assert read_events(b"") == Events()


def test_no_line_is_too_long() -> None:
    """A line of 2 MB is one event."""
    assert told(b"data: " + b"x" * 2_000_000 + b"\n\n") == [(b"x" * 2_000_000, 2_000_008)]


pieces = st.sampled_from(
    [b"data: ", b"data:", b"data", b"event: e", b": c", b"x", b" ", b":", b"\n", b"\r", b"\r\n"]
)


@given(st.lists(pieces, max_size=30).map(b"".join))
def test_any_stream_is_read_as_the_standard_says(stream: bytes) -> None:
    """The short way for plain streams and the long way for others agree with the algorithm."""
    events = read_events(stream)
    finished = events.data[:-1] if events.unfinished else events.data

    assert finished == by_the_book(stream)
    assert events.ends == sorted(events.ends)
    assert all(0 < end <= len(stream) for end in events.ends)


plain = st.lists(st.binary(max_size=9).map(lambda raw: raw.hex().encode()), min_size=1, max_size=9)


@given(plain, st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_each_event_of_a_plain_stream_is_complete_at_its_end_and_no_byte_earlier(
    data: list[bytes], blank: bytes
) -> None:
    """Cut at an event's end the stream has that event finished; a byte before it has not."""
    stream = b"".join(b"data: " + one + blank for one in data)
    events = read_events(stream)

    assert events.data == data
    for number, end in enumerate(events.ends, start=1):
        assert read_events(stream[:end]) == Events(data=data[:number], ends=events.ends[:number])
        assert read_events(stream[: end - len(blank) // 2]).unfinished
