"""Which blocks a sequence holds, from its admission until it gives them back.

One whose answer somebody reads has a block table. One whose answer nobody reads is `counted`: what
it found in the prefix cache ends at a node there, and of all else it is enough to know how many
blocks it takes. It gets a table when something is to be read after all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.cache_nodes import NO_BLOCKS, Node
from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks
from harness.adapters.embedded.engine.prefix_cache import PrefixCache
from harness.adapters.embedded.engine.sequence import Sequence


class SequenceBlocks:
    """Takes blocks for sequences, and gives them back; whole ones stay in the prefix cache."""

    def __init__(self, config: EngineConfig) -> None:
        region = None if config.paged_kv else config.blocks_for(config.max_model_len)
        self.kv = KvBlocks(config.num_blocks, config.block_size, region)
        self.cache = PrefixCache(self.kv) if config.prefix_caching and config.paged_kv else None
        self.no_room = False  # a sequence was refused, and nothing has been freed since
        self._config = config

    def reserve_prefill(self, sequence: Sequence, spared: int) -> int | None:
        """Return how many of the blocks now set up are cached ones; None, no change, without room.

        `spared` free blocks are left for others. Who reads nothing gets no table, as long as whole
        nodes of the cache do for its prefix. The last token is always computed.
        """
        if not sequence.answer_read and self._config.paged_kv:
            if self.cache is None:
                return self._reserve_counted(sequence, None, 0, spared)
            if (found := self.cache.find(sequence.known_ids()[:-1])) is not None:
                return self._reserve_counted(sequence, *found, spared)
        return self.reserve_table(sequence, sequence.target_tokens, spared)

    def reserve_table(self, sequence: Sequence, tokens: int, spared: int) -> int | None:
        """As `reserve_prefill`, with a block table, for `tokens` tokens."""
        if not self._config.paged_kv:
            return self._reserve_region(sequence)
        ids = sequence.known_ids()[:-1]
        cached = NO_BLOCKS if self.cache is None else self.cache.match(ids)
        blocks = self._config.blocks_for(tokens)
        spare = self.kv.available - (blocks - len(cached)) - spared
        if spare < len(cached) and spare < self.kv.idle(cached):
            self.no_room = True
            return None
        self.kv.share(cached)
        sequence.table = self._new_table(sequence)
        sequence.table[: len(cached)] = cached
        self.promise(blocks - len(cached))
        sequence.table[len(cached) : blocks] = self.kv.settle(blocks - len(cached))
        sequence.blocks = blocks
        return len(cached)

    def promise(self, count: int) -> None:
        """Set `count` blocks aside, evicting what is needed for it; they can be had."""
        if self.cache is not None and count > self.kv.free:
            self.cache.evict(count - self.kv.free)
        self.kv.promise(count)

    def store_prefill(self, sequence: Sequence) -> None:
        """Store what a finished prefill computed, and make its whole blocks known for reuse."""
        if sequence.counted:
            if self._extend(sequence):
                return
            self._lay_out(sequence)
        sequence.write_known(self.kv, sequence.prefill_start)
        if self.cache is not None:
            self._hold(sequence, self.cache.insert(sequence.known_ids(), sequence.table))

    def settle(self, sequence: Sequence) -> None:
        """Settle which blocks those are that `sequence` has only as a number; its prefill is done.

        Then they can be read and written.
        """
        if sequence.counted:
            start = sequence.held_blocks * self._config.block_size
            self._lay_out(sequence)
            sequence.write_known(self.kv, start)
        if sequence.promised_blocks:
            end = sequence.blocks + sequence.promised_blocks
            sequence.table[sequence.blocks : end] = self.kv.settle(sequence.promised_blocks)
            sequence.blocks, sequence.promised_blocks = end, 0

    def finish(self, sequence: Sequence) -> None:
        """Give back the blocks of a finished sequence; whole ones stay in the prefix cache."""
        if not sequence.answer_read and not sequence.answer.known_tokens:
            self._finish_unread(sequence)
        else:
            self._finish_read(sequence)

    def free(self, sequence: Sequence) -> None:
        """Give back all blocks of `sequence`."""
        if sequence.counted:
            self.kv.renounce(sequence.blocks - sequence.held_blocks)
            self._leave(sequence)
        else:
            self.kv.release(sequence.table[: sequence.blocks])
        self.kv.renounce(sequence.promised_blocks)
        sequence.blocks = sequence.promised_blocks = 0
        self.no_room = False

    def _finish_read(self, sequence: Sequence) -> None:
        self.settle(sequence)
        sequence.work_out(self.kv)
        if self.cache is not None:
            in_kv = sequence.target_tokens - 1  # all but the newest token
            self.cache.insert(sequence.known_ids()[:in_kv], sequence.table)
        self.free(sequence)

    def _finish_unread(self, sequence: Sequence) -> None:
        """As `finish`, without working out an answer that nobody may ever look at."""
        if self.cache is None:
            self.free(sequence)
            return
        prompt, size, held = sequence.prompt_ids, self._config.block_size, sequence.held
        end = self.cache.end_of(prompt) if held is None else self.cache.childless(held)
        if end is None:
            self._finish_read(sequence)
            return
        self.free(sequence)
        whole = len(prompt) // size
        blocks = (sequence.target_tokens - 1) // size - whole
        self.cache.insert_unread(end, prompt[whole * size :], sequence.answer, blocks)

    def _reserve_region(self, sequence: Sequence) -> int | None:
        if self.kv.free == 0:
            self.no_room = True
            return None
        sequence.table = self.kv.allocate_region()
        sequence.blocks = len(sequence.table)
        return 0

    def _reserve_counted(
        self, sequence: Sequence, end: Node | None, cached: int, spared: int
    ) -> int | None:
        """Set up a prefill without a block table behind `end`, where `cached` blocks end."""
        missing = self._config.blocks_for(sequence.target_tokens) - cached
        spare = self.kv.available - missing - spared
        if spare < cached and spare < self._idle(end):
            self.no_room = True
            return None
        if end is not None and self.cache is not None:
            self.cache.enter(end)
        self.promise(missing)
        sequence.counted, sequence.blocks = True, cached + missing
        sequence.held, sequence.held_blocks = end, cached
        return cached

    def _idle(self, end: Node | None) -> int:
        return 0 if end is None or self.cache is None else self.cache.idle(end)

    def _leave(self, sequence: Sequence) -> None:
        """Let a counted sequence be counted no more, nor use what it found in the cache."""
        if sequence.held is not None and self.cache is not None:
            self.cache.leave(sequence.held)
        sequence.counted, sequence.held, sequence.held_blocks = False, None, 0

    def _extend(self, sequence: Sequence) -> bool:
        """Make known what a counted sequence computed; False where that takes a table."""
        if sequence.held is None or self.cache is None:
            return True
        ids = sequence.known_ids()
        found = self.cache.extend(sequence.held, sequence.held_blocks, ids)
        if found is None:
            return False
        sequence.held, twice = found
        sequence.held_blocks = len(ids) // self._config.block_size
        if twice:  # another one has computed the same prompt meanwhile
            self.kv.renounce(twice)
            self.no_room = False
        return True

    def _hold(self, sequence: Sequence, known: BlockIds) -> None:
        """Let `sequence` use the blocks that the cache knows for what it computed itself.

        Another one may have computed the same prompt meanwhile. Kept twice, the cache's own copy
        would pass for free to be evicted while blocks after it are in use.
        """
        first = sequence.prefill_start // self._config.block_size
        if len(known) <= first:
            return
        own, known = sequence.table[first : len(known)], known[first:]
        twice = (own != known).nonzero()[0]
        if len(twice):
            self.kv.share(known[twice])
            self.kv.release(own[twice])
            own[twice] = known[twice]
            self.no_room = False

    def _lay_out(self, sequence: Sequence) -> None:
        """Give a counted sequence a block table, over the same blocks."""
        table, cached = self._new_table(sequence), sequence.held_blocks
        if sequence.held is not None and self.cache is not None:
            table[:cached] = self.cache.table(sequence.held)
            self.kv.share(table[:cached])
        self._leave(sequence)
        table[cached : sequence.blocks] = self.kv.settle(sequence.blocks - cached)
        sequence.table = table

    def _new_table(self, sequence: Sequence) -> NDArray[np.int32]:
        return np.empty(self._config.blocks_for(sequence.total_tokens), np.int32)
