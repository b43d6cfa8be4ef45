"""The acceptance model of speculative decoding, which gives the tokens of a verify step.

A step verifies `k` draft tokens and also gives one token of the target model. A draft token is
accepted with probability α if all earlier ones were accepted, so a chain gives (1−α^(k+1))/(1−α)
tokens per step on average (Leviathan et al. 2023, arXiv 2211.17192). In a tree each node has b
children, and one of them is accepted with probability β = 1−(1−α)^b. A tree of d levels gives
(1−β^(d+1))/(1−β) tokens and drafts b + b² + … + b^d. The acceptance rates are assumptions, and
every report that uses them states this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ASSUMED_ACCEPTANCE = {"ngram": 0.5, "draft": 0.78, "eagle": 0.85, "eagle3": 0.85}
DEFAULT_DRAFT_TOKENS = 5

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The draft of each step: `draft_tokens` tokens with acceptance rate `acceptance` (assumed).

    With `branches` 1 the draft is a chain. Otherwise it is a tree of `depth` levels, each node has
    `branches` children, and `draft_tokens` is the number of all nodes.
    """

    method: str  # ngram | draft | eagle | eagle3
    draft_tokens: int
    acceptance: float
    branches: int = 1
    depth: int | None = None  # None: a chain

    @classmethod
    def of(
        cls,
        method: str,
        *,
        tokens: int | None = None,
        tree: tuple[int, int] | None = None,
        acceptance: float | None = None,
    ) -> SpeculativeConfig:
        """Return a configuration with `tokens` draft tokens or a `tree` of (branches, depth).

        None selects the default.
        """
        branches, depth = tree or (1, None)
        return cls(
            method=method,
            draft_tokens=tree_tokens(*tree) if tree else tokens or DEFAULT_DRAFT_TOKENS,
            acceptance=ASSUMED_ACCEPTANCE[method] if acceptance is None else acceptance,
            branches=branches,
            depth=depth,
        )

    @property
    def longest(self) -> int:
        """The maximum number of accepted draft tokens per step."""
        return self.draft_tokens if self.depth is None else self.depth

    @property
    def level_acceptance(self) -> float:
        """The probability that one child of an accepted node is accepted: 1 − (1 − α)^b."""
        return 1.0 - (1.0 - self.acceptance) ** self.branches

    @property
    def mean_tokens_per_step(self) -> float:
        """The expected output tokens of a verify step, between 1 and `longest` + 1."""
        beta, depth = self.level_acceptance, self.longest
        return float(depth + 1) if beta == 1 else (1 - beta ** (depth + 1)) / (1 - beta)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each of `values` (the finalizer of splitmix64)."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(_FIRST_FACTOR)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_SECOND_FACTOR)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def mixed_word(value: int) -> int:
    """Return `mix` of one 64-bit `value`."""
    mixed = (value ^ value >> 30) * _FIRST_FACTOR & _MASK
    mixed = (mixed ^ mixed >> 27) * _SECOND_FACTOR & _MASK
    return mixed ^ mixed >> 31


def tree_tokens(branches: int, depth: int) -> int:
    """Return the number of nodes of a draft tree, without the root."""
    return sum(branches**level for level in range(1, depth + 1))


def tokens_per_step(
    speculation: SpeculativeConfig, keys: NDArray[np.uint64], first: NDArray[np.int64], steps: int
) -> NDArray[np.int64]:
    """Return the tokens of each of `steps` verify steps, shape (sequences, steps).

    The draw depends only on the key of the sequence and the number of the step in the sequence, so
    the schedule and other sequences do not change it. `keys`, `first`: shape (sequences,).
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
