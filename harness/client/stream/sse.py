"""Server-sent events: the bytes of a whole stream in, its events out. Pure; knows no time.

Written from the WHATWG description of `text/event-stream`, and lenient where servers are: an event
whose blank line never came is given too, marked as unfinished; two JSON texts on data lines without
a blank line between them are two events. Lines that belong to no event are left out, as it
requires, but kept apart: a proxy that gives up in the middle of a stream writes such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

_DATA = b"data: "
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Atomic groups: a carriage return is never torn from its line feed to make a blank line of them.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_FIELDS = (b"data", b"event", b"id", b"retry")
_OTHER_FIELD = re.compile(rb"[A-Za-z][\w-]*\Z")
_TROUBLE = re.compile(rb"(?i)(?:.*(?:error|exception)|detail|message|fatal|panic)\Z")


@dataclass(slots=True, kw_only=True)
class Events:
    """The events of a stream that carry data, in order, as parallel lists."""

    data: list[bytes] = field(default_factory=list)  # without field names; lines joined by "\n"
    ends: list[int] = field(default_factory=list)  # bytes of the stream up to each event's last
    names: dict[int, str] = field(default_factory=dict)  # index → name, of events that have one
    unfinished: bool = False  # the last event's blank line never came
    # Lines that are no field and no comment, each with its end as above.
    strays: list[tuple[bytes, int]] = field(default_factory=list)


def read_events(stream: bytes) -> Events:
    """Return the events of `stream`. Comments, and events without data, are left out.

    Lines may end in LF, CR LF or CR, also mixed; no line is too long.
    """
    events = _one_line_events(stream)
    if events is not None:
        return events
    events, end = Events(), 0
    for begin, size, end in _blocks(stream):
        _read_lines(events, stream[begin : begin + size], begin, end)
    known = len(events.data)
    _read_lines(events, stream[end:], end, len(stream))
    events.unfinished = len(events.data) > known
    return events


def _one_line_events(stream: bytes) -> Events | None:
    """Return the events of a stream of nothing but `data: ` lines, a blank line after each.

    That is what nearly every stream is. None where it is not.
    """
    returns = stream.count(b"\r")
    blank = b"\r\n\r\n" if returns else b"\n\n"
    if not (stream.startswith(_DATA) and stream.endswith(blank)):
        return None
    data = stream[len(_DATA) : -len(blank)].split(blank + _DATA)
    lines = 2 * len(data)
    if stream.count(b"\n") != lines or returns not in (0, lines):
        return None
    around = len(_DATA) + len(blank)
    return Events(data=data, ends=list(accumulate([len(one) + around for one in data])))


def _blocks(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield where each block that a blank line ends begins, its size, and where the next begins."""
    begin = 0
    for match in _BLANK_LINE.finditer(stream):
        yield begin, match.start() - begin, match.end()
        begin = match.end()


def _read_lines(events: Events, block: bytes, begin: int, end: int) -> None:
    """Add the event, or events, of one block that lies at `begin` and is over at `end`."""
    data: list[bytes] = []
    name, data_end = "", begin
    for line in _LINE.finditer(block):
        text = line[1].removeprefix(_BYTE_ORDER_MARK) if begin == line.start() == 0 else line[1]
        field_name, _, value = text.partition(b":")
        if field_name == b"event":
            name = value.strip().decode("utf-8", "replace")
        elif field_name == b"data":
            value = value.removeprefix(b" ")
            if data and data[-1].endswith(b"}") and value.startswith((b"{", b"[DONE]")):
                _add(events, name, data, data_end)  # "}\n{" is inside no JSON text
                data, name = [], ""
            data.append(value)
            data_end = begin + line.end()
        elif _is_stray(text, ended=bool(line[2])):
            events.strays.append((text, begin + line.end()))
    _add(events, name, data, end)


def _is_stray(line: bytes, *, ended: bool) -> bool:
    """Return whether `line` is what no stream of events holds.

    Blank lines, comments, the fields there are and, as the standard has it, other fields are none,
    but for those that only look like one, such as `Error: worker lost`; nor is a field that the
    end of the stream cut off.
    """
    name, colon, _ = line.partition(b":")
    if not name or name in _FIELDS:
        return False
    if not colon and not ended and any(field.startswith(name) for field in _FIELDS):
        return False
    return not (colon and _OTHER_FIELD.match(name) and not _TROUBLE.match(name))


def _add(events: Events, name: str, data: list[bytes], end: int) -> None:
    if data:
        if name:
            events.names[len(events.data)] = name
        events.data.append(b"\n".join(data))
        events.ends.append(end)
