"""The errors of a client's timestamps, by the log of the reference server. Pure.

Both sides read CLOCK_MONOTONIC. The server takes a timestamp just before it writes a token to its
socket, the client when a read returns. The difference is above 0: a perfect client has 10 to 50 µs,
the time in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.reference.log import ReferenceLog
from harness.results.store import RequestRecord

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StampErrors:
    """Client's time minus server's time in milliseconds, over the requests of one run."""

    first_ms: Array  # of each request's first token
    last_ms: Array
    each_ms: Array  # of every token
    wait_ms: Array  # from the client's send to the server's read; includes waiting for a tick


def stamp_errors(
    records: Iterable[RequestRecord], origin_ns: int, log: ReferenceLog
) -> StampErrors:
    """Return the errors of `records`, whose times count from `origin_ns`.

    Failed requests are left out. Raises `ValueError` if an answer is not in the server's log, or if
    the client did not receive its tokens one by one.
    """
    sent = {answer.response_id: answer for answer in log.answers}
    each, waits = [], []
    for record in records:
        if record.error_kind is not None:
            continue
        answer = sent.get(record.response_id or "")
        if answer is None or len(answer.sent_ns) != len(record.token_events):
            raise ValueError(f"{record.request_id}: the record differs from the server's log")
        seen_ns = record.token_events[:, 0] + origin_ns
        each.append((seen_ns - np.asarray(answer.sent_ns, dtype=np.int64)) / 1e6)
        if record.sent_ns is not None:
            waits.append((answer.received_ns - record.sent_ns - origin_ns) / 1e6)
    return StampErrors(
        first_ms=np.array([one[0] for one in each]),
        last_ms=np.array([one[-1] for one in each]),
        each_ms=np.concatenate(each) if each else np.empty(0),
        wait_ms=np.array(waits, dtype=np.float64),
    )
