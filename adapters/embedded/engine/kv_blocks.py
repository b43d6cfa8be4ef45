"""The states of the KV blocks. This module alone changes them; the others ask it.

    state        references   cached   number   the block belongs to
    free             0          no       –      nobody
    reserved         –          no       no     one sequence, which knows only how many it has
    in use          ≥ 1         any      any    that many sequences, by block table or by run
    evictable        0          yes      any    the prefix cache alone

                reserve              name                cache
         free ───────────▶ reserved ───────▶ in use ◀──────────────┐
          ▲                   │               │  ▲   (marks only)──┘
          ├───────cancel──────┘               │  │
          ├───────release, not cached─────────┤  │ share, use
          │                                   ▼  │
          └───────evict─────────────────── evictable     (release or leave, cached)

A block without a number is *counted*: what nobody reads need not be stored, so it is enough to know
how many blocks it takes. A counted block becomes a *named* one when its tokens are to be read.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.int32]


class OutOfBlocksError(Exception):
    """The pool has fewer free blocks than requested; the caller did not check. A bug."""


class BlockRun:
    """The blocks of consecutive tokens in the prefix cache: all named, or all counted.

    A sequence without a block table uses whole runs, and counts as a user of each. All users of a
    named run together have one reference to each of its blocks.
    """

    __slots__ = ("blocks", "length", "users")

    def __init__(self, length: int) -> None:
        self.length = length  # in blocks
        self.users = 0
        self.blocks: BlockIds | None = None  # None: counted

    def split(self, head: BlockRun) -> None:
        """Move the first blocks of this run, as many as `head` is long, to `head`."""
        head.users = self.users
        if self.blocks is not None:
            head.blocks, self.blocks = self.blocks[: head.length], self.blocks[head.length :]
        self.length -= head.length


class KvBlocks:
    """A pool of `num_blocks` blocks.

    `region_blocks` None allocates block by block (paged). A number reserves that many neighbouring
    blocks for each sequence (contiguous), whatever it needs of them.
    """

    def __init__(self, num_blocks: int, region_blocks: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.region_blocks = region_blocks
        self.references = np.zeros(num_blocks, dtype=np.int32)
        self.cached = np.zeros(num_blocks, dtype=np.bool_)
        self.evictable = 0
        self.counted = 0  # blocks without a number, whatever their state
        step = region_blocks or 1
        starts = np.arange(0, num_blocks - step + 1, step, dtype=np.int32)
        self._free = starts[::-1].copy()  # a stack: the block freed last is taken first
        self._top = len(starts)

    @property
    def free(self) -> int:
        """Free blocks; for contiguous memory those in free regions."""
        return self._top * (self.region_blocks or 1) - self.counted

    @property
    def available(self) -> int:
        """Blocks that can be had now, by evicting cached ones where needed."""
        return self.free + self.evictable

    def allocate(self, count: int) -> BlockIds:
        """Return `count` free blocks, each with one reference. Raises `OutOfBlocksError`."""
        self.reserve(count)
        return self.name(count)

    def reserve(self, count: int) -> None:
        """Reserve `count` free blocks. Raises `OutOfBlocksError`."""
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.free} free")
        self.counted += count

    def cancel(self, count: int) -> None:
        """Free `count` reserved blocks."""
        self.counted -= count

    def name(self, count: int, references: int = 1) -> BlockIds:
        """Return the numbers of `count` blocks that were only counted."""
        self.counted -= count
        self._top -= count
        blocks = self._free[self._top : self._top + count][::-1].copy()
        self.references[blocks] = references
        return blocks

    def allocate_region(self) -> BlockIds:
        """Return one whole region of neighbouring blocks. Raises `OutOfBlocksError`."""
        if self.region_blocks is None or self._top == 0:
            raise OutOfBlocksError("no region is free")
        self._top -= 1
        first = int(self._free[self._top])
        blocks = np.arange(first, first + self.region_blocks, dtype=np.int32)
        self.references[blocks] = 1
        return blocks

    def share(self, blocks: BlockIds) -> None:
        """Add a reference to each of `blocks`; an evictable block is in use again."""
        references = self.references[blocks]
        self.evictable -= len(references) - int(np.count_nonzero(references))
        self.references[blocks] = references + 1

    def release(self, blocks: BlockIds) -> None:
        """Remove one reference from each of `blocks`; the last one frees what is not cached."""
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
        """Return a second block table over the same blocks; writing to either copies first."""
        self.share(table)
        return table.copy()

    def read_only(self, blocks: BlockIds) -> NDArray[np.bool_]:
        """Return which of `blocks` have more than one reader, the prefix cache being one."""
        read_only: NDArray[np.bool_] = (self.references[blocks] > 1) | self.cached[blocks]
        return read_only

    def idle(self, blocks: BlockIds) -> int:
        """Return how many of `blocks` no sequence uses."""
        return len(blocks) - int(np.count_nonzero(self.references[blocks]))

    def cache(self, run: BlockRun, blocks: BlockIds) -> None:
        """Let the prefix cache keep the named `blocks` as `run`: nobody may write to them now."""
        run.blocks = blocks
        self.cached[blocks] = True

    def cache_reserved(self, run: BlockRun) -> None:
        """Let the prefix cache keep as `run` blocks reserved for one sequence, now its user."""
        run.users = 1

    def name_run(self, run: BlockRun) -> BlockIds:
        """Return the numbers of the blocks of a counted run; `cache` them once they are written."""
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
        """Return how many blocks of `run` no sequence uses."""
        if run.users:
            return 0
        return run.length if run.blocks is None else self.idle(run.blocks)

    def idle_tail(self, run: BlockRun, most: int) -> int:
        """Return how many blocks, at most `most`, at the end of `run` no sequence uses.

        References never grow towards the end of a run.
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
        """Empty the prefix cache, which has `runs`; blocks that sequences use stay theirs."""
        blocks = np.flatnonzero(self.cached).astype(np.int32)
        self.cached[blocks] = False
        self._push(blocks[self.references[blocks] == 0])
        self.counted -= sum(run.length for run in runs if run.blocks is None)
        self.evictable = 0

    def _push(self, blocks: BlockIds) -> None:
        self._free[self._top : self._top + len(blocks)] = blocks
        self._top += len(blocks)
