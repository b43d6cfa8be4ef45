"""Random streams and names of texts, both derived from a seed."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (2014): SplitMix64.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64-bit numbers in place and return them. Different inputs give different outputs."""
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= _FIRST_FACTOR
    np.right_shift(values, np.uint64(27), out=shifted)
    values ^= shifted
    values *= _SECOND_FACTOR
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted
    return values


def stream_key(seed: int, use: str) -> int:
    """Return a 64-bit key for one use of a seed, such as `suffix length`.

    Each use has its own stream, so drawing more numbers from one does not change the others.
    """
    digest = hashlib.blake2b(f"{seed}/{use}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, use: str) -> np.random.Generator:
    """Return the random generator for one use of a seed."""
    return np.random.default_rng(stream_key(seed, use))


def text_names(seed: int, use: str, numbers: ArrayLike) -> list[int]:
    """Return the 64-bit name of each numbered text. Different numbers have different names.

    `numbers` are integers of at most 64 bits, shape (count,).
    """
    counters = np.array(numbers, dtype=np.int64).view(np.uint64)
    counters += np.uint64(stream_key(seed, use))
    names: list[int] = mix64(counters).tolist()
    return names
