"""The record of a request: raw facts, from which `metrics.py` derives everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNBELIEVED = "unbelieved"  # the server's count is impossible, so the client's count is stored


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRecord:
    """The raw facts of one request.

    All times are nanoseconds since the run's clock origin. An absent value is None, never 0.
    """

    request_id: str
    response_id: str | None = None
    conversation: str
    turn: int
    scheduled_ns: int  # when it was due
    sent_ns: int | None  # when the last byte of the request was handed to the socket
    first_byte_ns: int | None
    token_events: NDArray[np.int64]  # (events with output, 2): time in ns, tokens
    closed_ns: int  # when the stream ended, normally or with an error
    connect_ns: int | None = None  # time to open a connection, if the request opened one
    prompt_tokens: int | None = None  # the server's count; without usage, the sent tokens
    cached_prompt_tokens: int | None = None  # the server's count
    output_tokens: int | None = None  # never the requested number
    output_tokens_source: str | None = None  # usage | client | unbelieved
    asked_tokens: int
    finish_reason: str | None = None
    error_kind: str | None = None  # None: the stream ended normally
    error: str | None = None
