"""The content of the KV blocks: token ids, with copy-on-write for shared blocks.

A real engine stores keys and values in a block. This engine stores the token ids instead. The ids
that a sequence reads through its block table therefore show whether the correct blocks were reused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks

_MULTIPLIER = 0x9E3779B97F4A7C15 | 1  # odd, so its powers are never 0 modulo 2^64
_MASK = (1 << 64) - 1
_WRITES_AT_ONCE = 64  # writes are batched, because a large write costs little more than a small one
_EMPTY = -1  # a slot without a token; it adds 0 to a digest


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * base & _MASK)
    return np.array(powers, dtype=np.uint64)


class KvContents:
    """The token ids in `blocks`, of `block_size` tokens each."""

    def __init__(self, blocks: KvBlocks, block_size: int) -> None:
        self.block_size = block_size
        self._blocks = blocks
        self._ids = np.full((blocks.num_blocks, block_size), _EMPTY, dtype=np.int32)
        self._digests = np.zeros(blocks.num_blocks, dtype=np.uint64)
        self._unwritten: list[tuple[BlockIds, NDArray[np.int32]]] = []  # (blocks, their ids)
        self._weights = _powers(_MULTIPLIER, block_size).view(np.int64)
        self._weight_sums = np.cumsum(self._weights)
        self._block_weights = _powers(pow(_MULTIPLIER, block_size, 1 << 64), blocks.num_blocks)

    def write(self, table: BlockIds, start: int, ids: NDArray[np.int32]) -> None:
        """Store `ids` at the positions from `start` of the sequence with block table `table`.

        Clears the rest of the last block. A block with other readers is replaced in `table` by a
        copy.
        """
        end = start + len(ids)
        first, last = start // self.block_size, -(-end // self.block_size)
        if last == first:
            return
        blocks = table[first:last]
        read_only = self._blocks.read_only(blocks)
        if read_only.any():
            self._copy(blocks, read_only)
        slots = np.full((last - first) * self.block_size, _EMPTY, dtype=np.int32)
        offset = start - first * self.block_size
        if offset:
            self._write_out()
            slots[:offset] = self._ids[blocks[0], :offset]
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
            digest = self._digest(self._ids[table[whole : whole + 1], :rest])
            total += int(digest[0]) * int(self._block_weights[whole])
        return total & _MASK

    def token_ids(self, table: BlockIds, tokens: int) -> NDArray[np.int32]:
        """Return the first `tokens` ids in the blocks of `table`."""
        self._write_out()
        return self._ids[table[: -(-tokens // self.block_size)]].reshape(-1)[:tokens]

    def _write_out(self) -> None:
        """Perform the batched writes. The later of two writes to one block wins."""
        if self._unwritten:
            blocks = np.concatenate([blocks for blocks, _ in self._unwritten])
            rows = np.concatenate([slots for _, slots in self._unwritten])
            self._unwritten.clear()
            rows = rows.reshape(-1, self.block_size)
            self._ids[blocks] = rows
            self._digests[blocks] = self._digest(rows)

    def _digest(self, ids: NDArray[np.int32]) -> NDArray[np.uint64]:
        """Return the digest of each row of `ids`: the sum of (id + 1) × weight, modulo 2^64."""
        tokens = ids.shape[1]
        digest: NDArray[np.int64] = ids @ self._weights[:tokens]
        digest += self._weight_sums[tokens - 1]
        return digest.view(np.uint64)

    def _copy(self, blocks: BlockIds, read_only: NDArray[np.bool_]) -> None:
        """Replace each `read_only` block in the table slice `blocks` by a copy, in place."""
        old = blocks[read_only]
        new = self._blocks.allocate(len(old))
        self._write_out()
        self._ids[new] = self._ids[old]
        self._digests[new] = self._digests[old]
        self._blocks.release(old)
        blocks[read_only] = new
