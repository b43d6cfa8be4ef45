"""The overlap of prompts with earlier prompts, as a prefix and after the prefix."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from harness.workloads.prompts.prefixes import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The overlap of each prompt of a run with the earlier prompts, summed over all prompts.

    A prefix cache finds the tokens before the first difference. It cannot find tokens after the
    first difference, even if an earlier prompt contains them.
    """

    prompt_tokens: int
    shared_tokens: int  # prefix shared with an earlier prompt
    hidden_tokens: int  # in an earlier prompt, but after the first difference
    diverge_after_tokens: float  # median over prompts


def overlap_of(shared: Iterable[tuple[Prompt, int]]) -> Overlap | None:
    """Return the overlap of prompts; None without a prompt.

    `shared` pairs each prompt with the length of its shared prefix in tokens.
    """
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
