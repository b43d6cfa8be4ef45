"""Prompts as token ids, and how much of them a perfect prefix cache could reuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness.workloads.base import Segment, TokenIds, WorkloadError
from harness.workloads.seeds import GOLDEN_GAMMA, mix64

# Special, byte and unused tokens lie at the lowest ids of the common vocabularies.
_FIRST_ORDINARY_ID = 1_000
_HALF_WORD = np.uint64(32)


def draw_token_ids(prompt: tuple[Segment, ...], vocabulary: int = 128_000) -> TokenIds:
    """Return the token ids of a prompt, shape (prompt tokens,).

    Token i of a text is a hash of the text's name and i: endless, the same at each call, and
    unrelated to any other text. Ids lie in [1000, vocabulary), or in its upper half where it has
    fewer than 2000. `vocabulary` counts ordinary ids, without special ones at its end.
    """
    first = min(_FIRST_ORDINARY_ID, vocabulary // 2)
    if first < 1:
        raise WorkloadError(f"a vocabulary of {vocabulary} tokens has no room for texts")
    lengths = np.array([segment.tokens for segment in prompt], dtype=np.int64)
    starts = mix64(np.array([segment.text for segment in prompt], dtype=np.uint64))
    # One counter runs through the whole prompt; each text's start takes back what ran before it.
    starts -= (np.cumsum(lengths) - lengths).view(np.uint64) * GOLDEN_GAMMA
    counters = np.arange(lengths.sum(), dtype=np.uint64)
    counters *= GOLDEN_GAMMA
    counters += np.repeat(starts, lengths)
    ids = mix64(counters)
    # Lemire's range reduction of the upper 32 bits: no division.
    ids >>= _HALF_WORD
    ids *= np.uint64(vocabulary - first)
    ids >>= _HALF_WORD
    ids += np.uint64(first)
    return ids.astype(np.int32)


def shared_prefix_tokens(prompts: Iterable[tuple[Segment, ...]]) -> Iterator[int]:
    """Yield, prompt by prompt, the tokens of the longest prefix shared with any earlier prompt.

    Walks a tree of texts, not of tokens: an edge is one text, `longest` is how far any prompt
    followed it, and a later edge hangs where a prompt left the text for the next one.
    """
    edges: dict[tuple[int, int, int], int] = {}  # (edge before, tokens of it, text) → edge
    longest: list[int] = [0]  # edge → tokens; edge 0 is the empty start
    for prompt in prompts:
        edge = left_at = shared = 0
        for segment in prompt:
            if not segment.tokens:
                continue
            edge = edges.setdefault((edge, left_at, segment.text), len(longest))
            left_at = segment.tokens
            if edge == len(longest):  # new: so will be all edges behind it
                longest.append(left_at)
            else:
                shared += min(left_at, longest[edge])
                longest[edge] = max(left_at, longest[edge])
        yield shared


def prefix_hit_ceiling(prompts: Iterable[tuple[Segment, ...]], block_tokens: int) -> float | None:
    """Return the share of prompt tokens that an unlimited prefix cache would have, from 0 to 1.

    Counts what each prompt shares with earlier ones in the order given, in whole blocks of
    `block_tokens`. None when there is no prompt.
    """
    order = list(prompts)
    return hit_share(zip(order, shared_prefix_tokens(order), strict=True), block_tokens)


def hit_share(shared: Iterable[tuple[tuple[Segment, ...], int]], block_tokens: int) -> float | None:
    """Return the share of prompt tokens found by prompts of which so many tokens are cached."""
    total = cached = 0
    for prompt, tokens in shared:
        length = sum(segment.tokens for segment in prompt)
        total += length
        cached += cached_tokens_limit(tokens, length, block_tokens)
    return cached / total if total else None


def cached_tokens_limit(shared_tokens: int, prompt_tokens: int, block_tokens: int) -> int:
    """Return how much of a prompt may be cached, in tokens: whole blocks of what it shares.

    Without its last token, which must be computed to have an answer.
    """
    return max(0, min(shared_tokens, prompt_tokens - 1)) // block_tokens * block_tokens
