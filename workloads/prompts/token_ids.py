"""Token ids of prompts, and the share of them that a perfect prefix cache could reuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness.workloads.base import Segment, TokenIds, WorkloadError
from harness.workloads.seeds import GOLDEN_GAMMA, mix64

# Common vocabularies put special, byte and unused tokens at the lowest ids.
_FIRST_ORDINARY_ID = 1_000
_HALF_WORD = np.uint64(32)


def draw_token_ids(prompt: tuple[Segment, ...], vocabulary: int = 128_000) -> TokenIds:
    """Return the token ids of a prompt, shape (prompt tokens,).

    Token i of a text is a hash of the text's name and i. A text therefore has no end, is the same
    at each call and is unrelated to any other text. Ids lie in [1000, vocabulary); a vocabulary
    below 2000 uses its upper half. `vocabulary` excludes special ids at the end of the vocabulary.
    """
    first = min(_FIRST_ORDINARY_ID, vocabulary // 2)
    if first < 1:
        raise WorkloadError(
            f"a vocabulary of {vocabulary} tokens is too small; it needs at least 2"
        )
    lengths = np.array([segment.tokens for segment in prompt], dtype=np.int64)
    starts = mix64(np.array([segment.text for segment in prompt], dtype=np.uint64))
    # One counter runs over the whole prompt. Each start subtracts the tokens before its text.
    starts -= (np.cumsum(lengths) - lengths).view(np.uint64) * GOLDEN_GAMMA
    counters = np.arange(lengths.sum(), dtype=np.uint64)
    counters *= GOLDEN_GAMMA
    counters += np.repeat(starts, lengths)
    ids = mix64(counters)
    # Lemire's range reduction of the upper 32 bits needs no division.
    ids >>= _HALF_WORD
    ids *= np.uint64(vocabulary - first)
    ids >>= _HALF_WORD
    ids += np.uint64(first)
    return ids.astype(np.int32)


def shared_prefix_tokens(prompts: Iterable[tuple[Segment, ...]]) -> Iterator[int]:
    """Yield for each prompt the length of the longest prefix shared with an earlier prompt.

    Walks a tree whose edges are texts, not tokens. `longest` is the longest beginning of a text in
    any prompt. A child edge starts at the token where a prompt continues with the next text.
    """
    edges: dict[tuple[int, int, int], int] = {}  # (previous edge, its tokens, text) → edge
    longest: list[int] = [0]  # edge → tokens; edge 0 is the empty start
    for prompt in prompts:
        edge = left_at = shared = 0
        for segment in prompt:
            if not segment.tokens:
                continue
            edge = edges.setdefault((edge, left_at, segment.text), len(longest))
            left_at = segment.tokens
            if edge == len(longest):  # a new edge; all later edges of this prompt are new too
                longest.append(left_at)
            else:
                shared += min(left_at, longest[edge])
                longest[edge] = max(left_at, longest[edge])
        yield shared


def prefix_hit_ceiling(prompts: Iterable[tuple[Segment, ...]], block_tokens: int) -> float | None:
    """Return the prefix hit rate of an unlimited prefix cache, from 0 to 1; None without a prompt.

    Counts the tokens that each prompt shares with earlier prompts, in the given order and in whole
    blocks of `block_tokens`.
    """
    order = list(prompts)
    return hit_share(zip(order, shared_prefix_tokens(order), strict=True), block_tokens)


def hit_share(shared: Iterable[tuple[tuple[Segment, ...], int]], block_tokens: int) -> float | None:
    """Return the prefix hit rate; None without a prompt token.

    `shared` pairs each prompt with the length of its shared prefix.
    """
    total = cached = 0
    for prompt, tokens in shared:
        length = sum(segment.tokens for segment in prompt)
        total += length
        cached += cached_tokens_limit(tokens, length, block_tokens)
    return cached / total if total else None


def cached_tokens_limit(shared_tokens: int, prompt_tokens: int, block_tokens: int) -> int:
    """Return the largest possible number of cached tokens of a prompt, in whole blocks.

    The last token never counts, because the engine must compute it to produce output.
    """
    return max(0, min(shared_tokens, prompt_tokens - 1)) // block_tokens * block_tokens
