"""The KV memory: blocks of token ids with reference counts, copied before a shared one is written.

A real engine keeps keys and values in a block. This one keeps the token ids they would be computed
from, so that what a sequence reads back through its block table tells whether the right blocks
were reused.

    references   cached   the block is
         0         no     free
         0         yes    evictable: only the prefix cache still knows it
        ≥ 1       any     in use by that many sequences

Where nothing has been written yet, it is enough to count: `promise` sets free blocks aside, and
`settle` says, when ids come, which ones they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.int32]

_MULTIPLIER = 0x9E3779B97F4A7C15 | 1  # odd, so that its powers never vanish modulo 2^64
_MASK = (1 << 64) - 1
_WRITES_AT_ONCE = 64  # collected, since a write of many blocks costs little more than one of few
_EMPTY = -1  # a slot without a token; adds nothing to a digest


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * base & _MASK)
    return np.array(powers, dtype=np.uint64)


class OutOfBlocksError(Exception):
    """The pool has fewer free blocks than were asked for; the caller did not check. A bug."""


class KvBlocks:
    """A pool of `num_blocks` blocks of `block_size` tokens.

    `region_blocks` None allocates block by block (paged). A number reserves that many neighbouring
    blocks for each sequence (contiguous), whatever it needs of them.
    """

    def __init__(self, num_blocks: int, block_size: int, region_blocks: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.region_blocks = region_blocks
        self.ids = np.full((num_blocks, block_size), _EMPTY, dtype=np.int32)
        self.references = np.zeros(num_blocks, dtype=np.int32)
        self.cached = np.zeros(num_blocks, dtype=np.bool_)
        self.evictable = 0
        self.promised = 0  # free blocks set aside, of which it is not settled which ones
        self._digests = np.zeros(num_blocks, dtype=np.uint64)
        self._unwritten: list[tuple[BlockIds, NDArray[np.int32]]] = []  # (blocks, their ids)
        self._weights = _powers(_MULTIPLIER, block_size).view(np.int64)
        self._weight_sums = np.cumsum(self._weights)
        self._block_weights = _powers(pow(_MULTIPLIER, block_size, 1 << 64), num_blocks)
        step = region_blocks or 1
        starts = np.arange(0, num_blocks - step + 1, step, dtype=np.int32)
        self._free = starts[::-1].copy()  # a stack: the block freed last is taken first
        self._top = len(starts)

    @property
    def free(self) -> int:
        """Blocks that nobody holds; for contiguous memory those in free regions."""
        return self._top * (self.region_blocks or 1) - self.promised

    @property
    def available(self) -> int:
        """Blocks that can be had now, by evicting cached ones where needed."""
        return self.free + self.evictable

    def allocate(self, count: int) -> BlockIds:
        """Return `count` blocks, each with one reference. Raises `OutOfBlocksError`."""
        self.promise(count)
        return self.settle(count)

    def promise(self, count: int) -> None:
        """Set `count` free blocks aside. Raises `OutOfBlocksError`."""
        if count > self.free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.free} free")
        self.promised += count

    def settle(self, count: int) -> BlockIds:
        """Return `count` of the promised blocks, each with one reference."""
        self.promised -= count
        self._top -= count
        blocks = self._free[self._top : self._top + count][::-1].copy()
        self.references[blocks] = 1
        return blocks

    def renounce(self, count: int) -> None:
        """Give back `count` promised blocks."""
        self.promised -= count

    def hold_promised(self, count: int) -> None:
        """Note that `count` promised blocks are known to the prefix cache, and used by nobody."""
        self.evictable += count

    def use_promised(self, count: int) -> None:
        """Note that of `count` promised blocks in the prefix cache some sequence makes use."""
        self.evictable -= count

    def evict_promised(self, count: int) -> None:
        """Forget that the prefix cache knows `count` promised blocks; they become free."""
        self.evictable -= count
        self.promised -= count

    def settle_held(self, count: int, references: int) -> BlockIds:
        """Return `count` blocks that the prefix cache knew as promised, and still does."""
        blocks = self.settle(count)
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

    def idle(self, blocks: BlockIds) -> int:
        """Return how many of `blocks` no sequence uses."""
        return len(blocks) - int(np.count_nonzero(self.references[blocks]))

    def share(self, blocks: BlockIds) -> None:
        """Add a reference to each of `blocks`; an evictable block is in use again."""
        held = self.references[blocks]
        self.evictable -= len(held) - int(np.count_nonzero(held))
        self.references[blocks] = held + 1

    def release(self, blocks: BlockIds) -> None:
        """Take one reference from each of `blocks`; those that nobody holds become free."""
        left = self.references[blocks]
        left -= 1
        self.references[blocks] = left
        unused = blocks[left == 0]
        if self.region_blocks is not None:
            self._push(unused[:: self.region_blocks])
            return
        held = self.cached[unused]
        kept = int(np.count_nonzero(held))
        self.evictable += kept
        if kept < len(unused):
            self._push(unused[~held])

    def hold(self, blocks: BlockIds) -> None:
        """Mark `blocks` as known to the prefix cache; they stay when no sequence uses them."""
        self.cached[blocks] = True

    def drop(self, blocks: BlockIds) -> None:
        """Forget that the prefix cache knows `blocks`; those that no sequence uses become free."""
        self.cached[blocks] = False
        unused = blocks[self.references[blocks] == 0]
        self.evictable -= len(unused)
        self._push(unused)

    def evict(self, blocks: BlockIds) -> None:
        """Forget that the prefix cache knows `blocks`, which no sequence uses; they become free."""
        self.cached[blocks] = False
        self.evictable -= len(blocks)
        self._push(blocks)

    def fork(self, table: BlockIds) -> BlockIds:
        """Return a second block table over the same blocks; writing to either copies first."""
        self.share(table)
        return table.copy()

    def write(self, table: BlockIds, start: int, ids: NDArray[np.int32]) -> None:
        """Store `ids` at positions `start`… of the sequence whose blocks are `table`.

        What lay behind them in their last block is forgotten. A block that someone else holds as
        well is replaced in `table` by a copy of its own.
        """
        end = start + len(ids)
        first, last = start // self.block_size, -(-end // self.block_size)
        if last == first:
            return
        blocks = table[first:last]
        if self._shared(blocks):
            self._own(blocks)
        slots = np.full((last - first) * self.block_size, _EMPTY, dtype=np.int32)
        offset = start - first * self.block_size
        if offset:
            self._write_out()
            slots[:offset] = self.ids[blocks[0], :offset]
        slots[offset : offset + len(ids)] = ids
        self._unwritten.append((blocks.copy(), slots))
        if len(self._unwritten) == _WRITES_AT_ONCE:
            self._write_out()

    def read(self, table: BlockIds, tokens: int) -> int:
        """Return a 64-bit hash of the first `tokens` ids, read through the block table."""
        self._write_out()
        whole, rest = divmod(tokens, self.block_size)
        total = int(self._digests[table[:whole]] @ self._block_weights[:whole])
        if rest:
            digest = self._digest(self.ids[table[whole : whole + 1], :rest])
            total += int(digest[0]) * int(self._block_weights[whole])
        return total & _MASK

    def token_ids(self, table: BlockIds, tokens: int) -> NDArray[np.int32]:
        """Return the first `tokens` ids as they lie in the blocks of `table`."""
        self._write_out()
        return self.ids[table[: -(-tokens // self.block_size)]].reshape(-1)[:tokens]

    def _write_out(self) -> None:
        """Store what was written since the last time, all at once; of a block the last word."""
        if self._unwritten:
            blocks = np.concatenate([blocks for blocks, _ in self._unwritten])
            rows = np.concatenate([slots for _, slots in self._unwritten])
            self._unwritten.clear()
            rows = rows.reshape(-1, self.block_size)
            self.ids[blocks] = rows
            self._digests[blocks] = self._digest(rows)

    def _digest(self, ids: NDArray[np.int32]) -> NDArray[np.uint64]:
        """Return the digest of each row of `ids`: the sum of (id + 1) × weight, modulo 2^64."""
        tokens = ids.shape[1]
        digest: NDArray[np.int64] = ids @ self._weights[:tokens]
        digest += self._weight_sums[tokens - 1]
        return digest.view(np.uint64)

    def _shared(self, blocks: BlockIds) -> bool:
        return bool(
            np.count_nonzero(self.references[blocks] > 1) or np.count_nonzero(self.cached[blocks])
        )

    def _own(self, blocks: BlockIds) -> None:
        """Replace, in place, each shared block of the table slice `blocks` by a copy."""
        shared = np.flatnonzero((self.references[blocks] > 1) | self.cached[blocks])
        old = blocks[shared].copy()
        new = self.allocate(len(old))
        self._write_out()
        self.ids[new] = self.ids[old]
        self._digests[new] = self._digests[old]
        self.release(old)
        blocks[shared] = new

    def _push(self, blocks: BlockIds) -> None:
        self._free[self._top : self._top + len(blocks)] = blocks
        self._top += len(blocks)
