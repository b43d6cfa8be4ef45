"""The batch of decoding sequences, advanced by many steps at once.

Without speculation every step gives each sequence one token. One counter, `_given`, is therefore
enough for all sequences. Every future event (the end of an output, the need for another block) is
stored as the value of `_given` at which it occurs, and a step updates only the counter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.sequence import Sequence

# From about this number of steps numpy is faster than a Python loop.
_STEPS_OF_AN_ARRAY = 24
_NS = 1e9

Times = list[int] | NDArray[np.int64]
Tokens = NDArray[np.int64] | int  # one number for all sequences, or an array (sequences,)


class Progress(ABC):
    """The next `steps` steps of a batch, and their output tokens."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @abstractmethod
    def tokens_needed(self, steps: int) -> Tokens:
        """Return the number of additional KV tokens of each sequence in `steps` steps."""

    @abstractmethod
    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return the end of each step; the first starts at `now_ns` with `context` tokens.

        A step takes `fixed_s` plus `slope_s` for each token of all contexts before it.
        """


P = TypeVar("P", bound=Progress)


class DecodeBatch(ABC, Generic[P]):
    """A batch of decoding sequences in admission order."""

    def __init__(self, block_size: int) -> None:
        self.sequences: list[Sequence] = []
        self.context_tokens = 0  # KV tokens of all sequences before the next step
        self._block_size = block_size

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    @abstractmethod
    def first_end(self) -> int:
        """The smallest number of output tokens that any sequence still needs."""

    @abstractmethod
    def progress(self, most: int) -> P:
        """Return up to `most` steps, at most until the first output is complete."""

    @abstractmethod
    def add(self, sequence: Sequence, joined: int) -> None:
        """Add `sequence`, which decodes from log position `joined`."""

    @abstractmethod
    def missing_blocks(self, tokens: Tokens) -> int:
        """Return the number of blocks that all sequences need for `tokens` more KV tokens each."""

    @abstractmethod
    def add_blocks(self) -> None:
        """Record that each sequence received the blocks of the last `missing_blocks` call."""

    @abstractmethod
    def advance(self, progress: P, steps: int) -> int:
        """Record `steps` steps of `progress`; return the output tokens of all sequences."""

    @abstractmethod
    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose output is complete, in admission order."""

    @abstractmethod
    def _sync(self, column: int, log_position: int) -> Sequence:
        """Update the counts of one sequence and return it."""

    @abstractmethod
    def _drop(self, column: int) -> None:
        """Remove a sequence after `_sync`."""

    def take_last(self, log_position: int) -> Sequence:
        """Remove and return the sequence that was admitted last."""
        return self._remove([len(self.sequences) - 1], log_position)[0]

    def take(self, sequence: Sequence, log_position: int) -> None:
        """Remove `sequence`, which was cancelled."""
        self._remove([self.sequences.index(sequence)], log_position)

    def sync(self, log_position: int) -> None:
        """Update the counts of every sequence."""
        for column in range(len(self.sequences)):
            self._sync(column, log_position)

    def _remove(self, columns: list[int], log_position: int) -> list[Sequence]:
        removed = [self._sync(column, log_position) for column in columns]
        for column in reversed(columns):
            self._drop(column)
            sequence = self.sequences.pop(column)
            self.context_tokens -= len(sequence.prompt_ids) + sequence.generated_tokens - 1
        return removed


