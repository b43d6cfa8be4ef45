"""The sequences that decode together, as arrays, so that many steps can be worked out at once.

context    tokens in the KV before the step
remaining  output tokens still to come
capacity   tokens that the blocks held so far have room for
total      prompt and answer at full length: no sequence ever needs more room
verified   verify steps so far (speculation)

What all sequences get alike is added up once, in `_given`: `context` and `remaining` are stored
without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adapters.embedded.config import Speculation
from adapters.embedded.progress import Tokens
from adapters.embedded.sequence import Sequence
from adapters.embedded.speculative import tokens_per_step

_CONTEXT, _REMAINING, _CAPACITY, _TOTAL, _VERIFIED = range(5)


class DecodeBatch:
    """Decoding sequences in the order of their admission, at most `limit` of them."""

    def __init__(self, limit: int, block_size: int, speculation: Speculation | None) -> None:
        self.sequences: list[Sequence] = []
        self.context_tokens = 0  # of all sequences together
        self._block_size = block_size
        self._given = 0  # tokens that every sequence got, from the beginning
        self._first_end: int | None = None  # `first_end` plus `_given`; None: to be found
        self._speculation = speculation
        self._state = np.zeros((5, limit), dtype=np.int64)
        self._keys = np.zeros(limit, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def context(self) -> NDArray[np.int64]:
        """Tokens in the KV, shape (sequences,)."""
        context: NDArray[np.int64] = self._state[_CONTEXT, : len(self.sequences)] + self._given
        return context

    @property
    def remaining(self) -> NDArray[np.int64]:
        """Output tokens still to come, shape (sequences,)."""
        remaining: NDArray[np.int64] = self._state[_REMAINING, : len(self.sequences)] - self._given
        return remaining

    @property
    def capacity(self) -> NDArray[np.int64]:
        """Tokens that the blocks of each have room for, shape (sequences,)."""
        return self._state[_CAPACITY, : len(self.sequences)]

    @property
    def first_end(self) -> int:
        """Output tokens until the first of them, which must not be none, is complete."""
        if self._first_end is None:
            stored = self._state[_REMAINING, : len(self.sequences)]
            self._first_end = int(np.minimum.reduce(stored))
        return self._first_end - self._given

    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""
        column = len(self.sequences)
        verified = sequence.decode_steps
        self.sequences.append(sequence)
        sequence.spans.append((joined, joined))
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        remaining = sequence.asked_tokens - sequence.generated_tokens
        self._state[:, column] = (
            context - self._given,
            remaining + self._given,
            sequence.blocks * self._block_size,
            sequence.total_tokens,
            verified,
        )
        self._first_end = None
        self.context_tokens += context
        if self._speculation:
            self._keys[column] = sequence.key

    def tokens_of(self, steps: int) -> NDArray[np.int64]:
        """Return the tokens that each of the next `steps` steps brings, shape (sequences, steps).

        Not cut at the end of an answer.
        """
        count = len(self.sequences)
        if self._speculation is None:
            raise TypeError("without speculation every step brings one token")
        first = self._state[_VERIFIED, :count]
        keys = self._keys[:count]
        return tokens_per_step(self._speculation, keys, first, steps)

    def missing_blocks(self, room: Tokens) -> NDArray[np.int64]:
        """Return the blocks that each sequence lacks to have `room` more tokens in the KV."""
        count = len(self.sequences)
        missing: NDArray[np.int64] = self._state[_CONTEXT, :count] + (room + self._given)
        np.minimum(missing, self._state[_TOTAL, :count], out=missing)
        missing -= self._state[_CAPACITY, :count]
        missing += self._block_size - 1
        missing //= self._block_size
        return np.maximum(missing, 0, out=missing)

    def add_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Note that each sequence got so many more blocks, shape (sequences,)."""
        self.capacity[:] += blocks * self._block_size

    def advance(self, tokens: Tokens, steps: int) -> int:
        """Note that `steps` steps brought each sequence `tokens` tokens; return those of all.

        One number for all never reaches past the end of an answer; drafts do.
        """
        count = len(self.sequences)
        if isinstance(tokens, int):
            self._given += tokens
            total = tokens * count
        else:
            brought = np.minimum(tokens, self.remaining)
            self._state[_CONTEXT, :count] += brought
            self._state[_REMAINING, :count] -= brought
            self._state[_VERIFIED, :count] += steps
            self._first_end = None
            total = int(brought.sum())
        self.context_tokens += total
        return total

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose answer is complete, in admission order."""
        if not self.sequences or self.first_end > 0:
            return []
        stored = self._state[_REMAINING, : len(self.sequences)]
        done: list[int] = (stored == self._given).nonzero()[0].tolist()
        return self._remove(done, log_position)

    def take_last(self, log_position: int) -> Sequence:
        """Remove and return the sequence that was admitted last."""
        return self._remove([len(self.sequences) - 1], log_position)[0]

    def take(self, sequence: Sequence, log_position: int) -> None:
        """Remove `sequence`, whose answer nobody waits for any more."""
        self._remove([self.sequences.index(sequence)], log_position)

    def sync(self, log_position: int) -> None:
        """Bring the sequences' own counts up to date with the arrays."""
        for column in range(len(self.sequences)):
            self._sync(column, log_position)

    def _remove(self, columns: list[int], log_position: int) -> list[Sequence]:
        removed = [self._sync(column, log_position) for column in columns]
        for column in reversed(columns):
            count = len(self.sequences)
            self.context_tokens -= int(self._state[_CONTEXT, column]) + self._given
            self._state[:, column : count - 1] = self._state[:, column + 1 : count]
            if self._speculation:
                self._keys[column : count - 1] = self._keys[column + 1 : count]
            del self.sequences[column]
        self._first_end = None
        return removed

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence = self.sequences[column]
        _, remaining, capacity, _, _ = self._state[:, column].tolist()
        sequence.generated_tokens = sequence.asked_tokens - remaining + self._given
        sequence.promised_blocks = capacity // self._block_size - sequence.blocks
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence
