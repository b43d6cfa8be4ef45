"""The seam to the server: one request in, one record of what was seen out."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from harness.results.store import RequestRecord
from harness.workloads import Segment, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent for one turn: whole before the clock starts, but for answers of a live chat."""

    request_id: str  # unique in a run, and in the order of conversations and turns
    conversation: str
    turn: int  # counted from 0
    prompt: tuple[Segment, ...]
    output_tokens: int  # requested tokens
    live: bool = False  # the next turn's prompt holds the ids of this answer
    # Place of a segment → the ids of the answer that stands there, instead of its text.
    answers: Mapping[int, TokenIds] = field(default_factory=dict)


class Client(Protocol):
    """How to send one request and stamp what comes back."""

    async def send(self, request: Request, scheduled_ns: int) -> RequestRecord:
        """Send now and return the record once the stream has ended, well or badly.

        `scheduled_ns` goes into the record unchanged. Any failure of the network or the server is
        a record with an `error_kind`; an exception that `network_error_kind` knows is made one.
        A cancellation passes through.
        """
        ...


@runtime_checkable
class LiveClient(Client, Protocol):
    """A client that can put a server's answers into the prompts that follow."""

    def continued(self, request: Request, before: Request) -> Request:
        """Return `request` with the answer to `before`, just ended, in its prompt; made to be sent.

        As it was drawn where the answer's ids are not known.
        """
        ...


def failed_record(
    request: Request, scheduled_ns: int, *, closed_ns: int, kind: str, text: str
) -> RequestRecord:
    """Return the record of a request of which nothing is known but when and how it failed."""
    return RequestRecord(
        request_id=request.request_id,
        conversation=request.conversation,
        turn=request.turn,
        scheduled_ns=scheduled_ns,
        sent_ns=None,
        first_byte_ns=None,
        token_events=np.empty((0, 2), dtype=np.int64),
        closed_ns=closed_ns,
        asked_tokens=request.output_tokens,
        error_kind=kind,
        error=text,
    )


_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ConnectionRefusedError, "connect_refused"),
    (ConnectionError, "connection_reset"),  # reset, aborted, broken pipe
    (TimeoutError, "timeout"),
    (asyncio.IncompleteReadError, "truncated"),
    (socket.gaierror, "unreachable"),
)
_UNREACHABLE = frozenset((errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH))
_NO_SOCKET = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS))


def network_error_kind(error: BaseException) -> str | None:
    """Return the `error_kind` of an exception that a network can cause; None for any other.

    None means a bug, or this machine's own trouble, which must not pass for a slow server.
    """
    for known, kind in _KINDS:
        if isinstance(error, known):
            return kind
    number = error.errno if isinstance(error, OSError) else None
    if number in _UNREACHABLE:
        return "unreachable"
    return "no_socket" if number in _NO_SOCKET else None
