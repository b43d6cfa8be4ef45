"""The sequences that decode together with drafts: a step brings each its own number of tokens.

context    tokens in the KV before the step
remaining  output tokens still to come
capacity   tokens that the blocks held so far have room for
total      prompt and answer at full length: no sequence ever needs more room
verified   verify steps so far
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.config import Speculation
from harness.adapters.embedded.engine.decode_batch import DecodeBatch
from harness.adapters.embedded.engine.progress import Drafted, Tokens
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import tokens_per_step

_CONTEXT, _REMAINING, _CAPACITY, _TOTAL, _VERIFIED = range(5)
_STEPS_AT_ONCE = 64  # verify steps drawn together


class DraftBatch(DecodeBatch[Drafted]):
    """Up to `limit` decoding sequences, as arrays, so that many steps are worked out at once."""

    def __init__(self, limit: int, block_size: int, speculation: Speculation) -> None:
        super().__init__(block_size)
        self._speculation = speculation
        self._state = np.zeros((5, limit), dtype=np.int64)
        self._keys = np.zeros(limit, dtype=np.uint64)
        self._missing = np.zeros(0, dtype=np.int64)  # blocks of each, as found last

    @property
    def first_end(self) -> int:
        """Output tokens until the first of them, which must not be none, is complete."""
        return int(np.minimum.reduce(self._row(_REMAINING)))

    def progress(self, most: int) -> Drafted:
        """Return what up to `most` verify steps bring, until an answer is complete."""
        count, steps = len(self.sequences), min(most, _STEPS_AT_ONCE)
        tokens = tokens_per_step(self._speculation, self._keys[:count], self._row(_VERIFIED), steps)
        progress = Drafted(tokens, 1 + self._speculation.draft_tokens)
        progress.until_first_end(self._row(_REMAINING))
        return progress

    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""
        column, verified = len(self.sequences), sequence.decode_steps
        self.sequences.append(sequence)
        sequence.spans.append((joined, joined))
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        self._state[:, column] = (
            context,
            sequence.asked_tokens - sequence.generated_tokens,
            sequence.blocks * self._block_size,
            sequence.total_tokens,
            verified,
        )
        self._keys[column] = sequence.key
        self.context_tokens += context

    def missing_blocks(self, room: Tokens) -> int:
        """Return the blocks that all together lack to have `room` more tokens in the KV."""
        missing: NDArray[np.int64] = self._row(_CONTEXT) + room
        np.minimum(missing, self._row(_TOTAL), out=missing)
        missing -= self._row(_CAPACITY)
        missing += self._block_size - 1
        missing //= self._block_size
        self._missing = np.maximum(missing, 0, out=missing)
        return int(np.add.reduce(missing))

    def add_blocks(self) -> None:
        """Note that each sequence got what `missing_blocks` found last."""
        self._state[_CAPACITY, : len(self.sequences)] += self._missing * self._block_size

    def advance(self, progress: Drafted, steps: int) -> int:
        """Note that `steps` steps of `progress` were taken; return the tokens of all.

        Drafts reach past the end of an answer, where they bring nothing.
        """
        brought = np.minimum(progress.after(steps), self._row(_REMAINING))
        count = len(self.sequences)
        self._state[_CONTEXT, :count] += brought
        self._state[_REMAINING, :count] -= brought
        self._state[_VERIFIED, :count] += steps
        total = int(brought.sum())
        self.context_tokens += total
        return total

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose answer is complete, in admission order."""
        done: list[int] = (self._row(_REMAINING) == 0).nonzero()[0].tolist()
        return self._remove(done, log_position)

    def _row(self, row: int) -> NDArray[np.int64]:
        """Return one row of the state, shape (sequences,)."""
        return self._state[row, : len(self.sequences)]

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence = self.sequences[column]
        _, remaining, capacity, _, _ = self._state[:, column].tolist()
        sequence.generated_tokens = sequence.asked_tokens - remaining
        sequence.promised_blocks = capacity // self._block_size - sequence.blocks
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence

    def _drop(self, column: int) -> None:
        count = len(self.sequences)
        self._state[:, column : count - 1] = self._state[:, column + 1 : count]
        self._keys[column : count - 1] = self._keys[column + 1 : count]
