"""Prompts as named text segments: shared prefixes, token ids and text."""

from harness.workloads.prompts.overlap import Overlap, overlap_of
from harness.workloads.prompts.prefixes import PrefixTree, Prompt, left_behind, shared_prefixes
from harness.workloads.prompts.texts import Texts
from harness.workloads.prompts.token_ids import (
    cached_tokens_limit,
    draw_token_ids,
    hit_share,
    shared_prefix_tokens,
)
from harness.workloads.prompts.words import prompt_text

__all__ = [
    "Overlap",
    "PrefixTree",
    "Prompt",
    "Texts",
    "cached_tokens_limit",
    "draw_token_ids",
    "hit_share",
    "left_behind",
    "overlap_of",
    "prompt_text",
    "shared_prefix_tokens",
    "shared_prefixes",
]
