"""Notes for the report on a replayed trace, such as sorted rows or missing fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.workloads.trace.formats import TraceFormat
from harness.workloads.trace.prompts import resized_blocks
from harness.workloads.trace.rows import TraceRow, TraceRows


def trace_notes(
    read: TraceRows, replayed: Sequence[TraceRow], form: TraceFormat
) -> tuple[str, ...]:
    """Return the notes on a trace, one sentence each.

    `read` contains all rows in file order, `replayed` the rows that are sent.
    """
    return tuple(_notes(read, replayed, form))


def _notes(read: TraceRows, replayed: Sequence[TraceRow], form: TraceFormat) -> Iterator[str]:
    times = [row.time_ns for row in read.rows if row.time_ns is not None]
    back = sum(later < earlier for earlier, later in pairwise(times))
    if back:
        yield f"trace rows were sorted by time: in the file, the time decreases {back} times"
    if not times:
        yield "the trace has no times, so arrivals: trace is not possible"
    if read.linked_by:
        yield f"the trace's {read.linked_by} is not used: each row is a separate conversation"
    unknown = sum(row.hash_ids is None for row in replayed)
    if unknown:
        yield (
            f"{unknown} of {len(replayed)} trace rows have no hash_ids: their prompts share no "
            "prefix, so a prefix cache has no hits for them"
        )
    if form.block_tokens is not None:
        yield from _resized(replayed, form.block_tokens)


def _resized(replayed: Sequence[TraceRow], block_tokens: int) -> Iterator[str]:
    resized = resized_blocks(replayed, block_tokens)
    if not resized:
        return
    block, row, tokens, other, other_tokens = resized[0]
    more = f" ({len(resized) - 1} more ids have two sizes)" if len(resized) > 1 else ""
    yield (
        f"hash id {block} has {other_tokens} tokens on line {other.line} and {tokens} tokens on "
        f"line {row.line}{more}: both rows share only the shorter block"
    )
