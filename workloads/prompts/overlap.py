"""What prompts have in common with earlier ones, at their beginning and behind it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from harness.workloads.prompts.prefixes import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The prompts of a run against those before them, in tokens over all prompts.

    A prefix cache finds what is shared from the first token on. What was seen before too, but
    stands behind the first token that differs, it cannot find.
    """

    prompt_tokens: int
    shared_tokens: int  # begin as an earlier prompt does
    hidden_tokens: int  # seen before, behind the place where the prompt differs
    diverge_after_tokens: float  # median over prompts


def overlap_of(shared: Iterable[tuple[Prompt, int]]) -> Overlap | None:
    """Return the overlap of prompts, each with its tokens shared from the start; None for none."""
    longest: dict[int, int] = {}  # text → tokens of it seen so far
    total = hidden = 0
    found: list[int] = []
    for prompt, tokens in shared:
        found.append(tokens)
        left = tokens
        for segment in prompt:
            seen = min(segment.tokens, longest.get(segment.text, 0))
            hidden += max(0, seen - left)
            left = max(0, left - segment.tokens)
            total += segment.tokens
        for segment in prompt:
            longest[segment.text] = max(segment.tokens, longest.get(segment.text, 0))
    if not found:
        return None
    return Overlap(
        prompt_tokens=total,
        shared_tokens=sum(found),
        hidden_tokens=hidden,
        diverge_after_tokens=float(statistics.median(found)),
    )