class UniformProgress(Progress):
    """One token for each of `sequences` in each step."""

    def __init__(self, steps: int, sequences: int) -> None:
        super().__init__(steps)
        self._sequences = sequences

    def tokens_needed(self, steps: int) -> int:
        """Return the number of additional KV tokens of each sequence in `steps` steps."""
        return steps

    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return the end of each step; the first starts at `now_ns` with `context` tokens."""
        steps, sequences = self.steps, self._sequences
        if steps >= _STEPS_OF_AN_ARRAY:
            grown = np.arange(steps, dtype=np.int64) * sequences
            return step_ends(now_ns, fixed_s + slope_s * (context + grown))
        ends = []
        for tokens in range(context, context + steps * sequences, sequences):
            now_ns += round((fixed_s + slope_s * tokens) * _NS)
            ends.append(now_ns)
        return ends


class _Member(NamedTuple):
    """The state of a sequence when it joined, relative to `_given`."""

    end: int  # value of `_given` when its output is complete
    blocks_end: int  # value of `_given` when its blocks at joining are full
    context_start: int  # its KV tokens minus `_given`


class UniformBatch(DecodeBatch[UniformProgress]):
    """A batch in which each step gives every sequence one token."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._given = 0  # decode steps since the start; each gives every sequence one token
        self._members: list[_Member] = []
        self._ends: list[int] = []  # `end` of each member
        self._first_end: int | None = None  # the smallest end; None: not computed yet
        # Value of `_given` → number of sequences whose blocks are full then. Every sequence whose
        # blocks end before `_extended` has received more, except those in `_late`, which joined
        # later.
        self._blocks_ends: dict[int, int] = {}
        self._extended = self._wanted = 0
        self._late: list[Sequence] = []

    @property
    def first_end(self) -> int:
        """The smallest number of output tokens that any sequence still needs."""
        if self._first_end is None:
            self._first_end = min(self._ends)
        return self._first_end - self._given

    def progress(self, most: int) -> UniformProgress:
        """Return `most` steps with one token for every sequence."""
        return UniformProgress(most, len(self.sequences))

    def add(self, sequence: Sequence, joined: int) -> None:
        """Add `sequence`, which decodes from log position `joined`."""
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        start = context - self._given
        end = sequence.requested_tokens - sequence.generated_tokens + self._given
        blocks_end = sequence.blocks * self._block_size - start
        self.sequences.append(sequence)
        self._members.append(_Member(end, blocks_end, start))
        self._ends.append(end)
        sequence.spans.append((joined, joined))
        self.context_tokens += context
        if self._first_end is not None and end < self._first_end:
            self._first_end = end
        self._blocks_ends[blocks_end] = self._blocks_ends.get(blocks_end, 0) + 1
        if blocks_end < self._extended:
            self._late.append(sequence)

    def missing_blocks(self, tokens: Tokens) -> int:
        """Return the number of blocks that all sequences need for `tokens` more KV tokens each.

        No output ends earlier, so every sequence needs all `tokens` tokens.
        """
        self._wanted = wanted = self._given + int(tokens)
        missing, size = 0, self._block_size
        for blocks_end, sequences in self._blocks_ends.items():
            if blocks_end < wanted:
                missing += sequences * -((blocks_end - wanted) // size)
        return missing

    def add_blocks(self) -> None:
        """Record that each sequence received the blocks of the last `missing_blocks` call."""
        wanted, blocks_ends = self._wanted, self._blocks_ends
        for blocks_end in [one for one in blocks_ends if one < wanted]:
            new_end = self._extended_end(blocks_end, wanted)
            blocks_ends[new_end] = blocks_ends.get(new_end, 0) + blocks_ends.pop(blocks_end)
        self._extended = wanted
        self._late.clear()

    def advance(self, progress: UniformProgress, steps: int) -> int:  # noqa: ARG002  same for all
        """Record `steps` steps of one token per sequence; return the output tokens of all."""
        self._given += steps
        total = steps * len(self.sequences)
        self.context_tokens += total
        return total

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose output is complete, in admission order."""
        if not self.sequences or self.first_end > 0:
            return []
        done: list[int] = []
        for _ in range(self._ends.count(self._given)):
            after = done[-1] + 1 if done else 0
            done.append(self._ends.index(self._given, after))
        return self._remove(done, log_position)

    def _extended_end(self, blocks_end: int, wanted: int) -> int:
        """Return the new end of blocks that ended at `blocks_end`, extended to reach `wanted`."""
        return blocks_end - (blocks_end - wanted) // self._block_size * self._block_size

    def _blocks_end(self, column: int) -> int:
        """Return the value of `_given` at which the current blocks of a sequence are full."""
        joined = self._members[column].blocks_end
        if joined >= self._extended or self.sequences[column] in self._late:
            return joined
        return self._extended_end(joined, self._extended)

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence, member = self.sequences[column], self._members[column]
        sequence.generated_tokens = sequence.requested_tokens - member.end + self._given
        capacity_tokens = member.context_start + self._blocks_end(column)
        sequence.reserved_blocks = capacity_tokens // self._block_size - sequence.blocks
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence

    def _drop(self, column: int) -> None:
        blocks_end = self._blocks_end(column)
        if self._blocks_ends[blocks_end] == 1:
            del self._blocks_ends[blocks_end]
        else:
            self._blocks_ends[blocks_end] -= 1
        if self.sequences[column] in self._late:
            self._late.remove(self.sequences[column])
        if self._ends[column] == self._first_end:
            self._first_end = None
        del self._members[column], self._ends[column]


def step_ends(now_ns: int, seconds: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return the end times of consecutive steps with the durations `seconds`."""
    ends: NDArray[np.int64] = now_ns + np.rint(seconds * _NS).astype(np.int64).cumsum()
    return ends
