"""The sequences that decode together, as arrays, so that many steps can be worked out at once.

context    tokens in the KV before the step
remaining  output tokens still to come
capacity   tokens that the blocks held so far have room for
total      prompt and answer at full length: no sequence ever needs more room
verified   verify steps so far (speculation)
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

    def __init__(self, limit: int, speculation: Speculation | None) -> None:
        self.sequences: list[Sequence] = []
        self._speculation = speculation
        self._state = np.zeros((5, limit), dtype=np.int64)
        self._keys = np.zeros(limit, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def context(self) -> NDArray[np.int64]:
        """Tokens in the KV, shape (sequences,)."""
        return self._state[_CONTEXT, : len(self.sequences)]

    @property
    def remaining(self) -> NDArray[np.int64]:
        """Output tokens still to come, shape (sequences,)."""
        return self._state[_REMAINING, : len(self.sequences)]

    def add(self, sequence: Sequence, capacity_tokens: int, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""
        column = len(self.sequences)
        verified = sequence.decode_steps
        self.sequences.append(sequence)
        sequence.spans.append((joined, joined))
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        remaining = sequence.asked_tokens - sequence.generated_tokens
        self._state[:, column] = (
            context, remaining, capacity_tokens, sequence.total_tokens, verified,
        )  # fmt: skip
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

    def missing_tokens(self, room: Tokens) -> NDArray[np.int64]:
        """Return the room that each sequence lacks to have `room` more tokens in the KV."""
        count = len(self.sequences)
        needed = np.minimum(self._state[_CONTEXT, :count] + room, self._state[_TOTAL, :count])
        missing: NDArray[np.int64] = np.maximum(needed - self._state[_CAPACITY, :count], 0)
        return missing

    def add_capacity(self, column: int, tokens: int) -> None:
        """Note that the sequence at `column` got blocks for `tokens` more tokens."""
        self._state[_CAPACITY, column] += tokens

    def advance(self, tokens: Tokens, steps: int) -> None:
        """Note that `steps` steps brought each sequence `tokens` tokens."""
        count = len(self.sequences)
        brought = np.minimum(tokens, self._state[_REMAINING, :count])
        self._state[_CONTEXT, :count] += brought
        self._state[_REMAINING, :count] -= brought
        self._state[_VERIFIED, :count] += steps

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose answer is complete, in admission order."""
        done = self.remaining == 0
        if not done.any():
            return []
        return self._remove(done, log_position)

    def take_last(self, log_position: int) -> Sequence:
        """Remove and return the sequence that was admitted last."""
        last = np.zeros(len(self.sequences), dtype=np.bool_)
        last[-1] = True
        return self._remove(last, log_position)[0]

    def take(self, sequence: Sequence, log_position: int) -> None:
        """Remove `sequence`, whose answer nobody waits for any more."""
        gone = np.array([one is sequence for one in self.sequences], dtype=np.bool_)
        self._remove(gone, log_position)

    def sync(self, log_position: int) -> None:
        """Bring the sequences' own counts up to date with the arrays."""
        for column in range(len(self.sequences)):
            self._sync(column, log_position)

    def _remove(self, gone: NDArray[np.bool_], log_position: int) -> list[Sequence]:
        columns = np.flatnonzero(gone).tolist()
        removed = [self._sync(column, log_position) for column in columns]
        count, kept = len(self.sequences), np.flatnonzero(~gone)
        self._state[:, : len(kept)] = self._state[:, :count][:, kept]
        self._keys[: len(kept)] = self._keys[:count][kept]
        self.sequences = [self.sequences[column] for column in kept.tolist()]
        return removed

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence = self.sequences[column]
        sequence.generated_tokens = sequence.asked_tokens - int(self._state[_REMAINING, column])
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence
