"""The blocks of each sequence, from its admission until they are freed.

A sequence whose output a client reads has a block table. Any other sequence is `counted`: its
cached prefix ends at a node of the prefix cache, and its other blocks are reserved without a
number. It gets a block table when its content must be read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks
from harness.adapters.embedded.engine.kv_contents import KvContents
from harness.adapters.embedded.engine.prefix_cache import NO_BLOCKS, Node, PrefixCache
from harness.adapters.embedded.engine.sequence import Sequence


class SequenceBlocks:
    """The allocator of blocks for sequences. Whole blocks stay in the prefix cache."""

    def __init__(self, config: EngineConfig) -> None:
        region = None if config.paged_kv else config.blocks_for(config.max_model_len)
        self.kv = KvBlocks(config.num_blocks, region)
        self.contents = KvContents(self.kv, config.block_size)
        caching = config.prefix_caching and config.paged_kv
        self.cache = PrefixCache(self.kv, self.contents) if caching else None
        self.exhausted = False  # a sequence was refused, and no block has been freed since
        self._config = config

    def reserve_prefill(self, sequence: Sequence, spared: int) -> int | None:
        """Reserve the blocks of a prefill; return the cached blocks, or None if blocks are missing.

        Leaves `spared` blocks free. A sequence whose output is not read gets no block table if its
        prefix ends at the end of a node. The last token is always computed.
        """
        if not sequence.output_read and self._config.paged_kv:
            if self.cache is None:
                return self._reserve_counted(sequence, None, 0, spared)
            if (found := self.cache.find(sequence.known_ids()[:-1])) is not None:
                return self._reserve_counted(sequence, *found, spared)
        return self.reserve_table(sequence, sequence.target_tokens, spared)

    def reserve_table(self, sequence: Sequence, tokens: int, spared: int) -> int | None:
        """Reserve blocks for `tokens` tokens as `reserve_prefill` does, with a block table."""
        if not self._config.paged_kv:
            return self._reserve_region(sequence)
        ids = sequence.known_ids()[:-1]
        cached = NO_BLOCKS if self.cache is None else self.cache.match(ids)
        blocks = self._config.blocks_for(tokens)
        spare = self.kv.available - (blocks - len(cached)) - spared
        if spare < len(cached) and spare < self.kv.idle(cached):
            self.exhausted = True
            return None
        self.kv.share(cached)
        sequence.table = self._new_table(sequence)
        sequence.table[: len(cached)] = cached
        self.reserve(blocks - len(cached))
        sequence.table[len(cached) : blocks] = self.kv.name(blocks - len(cached))
        sequence.blocks = blocks
        return len(cached)

    def reserve(self, count: int) -> None:
        """Reserve `count` available blocks. Evict cached blocks if necessary."""
        if self.cache is not None and count > self.kv.free:
            self.cache.evict(count - self.kv.free)
        self.kv.reserve(count)

    def store_prefill(self, sequence: Sequence) -> None:
        """Store the KV of a finished prefill, and cache its whole blocks."""
        if sequence.counted:
            if self._extend(sequence):
                return
            self._lay_out(sequence)
        sequence.write_known(self.contents, sequence.prefill_start)
        if self.cache is not None:
            self._use_cached(sequence, self.cache.insert(sequence.known_ids(), sequence.table))

    def name(self, sequence: Sequence) -> None:
        """Name the counted blocks of `sequence` after its prefill, to read and write them."""
        if sequence.counted:
            start = sequence.prefix_blocks * self._config.block_size
            self._lay_out(sequence)
            sequence.write_known(self.contents, start)
        if sequence.reserved_blocks:
            end = sequence.blocks + sequence.reserved_blocks
            sequence.table[sequence.blocks : end] = self.kv.name(sequence.reserved_blocks)
            sequence.blocks, sequence.reserved_blocks = end, 0

    def finish(self, sequence: Sequence) -> None:
        """Free the blocks of a finished sequence. Whole blocks stay in the prefix cache."""
        if not sequence.output_read and not sequence.output.known_tokens:
            self._finish_unread(sequence)
        else:
            self._finish_read(sequence)

    def free(self, sequence: Sequence) -> None:
        """Free all blocks of `sequence`."""
        if sequence.counted:
            self.kv.cancel(sequence.blocks - sequence.prefix_blocks)
            self._leave(sequence)
        else:
            self.kv.release(sequence.table[: sequence.blocks])
        self.kv.cancel(sequence.reserved_blocks)
        sequence.blocks = sequence.reserved_blocks = 0
        self.exhausted = False

    def _finish_read(self, sequence: Sequence) -> None:
        self.name(sequence)
        sequence.make_output(self.contents)
        if self.cache is not None:
            in_kv = sequence.target_tokens - 1  # all but the newest token
            self.cache.insert(sequence.known_ids()[:in_kv], sequence.table)
        self.free(sequence)

    def _finish_unread(self, sequence: Sequence) -> None:
        """Free the blocks as `finish` does, without computing the ids of the output."""
        if self.cache is None:
            self.free(sequence)
            return
        prompt, size = sequence.prompt_ids, self._config.block_size
        known = sequence.prefix_end
        end = self.cache.end_of(prompt) if known is None else self.cache.childless(known)
        if end is None:
            self._finish_read(sequence)
            return
        self.free(sequence)
        whole = len(prompt) // size
        blocks = (sequence.target_tokens - 1) // size - whole
        self.cache.insert_unread(end, prompt[whole * size :], sequence.output, blocks)

    def _reserve_region(self, sequence: Sequence) -> int | None:
        if self.kv.free == 0:
            self.exhausted = True
            return None
        sequence.table = self.kv.allocate_region()
        sequence.blocks = len(sequence.table)
        return 0

    def _reserve_counted(
        self, sequence: Sequence, end: Node | None, cached: int, spared: int
    ) -> int | None:
        """Reserve a prefill without block table after node `end`, which ends `cached` blocks."""
        missing = self._config.blocks_for(sequence.target_tokens) - cached
        spare = self.kv.available - missing - spared
        if spare < cached and spare < self._idle(end):
            self.exhausted = True
            return None
        if end is not None and self.cache is not None:
            self.cache.use(end)
        self.reserve(missing)
        sequence.counted, sequence.blocks = True, cached + missing
        sequence.prefix_end, sequence.prefix_blocks = end, cached
        return cached

    def _idle(self, end: Node | None) -> int:
        return 0 if end is None or self.cache is None else self.cache.idle(end)

    def _leave(self, sequence: Sequence) -> None:
        """End the counted state of a sequence and the use of its cached prefix."""
        if sequence.prefix_end is not None and self.cache is not None:
            self.cache.leave(sequence.prefix_end)
        sequence.counted, sequence.prefix_end, sequence.prefix_blocks = False, None, 0

    def _extend(self, sequence: Sequence) -> bool:
        """Cache the KV of a counted sequence; return False if that needs a block table."""
        if sequence.prefix_end is None or self.cache is None:
            return True
        ids = sequence.known_ids()
        found = self.cache.extend(sequence.prefix_end, sequence.prefix_blocks, ids)
        if found is None:
            return False
        sequence.prefix_end, twice = found
        sequence.prefix_blocks = len(ids) // self._config.block_size
        if twice:  # another sequence computed the same prompt at the same time
            self.kv.cancel(twice)
            self.exhausted = False
        return True

    def _use_cached(self, sequence: Sequence, known: BlockIds) -> None:
        """Replace blocks of `sequence` by the cached blocks with the same tokens, `known`.

        Another sequence may have computed the same prompt at the same time. With two copies, the
        cached copy would be evictable while later blocks are in use.
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
            self.exhausted = False

    def _lay_out(self, sequence: Sequence) -> None:
        """Give a counted sequence a block table for its blocks."""
        table, cached = self._new_table(sequence), sequence.prefix_blocks
        if sequence.prefix_end is not None and self.cache is not None:
            table[:cached] = self.cache.table(sequence.prefix_end)
            self.kv.share(table[:cached])
        self._leave(sequence)
        table[cached : sequence.blocks] = self.kv.name(sequence.blocks - cached)
        sequence.table = table

    def _new_table(self, sequence: Sequence) -> NDArray[np.int32]:
        return np.empty(self._config.blocks_for(sequence.total_tokens), np.int32)
