"""The ids of output tokens: hashes of the KV content of the sequence, computed on demand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.kv_blocks import BlockIds
from harness.adapters.embedded.engine.kv_contents import KvContents
from harness.adapters.embedded.engine.speculative import mix, mixed_word

# The whole KV content is read again after this number of output tokens.
READ_EVERY_TOKENS = 128
VOCABULARY = 128_000
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_STRIDE = np.arange(READ_EVERY_TOKENS, dtype=np.uint64) * np.uint64(_GOLDEN)


class OutputTokens:
    """The ids of up to `requested_tokens` output tokens after a prompt of `prompt_tokens`.

    Step times do not depend on ids. The ids are therefore computed only when needed: by a client,
    by a sequence that may share them as its prefix, or by a preemption.
    """

    __slots__ = (
        "_ids",
        "_read_position",
        "known_tokens",
        "prompt_tokens",
        "requested_tokens",
        "written_tokens",
    )

    def __init__(self, prompt_tokens: int, requested_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.requested_tokens = requested_tokens
        self.known_tokens = 0  # tokens with computed ids
        self.written_tokens = 0  # tokens with ids in the KV
        self._ids: NDArray[np.int32] | None = None  # allocated with the first id
        self._read_position = -1  # position of the last read of the KV

    @property
    def ids(self) -> NDArray[np.int32]:
        """All ids, shape (requested_tokens,). Only the first `known_tokens` are valid."""
        if self._ids is None:
            self._ids = np.zeros(self.requested_tokens, np.int32)
        return self._ids

    def make_ids(self, contents: KvContents, table: BlockIds, tokens: int) -> None:
        """Compute the first `tokens` ids as hashes of the KV content in the blocks of `table`.

        The ids of a stride are computed together after one read of the KV.
        """
        while self.known_tokens < tokens:
            start = self.known_tokens
            end = self._stride_end(start)
            if self._read_position != self._stride_start(start):
                self.write(contents, table, start)
                state = contents.read(table, self.prompt_tokens + start)
                first, last = self.prompt_tokens + start, self.prompt_tokens + end
                self.ids[start:end] = _hashes(state, first, last)
                self._read_position = start
            self.known_tokens = min(tokens, end)

    def write(self, contents: KvContents, table: BlockIds, tokens: int) -> None:
        """Store those of the first `tokens` ids that are not in the KV yet."""
        if tokens > self.written_tokens:
            start = self.prompt_tokens + self.written_tokens
            contents.write(table, start, self.ids[self.written_tokens : tokens])
            self.written_tokens = tokens

    def _stride_start(self, position: int) -> int:
        if position == self.requested_tokens - 1:  # the last token hashes all earlier tokens
            return position
        return position - position % READ_EVERY_TOKENS

    def _stride_end(self, position: int) -> int:
        last = self.requested_tokens - 1
        if position == last:
            return position + 1
        return min(position - position % READ_EVERY_TOKENS + READ_EVERY_TOKENS, last)


def _hashes(state: int, first: int, last: int) -> NDArray[np.int32]:
    """Return the ids of positions `first` to `last` − 1 of a sequence with content hash `state`."""
    start = (state + first * _GOLDEN) & _MASK
    if last - first == 1:  # the last token; an array of one is ten times slower
        return np.array([mixed_word(start) % VOCABULARY], dtype=np.int32)
    words = mix(_STRIDE[: last - first] + np.uint64(start))
    words %= np.uint64(VOCABULARY)
    return words.astype(np.int32)
