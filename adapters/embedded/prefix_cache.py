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
    """A run of blocks and the token ids in them."""

    __slots__ = ("blocks", "children", "ids", "parent", "used")

    def __init__(self, ids: NDArray[np.int32], blocks: BlockIds, parent: _Node | None) -> None:
        self.ids = ids  # shape (blocks, block size)
        self.blocks = blocks
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.used = 0  # when it was used last, in uses of the cache


class PrefixCache:
    """Finds the longest cached prefix of a prompt, in whole blocks."""

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._root = self._new_root()
        self._uses = count(1)
        self._order = count()  # breaks ties in the heap
        self._leaves: list[tuple[int, int, _Node]] = []  # (last use, order, node), some out of date
        self.evicted_blocks = 0

    def match(self, ids: NDArray[np.int32]) -> BlockIds:
        """Return the cached blocks of the longest prefix of `ids`, in whole blocks.

        The caller shares them before anything else can evict them.
        """
        rows = self._rows(ids)
        node, matched, found = self._root, 0, [self._root.blocks]
        use = next(self._uses)
        while matched < len(rows):
            child = node.children.get(rows[matched].tobytes())
            if child is None:
                break
            same = _common(child.ids, rows[matched:])
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
        rows = self._rows(ids)
        node, matched, found = self._root, 0, [self._root.blocks]
        use = next(self._uses)
        while matched < len(rows):
            child = node.children.get(rows[matched].tobytes())
            if child is None:
                found.append(table[matched : len(rows)].copy())
                self._add(node, rows[matched:], found[-1], use)
                break
            same = _common(child.ids, rows[matched:])
            if same < len(child.blocks) and matched + same < len(rows):
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
        size = self._kv.block_size
        return _Node(np.empty((0, size), np.int32), np.empty(0, np.int32), None)

    def _rows(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        size = self._kv.block_size
        whole = len(ids) // size
        return np.ascontiguousarray(ids[: whole * size]).reshape(whole, size)

    def _add(self, parent: _Node, rows: NDArray[np.int32], blocks: BlockIds, use: int) -> None:
        node = _Node(rows.copy(), blocks, parent)
        node.used = use
        parent.children[rows[0].tobytes()] = node
        self._kv.hold(blocks)
        heapq.heappush(self._leaves, (use, next(self._order), node))

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut `node` after `at` blocks; return the upper part, whose child is the rest."""
        parent = node.parent
        assert parent is not None  # noqa: S101  the root holds no blocks, so it is never split
        upper = _Node(node.ids[:at], node.blocks[:at], parent)
        upper.used = node.used
        parent.children[upper.ids[0].tobytes()] = upper
        node.ids, node.blocks, node.parent = node.ids[at:], node.blocks[at:], upper
        upper.children[node.ids[0].tobytes()] = node
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
        first = node.ids[0].tobytes()
        node.ids, node.blocks = node.ids[:keep], node.blocks[:keep]
        if keep:
            heapq.heappush(self._leaves, (node.used, next(self._order), node))
            return blocks
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        del parent.children[first]
        if not parent.children and parent.parent is not None:
            heapq.heappush(self._leaves, (parent.used, next(self._order), parent))
        return blocks


def _common(known: NDArray[np.int32], rows: NDArray[np.int32]) -> int:
    """Return how many blocks `known` and `rows` have in common from their start."""
    length = min(len(known), len(rows))
    differing = np.flatnonzero((known[:length] != rows[:length]).any(axis=1))
    return int(differing[0]) if len(differing) else length
