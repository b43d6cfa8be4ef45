"""The sequences that decode together, told about once for many steps.

Without speculation every step brings each of them one token. So what they got is one number for
all, `_given`, and everything else is written down by the count of `_given` at which it is due: the
end of an answer, the token for which the blocks held have no room. Nothing is touched by a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from harness.adapters.embedded.engine.progress import Alike, Progress, Tokens
from harness.adapters.embedded.engine.sequence import Sequence

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
        """Output tokens until the first of them, which must not be none, is complete."""

    @abstractmethod
    def progress(self, most: int) -> P:
        """Return what up to `most` steps bring, at the latest until an answer is complete.

        An answer lacks at least `most` tokens.
        """

    @abstractmethod
    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""

    @abstractmethod
    def missing_blocks(self, room: Tokens) -> int:
        """Return the blocks that all together lack to have `room` more tokens in the KV."""

    @abstractmethod
    def add_blocks(self) -> None:
        """Note that each sequence got what `missing_blocks` found last."""

    @abstractmethod
    def advance(self, progress: P, steps: int) -> int:
        """Note that `steps` steps of `progress` were taken; return the tokens of all."""

    @abstractmethod
    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose answer is complete, in admission order."""

    @abstractmethod
    def _sync(self, column: int, log_position: int) -> Sequence:
        """Bring one sequence's own counts up to date, and return it."""

    @abstractmethod
    def _drop(self, column: int) -> None:
        """Forget a sequence, whose counts are up to date."""

    def take_last(self, log_position: int) -> Sequence:
        """Remove and return the sequence that was admitted last."""
        return self._remove([len(self.sequences) - 1], log_position)[0]

    def take(self, sequence: Sequence, log_position: int) -> None:
        """Remove `sequence`, whose answer nobody waits for any more."""
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


class _Member(NamedTuple):
    """A sequence as it joined, by counts of `_given`."""

    end: int  # at which its answer is complete
    room_end: int  # beyond which its blocks had no room
    context_start: int  # its tokens in the KV, less `_given`


class AlikeBatch(DecodeBatch[Alike]):
    """A batch in which each step brings one token to everyone."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._given = 0  # tokens that every sequence got, from the beginning
        self._members: list[_Member] = []
        self._ends: list[int] = []  # of the members
        self._first_end: int | None = None  # the least of these; None: to be found
        # Count of `_given` → how many sequences lack a block beyond it. All that held too little
        # room for `_roomy` have got more, but for those in `_late`, who came after that.
        self._room_ends: dict[int, int] = {}
        self._roomy = self._asked_room = 0
        self._late: list[Sequence] = []

    @property
    def first_end(self) -> int:
        """Output tokens until the first of them, which must not be none, is complete."""
        if self._first_end is None:
            self._first_end = min(self._ends)
        return self._first_end - self._given

    def progress(self, most: int) -> Alike:
        """Return `most` steps of one token for everyone."""
        return Alike(most, len(self.sequences))

    def add(self, sequence: Sequence, joined: int) -> None:
        """Let `sequence` decode from log position `joined` on."""
        context = len(sequence.prompt_ids) + sequence.generated_tokens - 1
        start = context - self._given
        end = sequence.asked_tokens - sequence.generated_tokens + self._given
        room_end = sequence.blocks * self._block_size - start
        self.sequences.append(sequence)
        self._members.append(_Member(end, room_end, start))
        self._ends.append(end)
        sequence.spans.append((joined, joined))
        self.context_tokens += context
        if self._first_end is not None and end < self._first_end:
            self._first_end = end
        self._room_ends[room_end] = self._room_ends.get(room_end, 0) + 1
        if room_end < self._roomy:
            self._late.append(sequence)

    def missing_blocks(self, room: Tokens) -> int:
        """Return the blocks that all together lack to have `room` more tokens in the KV.

        No answer ends before that, so that none needs less.
        """
        self._asked_room = wanted = self._given + int(room)
        missing, size = 0, self._block_size
        for room_end, sequences in self._room_ends.items():
            if room_end < wanted:
                missing += sequences * -((room_end - wanted) // size)
        return missing

    def add_blocks(self) -> None:
        """Note that each sequence got what `missing_blocks` found last."""
        wanted, room_ends = self._asked_room, self._room_ends
        for room_end in [one for one in room_ends if one < wanted]:
            new_end = self._with_room(room_end, wanted)
            room_ends[new_end] = room_ends.get(new_end, 0) + room_ends.pop(room_end)
        self._roomy = wanted
        self._late.clear()

    def advance(self, progress: Alike, steps: int) -> int:  # noqa: ARG002  all are alike
        """Note that `steps` steps brought each sequence as many tokens; return those of all."""
        self._given += steps
        total = steps * len(self.sequences)
        self.context_tokens += total
        return total

    def take_finished(self, log_position: int) -> list[Sequence]:
        """Remove and return the sequences whose answer is complete, in admission order."""
        if not self.sequences or self.first_end > 0:
            return []
        done: list[int] = []
        for _ in range(self._ends.count(self._given)):
            after = done[-1] + 1 if done else 0
            done.append(self._ends.index(self._given, after))
        return self._remove(done, log_position)

    def _with_room(self, room_end: int, wanted: int) -> int:
        """Return where room that ended at `room_end` ends once it is enough for `wanted`."""
        return room_end - (room_end - wanted) // self._block_size * self._block_size

    def _room_end(self, column: int) -> int:
        """Return where the room of a sequence ends by now."""
        joined = self._members[column].room_end
        if joined >= self._roomy or self.sequences[column] in self._late:
            return joined
        return self._with_room(joined, self._roomy)

    def _sync(self, column: int, log_position: int) -> Sequence:
        sequence, member = self.sequences[column], self._members[column]
        sequence.generated_tokens = sequence.asked_tokens - member.end + self._given
        room_tokens = member.context_start + self._room_end(column)
        sequence.promised_blocks = room_tokens // self._block_size - sequence.blocks
        sequence.spans[-1] = (sequence.spans[-1][0], log_position)
        return sequence

    def _drop(self, column: int) -> None:
        room_end = self._room_end(column)
        if self._room_ends[room_end] == 1:
            del self._room_ends[room_end]
        else:
            self._room_ends[room_end] -= 1
        if self.sequences[column] in self._late:
            self._late.remove(self.sequences[column])
        if self._ends[column] == self._first_end:
            self._first_end = None
        del self._members[column], self._ends[column]
