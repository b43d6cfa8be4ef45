"""The batch of sequences that decode with drafts. A step gives each sequence several tokens.

context    KV tokens before the step
remaining  output tokens that are not generated yet
capacity   tokens that fit in the current blocks
total      prompt and output tokens at full length; the limit for blocks
verified   verify steps so far
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.decode_batch import (
    DecodeBatch,
    Progress,
    Times,
    Tokens,
    step_ends,
)
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import SpeculativeConfig, tokens_per_step

_CONTEXT, _REMAINING, _CAPACITY, _TOTAL, _VERIFIED = range(5)
_STEPS_AT_ONCE = 64  # verify steps drawn together


class DraftProgress(Progress):
    """Verify steps that give `tokens`, shape (sequences, steps), and feed `queries` tokens each.

    The tokens may exceed the end of an output.
    """

    def __init__(self, tokens: NDArray[np.int64], queries: int) -> None:
        super().__init__(tokens.shape[1])
        self._queries = queries
        self._cumulative = np.cumsum(tokens, axis=1)

    def after(self, steps: int) -> NDArray[np.int64]:
        """Return the tokens of each sequence in the first `steps` steps (at least one step)."""
        return self._cumulative[:, steps - 1]

    def tokens_needed(self, steps: int) -> Tokens:
        """Return the additional KV tokens of each sequence in `steps` steps, drafts included."""
        return self._queries if steps == 1 else self.after(steps - 1) + self._queries

    def until_first_end(self, remaining: NDArray[np.int64]) -> None:
        """Remove the steps after the first one that completes an output of `remaining` tokens."""
        complete = (self._cumulative >= remaining[:, None]).any(axis=0)
        if complete.any():
            self.steps = int(complete.argmax()) + 1

    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return the end of each step; the first starts at `now_ns` with `context` tokens."""
        grown = np.zeros(self.steps, dtype=np.int64)
        grown[1:] = self._cumulative[:, : self.steps - 1].sum(axis=0)
        return step_ends(now_ns, fixed_s + slope_s * (context + grown))


class DraftBatch(DecodeBatch[DraftProgress]):
    """A batch of up to `limit` sequences, stored in arrays to compute many steps at once."""

    def __init__(self, limit: int, block_size: int, speculation: SpeculativeConfig) -> None:
        super().__init__(block_size)
        self._speculation = speculation
        self._state = np.zeros((5, limit), dtype=np.int64)
        self._keys = np.zeros(limit, dtype=np.uint64)
        self._missing = np.zeros(0, dtype=np.int64)  # result of the last `missing_blocks`

    @property
    def first_end(self) -> int:
        """The smallest number of output tokens that any sequence still needs."""
        return int(np.minimum.reduce(self._row(_REMAINING)))

    def progress(self, most: int) -> DraftProgress:
        """Return up to `most` verify steps, at most until an output is complete."""
        count, steps = len(self.sequences), min(most, _STEPS_AT_ONCE)
        tokens = tokens_per_step(self._speculation, self._keys[:count], self._row(_VERIFIED), steps)
        progress = DraftProgress(tokens, 1 + self._speculation.draft_tokens)
        progress.until_first_end(self._row(_REMAINING))
        return progress

    def add(self, sequence: Sequence, joined: int) -> None:
        """Add `sequence`, which decodes from log position `joined`."""
        column, verified = len(self.sequences), sequence.decode_steps
        self.sequences.append(sequence)
        sequence.spans.append((joined, joined))
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        self._state[:, column] = (
            context,
            sequence.requested_tokens - sequence.generated_tokens,
            sequence.blocks * self._block_size,
            sequence.total_tokens,
            verified,
        )
        self._keys[column] = sequence.key
        self.context_tokens += context

    def missing_blocks(self, tokens: Tokens) -> int:
        """Return the number of blocks that all sequences need for `tokens` more KV tokens each."""
        missing: NDArray[np.int64] = self._row(_CONTEXT) + tokens
        np.minimum(missing, self._row(_TOTAL), out=missing)
        missing -= self._row(_CAPACITY)
        missing += self._block_size - 1
        missing //= self._block_size
        self._missing = np.maximum(missing, 0, out=missing)
        return int(np.add.reduce(missing))

    def add_blocks(self) -> None:
        """Record that each sequence received the blocks of the last `missing_blocks` call."""
        self._state[_CAPACITY, : len(self.sequences)] += self._missing * self._block_size

    def advance(self, progress: DraftProgress, steps: int) -> int:
        """Record `steps` steps of `progress`; return the output tokens of all sequences.

        Draft tokens after the end of an output do not count.
        """
        tokens = np.minimum(progress.after(steps), self._row(_REMAINING))
        count = len(self.sequences)
        self._state[_CONTEXT, :count] += tokens
        self._state[_REMAINING, :count] -= tokens
        self._state[_VERIFIED, :count] += steps
        total = int(tokens.sum())
        self.context_tokens += total
        return total

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose output is complete, in admission order."""
        done: list[int] = (self._row(_REMAINING) == 0).nonzero()[0].tolist()
        return self._remove(done, log_position)

    def _row(self, row: int) -> NDArray[np.int64]:
        """Return one row of the state, shape (sequences,)."""
        return self._state[row, : len(self.sequences)]

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence = self.sequences[column]
        _, remaining, capacity, _, _ = self._state[:, column].tolist()
        sequence.generated_tokens = sequence.requested_tokens - remaining
        sequence.reserved_blocks = capacity // self._block_size - sequence.blocks
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence

    def _drop(self, column: int) -> None:
        count = len(self.sequences)
        self._state[:, column : count - 1] = self._state[:, column + 1 : count]
        self._keys[column : count - 1] = self._keys[column + 1 : count]
