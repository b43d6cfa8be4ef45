"""The prefix cache: a radix tree over whole blocks of token ids, least recently used evicted first.

    root ── [b0 b1 b2] ──┬── [b3 b4]          a node holds a run of blocks; children differ in
                         └── [b5]             their first block

A sequence that uses a node's blocks holds references to them, and to all before them. So within a
path references never grow towards the leaf, and eviction takes blocks off the tail of a leaf.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
from numpy.typing import NDArray

from adapters.embedded.kv_blocks import BlockIds, KvBlocks


class _Node:
    """A run of blocks and the token ids in them, as bytes: those compare and hash at once."""

    __slots__ = ("blocks", "children", "ids", "parent", "used")

    def __init__(self, ids: bytes, blocks: BlockIds, parent: _Node | None) -> None:
        self.ids = ids
        self.blocks = blocks
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.used = 0  # when it was used last, in uses of the cache


class PrefixCache:
    """Finds the longest cached prefix of a prompt, in whole blocks."""

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._block_bytes = kv.block_size * np.dtype(np.int32).itemsize
        self._root = self._new_root()
        self._uses = count(1)
        self._order = count()  # breaks ties in the heap
        self._leaves: list[tuple[int, int, _Node]] = []  # (last use, order, node), some out of date
        self.evicted_blocks = 0

    def match(self, ids: NDArray[np.int32]) -> BlockIds:
        """Return the cached blocks of the longest prefix of `ids`, in whole blocks.

        The caller shares them before anything else can evict them.
        """
        whole, data = self._whole(ids)
        node, matched, found = self._root, 0, [self._root.blocks]
        use = next(self._uses)
        while matched < whole:
            child = node.children.get(self._block(data, matched))
            if child is None:
                break
            same = self._common(child.ids, data, matched)
            child.used = use
            found.append(child.blocks[:same])
            matched += same
            if same < len(child.blocks):
                break
            node = child
        return np.concatenate(found)

    def insert(self, ids: NDArray[np.int32], table: BlockIds) -> BlockIds:
        """Make the whole blocks of `ids`, held in `table`, known for reuse; return the tree's own.

        Where the tree already knows a prefix, it keeps its own blocks for it.
        """
        whole, data = self._whole(ids)
        node, matched, found = self._root, 0, [self._root.blocks]
        use = next(self._uses)
        while matched < whole:
            child = node.children.get(self._block(data, matched))
            if child is None:
                found.append(table[matched:whole].copy())
                self._add(node, data[matched * self._block_bytes :], found[-1], use)
                break
            same = self._common(child.ids, data, matched)
            if same < len(child.blocks) and matched + same < whole:
                child = self._split(child, same)
            child.used = use
            found.append(child.blocks[:same])
            matched += same
            node = child
        return np.concatenate(found)

    def evict(self, blocks: int) -> None:
        """Free up to `blocks` blocks that no sequence uses, least recently used first.

        What a sequence uses counts as used now, so that it is not looked at again and again.
        """
        busy = []
        while blocks > 0 and self._leaves:
            used, order, node = heapq.heappop(self._leaves)
            if node.children or node.parent is None or not len(node.blocks):
                continue
            if node.used != used:  # used since it was noted: note it anew
                heapq.heappush(self._leaves, (node.used, order, node))
                continue
            idle = self._idle_tail(node)
            if idle == 0:
                busy.append((order, node))
                continue
            blocks -= self._trim(node, min(idle, blocks))
        for order, node in busy:
            node.used = next(self._uses)
            heapq.heappush(self._leaves, (node.used, order, node))

    def clear(self) -> None:
        """Forget everything; blocks that sequences still use stay theirs."""
        self._kv.drop(np.flatnonzero(self._kv.cached).astype(np.int32))
        self._root = self._new_root()
        self._leaves.clear()

    def blocks(self) -> BlockIds:
        """Return all blocks that the tree knows, in no order."""
        found, todo = [self._root.blocks], [self._root]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            found.append(node.blocks)
        return np.concatenate(found)

    def _new_root(self) -> _Node:
        return _Node(b"", np.empty(0, np.int32), None)

    def _whole(self, ids: NDArray[np.int32]) -> tuple[int, bytes]:
        """Return how many whole blocks `ids` fill, and the bytes of those."""
        whole = len(ids) // self._kv.block_size
        return whole, ids[: whole * self._kv.block_size].tobytes()

    def _block(self, data: bytes, number: int) -> bytes:
        return data[number * self._block_bytes : (number + 1) * self._block_bytes]

    def _common(self, known: bytes, data: bytes, at: int) -> int:
        """Return how many blocks `known` has in common with `data` from its block `at` on."""
        start = at * self._block_bytes
        if data.startswith(known, start):
            return len(known) // self._block_bytes
        length = min(len(known), len(data) - start)
        ours = np.frombuffer(known, np.int32, length // 4)
        differing = np.flatnonzero(ours != np.frombuffer(data, np.int32, length // 4, start))
        tokens = int(differing[0]) if len(differing) else len(ours)
        return tokens // self._kv.block_size

    def _add(self, parent: _Node, ids: bytes, blocks: BlockIds, use: int) -> None:
        node = _Node(ids, blocks, parent)
        node.used = use
        parent.children[self._block(ids, 0)] = node
        self._kv.hold(blocks)
        heapq.heappush(self._leaves, (use, next(self._order), node))

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut `node` after `at` blocks; return the upper part, whose child is the rest."""
        parent = node.parent
        assert parent is not None  # noqa: S101  the root holds no blocks, so it is never split
        cut = at * self._block_bytes
        upper = _Node(node.ids[:cut], node.blocks[:at], parent)
        upper.used = node.used
        parent.children[self._block(upper.ids, 0)] = upper
        node.ids, node.blocks, node.parent = node.ids[cut:], node.blocks[at:], upper
        upper.children[self._block(node.ids, 0)] = node
        return upper

    def _idle_tail(self, node: _Node) -> int:
        """Count the blocks at the end of `node` that no sequence uses."""
        if self._kv.references[node.blocks[-1]]:  # and so are all before it
            return 0
        in_use = np.flatnonzero(self._kv.references[node.blocks])
        return len(node.blocks) - (int(in_use[-1]) + 1 if len(in_use) else 0)

    def _trim(self, node: _Node, blocks: int) -> int:
        """Take `blocks` blocks off the end of the leaf `node`; return their number."""
        keep = len(node.blocks) - blocks
        self._kv.drop(node.blocks[keep:])
        self.evicted_blocks += blocks
        first = self._block(node.ids, 0)
        node.ids, node.blocks = node.ids[: keep * self._block_bytes], node.blocks[:keep]
        if keep:
            heapq.heappush(self._leaves, (node.used, next(self._order), node))
            return blocks
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        del parent.children[first]
        if not parent.children and parent.parent is not None:
            heapq.heappush(self._leaves, (parent.used, next(self._order), parent))
        return blocks
