"""Make prompts from trace rows: one text for each block id, or one text for each row."""

from __future__ import annotations

from collections.abc import Sequence

from harness.workloads.base import Segment
from harness.workloads.seeds import text_names
from harness.workloads.trace.rows import TraceRow


def row_prompts(
    rows: Sequence[TraceRow], seed: int, block_tokens: int | None
) -> list[tuple[Segment, ...]]:
    """Return the prompt of each row. Each block id is one text.

    Rows with `hash_ids` need `block_tokens`. A row's text depends only on the seed and on its ids
    (without ids, on its line number), so `limit` does not change the texts of the first rows.
    """
    own_names = text_names(seed, "trace row", [row.line for row in rows])
    ids = list({block: None for row in rows for block in row.hash_ids or ()})
    names = dict(zip(ids, text_names(seed, "trace block", ids), strict=True))
    # Rows share one object for each full block, because a long trace repeats blocks.
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
    """Return the ids whose blocks differ in size, each with its first two different blocks.

    Each entry is (id, row, tokens, other row, other tokens).
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
