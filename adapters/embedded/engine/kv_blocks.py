"""The KV block pool and the states of its blocks. Only this module changes the states.

    state        references   cached   number   owner
    free             0          no       –      –
    reserved         –          no       no     one sequence, which has only a count of blocks
    in use          ≥ 1         any      any    one or more sequences, by block table or by run
    evictable        0          yes      any    only the prefix cache

                reserve              name                cache
         free ───────────▶ reserved ───────▶ in use ◀──────────────┐
          ▲                   │               │  ▲   (marks only)──┘
          ├───────cancel──────┘               │  │
          ├───────release, not cached─────────┤  │ share, use
          │                                   ▼  │
          └───────evict─────────────────── evictable     (release or leave, cached)

A block without a number is *counted*: its content is not read, so only the number of such blocks is
stored. A counted block becomes a *named* block when its tokens must be read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.int32]


class OutOfBlocksError(Exception):
    """A request for more blocks than are free. It indicates a bug in the caller."""


class BlockRun:
    """The blocks of consecutive tokens in the prefix cache, either all named or all counted.

    A sequence without a block table uses whole runs and counts as a user of each run. All users of
    a named run together have one reference to each of its blocks.
    """

    __slots__ = ("blocks", "length", "users")

    def __init__(self, length: int) -> None:
        self.length = length  # in blocks
        self.users = 0
        self.blocks: BlockIds | None = None  # None: counted

    def split(self, head: BlockRun) -> None:
        """Move the first `head.length` blocks of this run to `head`."""
        head.users = self.users
        if self.blocks is not None:
            head.blocks, self.blocks = self.blocks[: head.length], self.blocks[head.length :]
        self.length -= head.length


class KvBlocks:
    """A pool of `num_blocks` blocks.

    With `region_blocks` None, single blocks are allocated (paged). With a number, each sequence
    reserves that many contiguous blocks, even if it needs fewer.
    """

    def __init__(self, num_blocks: int, region_blocks: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.region_blocks = region_blocks
        self.references = np.zeros(num_blocks, dtype=np.int32)
        self.cached = np.zeros(num_blocks, dtype=np.bool_)
        self.evictable = 0
        self.counted = 0  # blocks without a number, in any state
        step = region_blocks or 1
        starts = np.arange(0, num_blocks - step + 1, step, dtype=np.int32)
        self._free = starts[::-1].copy()  # a stack: the last freed block is allocated first
        self._top = len(starts)

    @property
    def free(self) -> int:
        """Free blocks; with contiguous memory the blocks in free regions."""
        return self._top * (self.region_blocks or 1) - self.counted

    @property
    def available(self) -> int:
        """Blocks that can be allocated now, including evictable ones."""
        return self.free + self.evictable

    def allocate(self, count: int) -> BlockIds:
        """Return `count` free blocks, each with one reference. Raises `OutOfBlocksError`."""
        self.reserve(count)
        return self.name(count)

    def reserve(self, count: int) -> None:
        """Reserve `count` free blocks. Raises `OutOfBlocksError`."""
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks requested, but only {self.free} are free")
        self.counted += count

    def cancel(self, count: int) -> None:
        """Free `count` reserved blocks."""
        self.counted -= count

    def name(self, count: int, references: int = 1) -> BlockIds:
        """Turn `count` counted blocks into named blocks and return their numbers."""
        self.counted -= count
        self._top -= count
        blocks = self._free[self._top : self._top + count][::-1].copy()
        self.references[blocks] = references
        return blocks

    def allocate_region(self) -> BlockIds:
        """Return one region of contiguous blocks. Raises `OutOfBlocksError`."""
        if self.region_blocks is None or self._top == 0:
            raise OutOfBlocksError("no region is free")
        self._top -= 1
        first = int(self._free[self._top])
        blocks = np.arange(first, first + self.region_blocks, dtype=np.int32)
        self.references[blocks] = 1
        return blocks

    def share(self, blocks: BlockIds) -> None:
        """Add a reference to each of `blocks`. An evictable block becomes in use."""
        references = self.references[blocks]
        self.evictable -= len(references) - int(np.count_nonzero(references))
        self.references[blocks] = references + 1

    def release(self, blocks: BlockIds) -> None:
        """Remove one reference from each of `blocks`. Free uncached blocks without references."""
        left = self.references[blocks]
        left -= 1
        self.references[blocks] = left
        unused = blocks[left == 0]
        if self.region_blocks is not None:
            self._push(unused[:: self.region_blocks])
            return
        cached = self.cached[unused]
        kept = int(np.count_nonzero(cached))
        self.evictable += kept
        if kept < len(unused):
            self._push(unused[~cached])

    def fork(self, table: BlockIds) -> BlockIds:
        """Return a second block table for the same blocks, with copy-on-write."""
        self.share(table)
        return table.copy()

    def read_only(self, blocks: BlockIds) -> NDArray[np.bool_]:
        """Return a mask of the blocks with several readers; the prefix cache counts as one."""
        read_only: NDArray[np.bool_] = (self.references[blocks] > 1) | self.cached[blocks]
        return read_only

    def idle(self, blocks: BlockIds) -> int:
        """Return the number of `blocks` that no sequence uses."""
        return len(blocks) - int(np.count_nonzero(self.references[blocks]))

    def cache(self, run: BlockRun, blocks: BlockIds) -> None:
        """Add the named `blocks` to the prefix cache as `run`. They become read-only."""
        run.blocks = blocks
        self.cached[blocks] = True

    def cache_reserved(self, run: BlockRun) -> None:
        """Add reserved blocks of one sequence to the prefix cache as `run` with that one user."""
        run.users = 1

    def name_run(self, run: BlockRun) -> BlockIds:
        """Return numbers for the blocks of a counted run. Call `cache` after writing them."""
        return self.name(run.length, 1 if run.users else 0)

    def use(self, run: BlockRun) -> None:
        """Add a user to `run`."""
        run.users += 1
        if run.users > 1:
            return
        if run.blocks is None:
            self.evictable -= run.length
        else:
            self.share(run.blocks)

    def leave(self, run: BlockRun) -> None:
        """Remove a user from `run`."""
        run.users -= 1
        if run.users:
            return
        if run.blocks is None:
            self.evictable += run.length
        else:
            self.release(run.blocks)

    def idle_in(self, run: BlockRun) -> int:
        """Return the number of blocks of `run` that no sequence uses."""
        if run.users:
            return 0
        return run.length if run.blocks is None else self.idle(run.blocks)

    def idle_tail(self, run: BlockRun, most: int) -> int:
        """Return the number of unused blocks at the end of `run`, at most `most`.

        Reference counts never increase towards the end of a run.
        """
        most = min(most, run.length)
        if run.users:
            return 0
        if run.blocks is None or not self.references[run.blocks[-most]]:
            return most
        return self.idle(run.blocks[-most:])

    def evict(self, run: BlockRun, count: int) -> None:
        """Free the last `count` blocks of `run`, which no sequence uses."""
        run.length -= count
        self.evictable -= count
        if run.blocks is None:
            self.counted -= count
            return
        run.blocks, evicted = run.blocks[: run.length], run.blocks[run.length :]
        self.cached[evicted] = False
        self._push(evicted)

    def forget_cached(self, runs: Iterable[BlockRun]) -> None:
        """Clear the prefix cache, which consists of `runs`. Sequences keep their blocks."""
        blocks = np.flatnonzero(self.cached).astype(np.int32)
        self.cached[blocks] = False
        self._push(blocks[self.references[blocks] == 0])
        self.counted -= sum(run.length for run in runs if run.blocks is None)
        self.evictable = 0

    def _push(self, blocks: BlockIds) -> None:
        self._free[self._top : self._top + len(blocks)] = blocks
        self._top += len(blocks)
