"""Rows of a trace as prompts: one text for each block id, or one for each row."""

from __future__ import annotations

from collections.abc import Sequence

from harness.workloads.base import Segment
from harness.workloads.seeds import text_names
from harness.workloads.trace.rows import TraceRow


def row_prompts(
    rows: Sequence[TraceRow], seed: int, block_tokens: int | None
) -> list[tuple[Segment, ...]]:
    """Return the prompt of each row. An id is one text, however many tokens of it a row takes.

    `block_tokens` is needed where rows have `hash_ids`. A row's text depends on the seed and on
    its ids (or its line) alone, so that a limit does not change the rows within it.
    """
    own_names = text_names(seed, "trace row", [row.line for row in rows])
    ids = list({block: None for row in rows for block in row.hash_ids or ()})
    names = dict(zip(ids, text_names(seed, "trace block", ids), strict=True))
    # One object for each full block: a long trace repeats them.
    full = {block: Segment(name, block_tokens or 0) for block, name in names.items()}
    prompts: list[tuple[Segment, ...]] = []
    for row, own_name in zip(rows, own_names, strict=True):
        if row.hash_ids is None or block_tokens is None:
            prompts.append((Segment(own_name, row.input_tokens),))
            continue
        *before, last = row.hash_ids
        last_tokens = row.input_tokens - len(before) * block_tokens
        prompts.append((*(full[block] for block in before), Segment(names[last], last_tokens)))
    return prompts


def resized_blocks(
    rows: Sequence[TraceRow], block_tokens: int
) -> list[tuple[int, TraceRow, int, TraceRow, int]]:
    """Return, for each id that stands for blocks of different sizes, the first two of them.

    As (id, row, tokens, other row, other tokens).
    """
    first: dict[int, tuple[TraceRow, int]] = {}
    resized: dict[int, tuple[int, TraceRow, int, TraceRow, int]] = {}
    for row in rows:
        ids = row.hash_ids or ()
        for position, block in enumerate(ids):
            tokens = min(block_tokens, row.input_tokens - position * block_tokens)
            seen_in, seen_tokens = first.setdefault(block, (row, tokens))
            if tokens != seen_tokens and block not in resized:
                resized[block] = (block, seen_in, seen_tokens, row, tokens)
    return list(resized.values())
