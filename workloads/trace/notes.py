"""What a report must say of a replayed trace: what was reordered, and what the file cannot tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.workloads.trace.formats import TraceFormat
from harness.workloads.trace.prompts import resized_blocks
from harness.workloads.trace.rows import TraceRow, TraceRows


def trace_notes(
    read: TraceRows, replayed: Sequence[TraceRow], form: TraceFormat
) -> tuple[str, ...]:
    """Return one sentence for each thing that the reader of a report must know.

    `read` is the file in its own order, `replayed` the rows taken.
    """
    return tuple(_notes(read, replayed, form))


def _notes(read: TraceRows, replayed: Sequence[TraceRow], form: TraceFormat) -> Iterator[str]:
    times = [row.time_ns for row in read.rows if row.time_ns is not None]
    back = sum(later < earlier for earlier, later in pairwise(times))
    if back:
        yield f"trace rows were sorted by time: in the file, time steps back {back} times"
    if not times:
        yield "the trace has no times: it cannot give the arrivals"
    if read.linked_by:
        yield f"the trace's {read.linked_by} is not used: each row is a conversation of its own"
    unknown = sum(row.hash_ids is None for row in replayed)
    if unknown:
        yield (
            f"{unknown} of {len(replayed)} trace rows do not tell what they share with others: "
            "each of them is a text of its own, in which a prefix cache finds nothing"
        )
    if form.block_tokens is not None:
        yield from _resized(replayed, form.block_tokens)


def _resized(replayed: Sequence[TraceRow], block_tokens: int) -> Iterator[str]:
    resized = resized_blocks(replayed, block_tokens)
    if not resized:
        return
    block, row, tokens, other, other_tokens = resized[0]
    more = f", and {len(resized) - 1} ids more do so" if len(resized) > 1 else ""
    yield (
        f"id {block} stands for {other_tokens} tokens on line {other.line} and for {tokens} "
        f"on line {row.line}{more}: they share the shorter one"
    )
