"""Speculative decoding as an acceptance model: how many tokens a verify step brings.

A step verifies `k` draft tokens and always gives one token of the target model's own. Each draft
token is accepted with probability α if all before it were: a chain brings (1−α^(k+1))/(1−α) tokens
a step on average (Leviathan et al. 2023, arXiv 2211.17192). In a tree each node has b children,
one of which is accepted with β = 1−(1−α)^b, over d levels: (1−β^(d+1))/(1−β) tokens, for
b + b² + … + b^d drafted. The rates are assumptions, and every report that rests on them says so.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.config import Speculation

ASSUMED_ACCEPTANCE = {"ngram": 0.5, "draft": 0.78, "eagle": 0.85, "eagle3": 0.85}
DEFAULT_DRAFT_TOKENS = 5

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one well-spread 64-bit word for each of `values` (the finalizer of splitmix64)."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(_FIRST_FACTOR)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND_FACTOR)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def mixed_word(value: int) -> int:
    """Return what `mix` makes of one 64-bit `value`."""
    mixed = (value ^ value >> 30) * _FIRST_FACTOR & _MASK
    mixed = (mixed ^ mixed >> 27) * _SECOND_FACTOR & _MASK
    return mixed ^ mixed >> 31


def tree_tokens(branches: int, depth: int) -> int:
    """Return the nodes below the root of a tree: what it drafts."""
    return sum(branches**level for level in range(1, depth + 1))


def mean_tokens_per_step(speculation: Speculation) -> float:
    """Return the expected output tokens of a verify step, between 1 and `longest` + 1."""
    beta, depth = speculation.level_acceptance, speculation.longest
    return float(depth + 1) if beta == 1 else (1 - beta ** (depth + 1)) / (1 - beta)


def tokens_per_step(
    speculation: Speculation, keys: NDArray[np.uint64], first: NDArray[np.int64], steps: int
) -> NDArray[np.int64]:
    """Return the tokens that each of `steps` verify steps brings, shape (sequences, steps).

    The draw depends on the sequence's key and the number of the step within the sequence alone,
    so that no schedule and no other sequence changes it. `keys`, `first`: shape (sequences,).
    """
    number = first[:, None].astype(np.uint64) + np.arange(1, steps + 1, dtype=np.uint64)
    words = mix((keys[:, None] + number * _GOLDEN).astype(np.uint64))
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    beta, longest = speculation.level_acceptance, speculation.longest
    if beta <= 0:
        return np.ones(uniform.shape, dtype=np.int64)
    if beta >= 1:
        return np.full(uniform.shape, longest + 1, dtype=np.int64)
    accepted = np.floor(np.log(uniform) / math.log(beta)).astype(np.int64)
    tokens: NDArray[np.int64] = np.minimum(accepted, longest) + 1
    return tokens
