"""The sequences that decode together, advanced by many steps at once.

Without speculation every step gives each of them one token. So what they got is one number for all,
`_given`, and everything else is noted by the value of `_given` at which it is due: the end of an
output, the token that no longer fits the blocks of a sequence. A step touches nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.sequence import Sequence

# Numpy pays for its calls from about so many steps on.
_STEPS_OF_AN_ARRAY = 24
_NS = 1e9

Times = list[int] | NDArray[np.int64]
Tokens = NDArray[np.int64] | int  # one number for all sequences, or shape (sequences,)


class Progress(ABC):
    """The next `steps` steps of a batch, and the tokens that they give."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @abstractmethod
    def tokens_needed(self, steps: int) -> Tokens:
        """Return for how many more tokens each sequence needs blocks in `steps` steps."""

    @abstractmethod
    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return when each step ends, if the first begins at `now_ns` with `context` tokens.

        A step takes `fixed_s`, and `slope_s` for each token of all contexts before it.
        """


P = TypeVar("P", bound=Progress)


class DecodeBatch(ABC, Generic[P]):
    """Decoding sequences in the order of their admission."""

    def __init__(self, block_size: int) -> None:
        self.sequences: list[Sequence] = []
        self.context_tokens = 0  # in the KV before the next step, of all sequences together
        self._block_size = block_size

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    @abstractmethod
    def first_end(self) -> int:
        """Output tokens until the first of at least one output is complete."""

    @abstractmethod
    def progress(self, most: int) -> P:
        """Return up to `most` steps, until an output is complete: none lacks fewer tokens."""

    @abstractmethod
    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""

    @abstractmethod
    def missing_blocks(self, tokens: Tokens) -> int:
        """Return the blocks that all together lack to have `tokens` more tokens in the KV."""

    @abstractmethod
    def add_blocks(self) -> None:
        """Note that each sequence got what `missing_blocks` found last."""

    @abstractmethod
    def advance(self, progress: P, steps: int) -> int:
        """Note that `steps` steps of `progress` were taken; return the tokens of all."""

    @abstractmethod
    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose output is complete, in admission order."""

    @abstractmethod
    def _sync(self, column: int, log_position: int) -> Sequence:
        """Bring one sequence's own counts up to date, and return it."""

    @abstractmethod
    def _drop(self, column: int) -> None:
        """Remove a sequence, whose counts are up to date."""

    def take_last(self, log_position: int) -> Sequence:
        """Remove and return the sequence that was admitted last."""
        return self._remove([len(self.sequences) - 1], log_position)[0]

    def take(self, sequence: Sequence, log_position: int) -> None:
        """Remove `sequence`, whose client has gone."""
        self._remove([self.sequences.index(sequence)], log_position)

    def sync(self, log_position: int) -> None:
        """Bring the sequences' own counts up to date."""
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
        """Return for how many more tokens each sequence needs blocks in `steps` steps."""
        return steps

    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return when each step ends, if the first begins at `now_ns` with `context` tokens."""
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
    """A sequence as it joined, by counts of `_given`."""

    end: int  # at which its output is complete
    blocks_end: int  # at which its blocks were full
    context_start: int  # its tokens in the KV, less `_given`


class UniformBatch(DecodeBatch[UniformProgress]):
    """A batch in which each step gives every sequence one token."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._given = 0  # tokens that every sequence got, from the beginning
        self._members: list[_Member] = []
        self._ends: list[int] = []  # of the members
        self._first_end: int | None = None  # the least of these; None: to be found
        # Value of `_given` → how many sequences lack a block beyond it. All whose blocks would have
        # been full before `_extended` got more, except those in `_late`, which joined after that.
        self._blocks_ends: dict[int, int] = {}
        self._extended = self._wanted = 0
        self._late: list[Sequence] = []

    @property
    def first_end(self) -> int:
        """Output tokens until the first of at least one output is complete."""
        if self._first_end is None:
            self._first_end = min(self._ends)
        return self._first_end - self._given

    def progress(self, most: int) -> UniformProgress:
        """Return `most` steps of one token for every sequence."""
        return UniformProgress(most, len(self.sequences))

    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""
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
        """Return the blocks that all together lack to have `tokens` more tokens in the KV.

        No output ends before that, so none needs less.
        """
        self._wanted = wanted = self._given + int(tokens)
        missing, size = 0, self._block_size
        for blocks_end, sequences in self._blocks_ends.items():
            if blocks_end < wanted:
                missing += sequences * -((blocks_end - wanted) // size)
        return missing

    def add_blocks(self) -> None:
        """Note that each sequence got what `missing_blocks` found last."""
        wanted, blocks_ends = self._wanted, self._blocks_ends
        for blocks_end in [one for one in blocks_ends if one < wanted]:
            new_end = self._extended_end(blocks_end, wanted)
            blocks_ends[new_end] = blocks_ends.get(new_end, 0) + blocks_ends.pop(blocks_end)
        self._extended = wanted
        self._late.clear()

    def advance(self, progress: UniformProgress, steps: int) -> int:  # noqa: ARG002  all are the same
        """Note that `steps` steps gave each sequence as many tokens; return those of all."""
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
        """Return where blocks that ended at `blocks_end` end once they are enough for `wanted`."""
        return blocks_end - (blocks_end - wanted) // self._block_size * self._block_size

    def _blocks_end(self, column: int) -> int:
        """Return where the blocks of a sequence end by now."""
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
    """Return when steps of `seconds` end, one after the other."""
    ends: NDArray[np.int64] = now_ns + np.rint(seconds * _NS).astype(np.int64).cumsum()
    return ends
