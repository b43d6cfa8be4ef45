"""The prefix cache: a radix tree over whole blocks of token ids, least recently used evicted first.

    root ── [b0 b1 b2] ──┬── [b3 b4]          a node holds a run of blocks; children differ in
                         └── [b5]             their first block

A sequence that uses a node's blocks holds references to them, and to all before them. So within a
path references never grow towards the leaf, and eviction takes blocks off the tail of a leaf.

An answer that nobody has read hangs in the tree as a number of blocks. It is worked out when
somebody comes along whose ids may be the same, and never where nobody does before it is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from adapters.embedded.answer import Answer
from adapters.embedded.kv_blocks import BlockIds, KvBlocks


@dataclass(slots=True)
class _Unread:
    """An answer of which nobody knows the ids yet, and the end of the prompt that it answers."""

    answer: Answer
    tail: NDArray[np.int32]  # ids of the prompt behind its last whole block
    blocks: int  # that both fill, less what was evicted; promised, not settled which


class _Node:
    """A run of blocks and the token ids in them, as bytes: those compare and hash at once."""

    __slots__ = ("blocks", "children", "ids", "parent", "unread", "unread_child", "used")

    def __init__(self, ids: bytes, blocks: BlockIds, parent: _Node | None) -> None:
        self.ids = ids
        self.blocks = blocks
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.unread: _Unread | None = None  # in the place of ids and blocks
        self.unread_child: _Node | None = None  # never beside other children
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
            child = self._child(node, data, matched)
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
        """Make the whole blocks of `ids`, held in `table`, known; return those known before.

        For what the tree already knows it keeps its own blocks.
        """
        whole, data = self._whole(ids)
        node, matched, found = self._root, 0, [self._root.blocks]
        use = next(self._uses)
        while matched < whole:
            child = self._child(node, data, matched)
            if child is None:
                new = table[matched:whole].copy()
                self._add(node, data[matched * self._block_bytes :], new, use)
                break
            same = self._common(child.ids, data, matched)
            if same < len(child.blocks) and matched + same < whole:
                child = self._split(child, same)
            child.used = use
            found.append(child.blocks[:same])
            matched += same
            node = child
        return np.concatenate(found)

    def end_of(self, prompt: NDArray[np.int32]) -> _Node | None:
        """Return where the whole blocks of `prompt` end, if nothing is known to follow there.

        None: what follows `prompt` may be what followed it before, so its ids must be known.
        """
        whole, data = self._whole(prompt)
        node, matched = self._root, 0
        while matched < whole:
            child = node.children.get(self._block(data, matched))
            if child is None or not data.startswith(child.ids, matched * self._block_bytes):
                return None
            node, matched = child, matched + len(child.blocks)
        return None if node.children or node.unread_child else node

    def insert_unread(
        self, end: _Node, tail: NDArray[np.int32], answer: Answer, blocks: int
    ) -> None:
        """Make known, behind `end`, `blocks` free blocks of an answer whose prompt ends in `tail`.

        `tail` is what lies behind the prompt's last whole block.
        """
        use, node = next(self._uses), end
        while node.parent is not None:
            node.used, node = use, node.parent
        if not blocks:
            return
        child = _Node(b"", self._root.blocks, end)
        child.unread = _Unread(answer, tail.copy(), blocks)
        end.unread_child = child
        self._kv.promise(blocks)
        self._kv.hold_promised(blocks)
        self._note_leaf(child, use)

    def evict(self, blocks: int) -> None:
        """Free up to `blocks` blocks that no sequence uses, least recently used first.

        What a sequence uses counts as used now, so that it is not looked at again and again.
        """
        busy = []
        while blocks > 0 and self._leaves:
            used, order, node = self._leaves[0]
            if node.children or node.unread_child or node.parent is None:
                heapq.heappop(self._leaves)
            elif node.used != used:  # used since it was noted: note it anew
                heapq.heapreplace(self._leaves, (node.used, order, node))
            elif (idle := self._idle_tail(node, blocks)) == 0:
                heapq.heappop(self._leaves)
                busy.append((order, node))
            else:
                blocks -= self._trim(node, idle)
        for order, node in busy:
            node.used = next(self._uses)
            heapq.heappush(self._leaves, (node.used, order, node))

    def clear(self) -> None:
        """Forget everything; blocks that sequences still use stay theirs."""
        self._kv.drop(np.flatnonzero(self._kv.cached).astype(np.int32))
        for node in self._nodes():
            if node.unread:
                self._kv.evict_promised(node.unread.blocks)
        self._root = self._new_root()
        self._leaves.clear()

    def blocks(self) -> BlockIds:
        """Return all blocks that the tree knows, in no order; not those of unread answers."""
        return np.concatenate([node.blocks for node in self._nodes()])

    def _nodes(self) -> Iterator[_Node]:
        todo = [self._root]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            if node.unread_child:
                todo.append(node.unread_child)
            yield node

    def _child(self, node: _Node, data: bytes, at: int) -> _Node | None:
        """Return the child of `node` that begins with the block `at` of `data`."""
        if node.unread_child:
            self._read(node.unread_child)
        return node.children.get(self._block(data, at))

    def _read(self, node: _Node) -> None:
        """Work out the ids of an unread answer and settle which blocks they lie in."""
        unread, parent = node.unread, node.parent
        assert unread is not None  # noqa: S101  only such a node is asked for
        assert parent is not None  # noqa: S101  nor is it the root
        node.blocks = self._kv.settle_held(unread.blocks)
        table, size = self._path(node), self._kv.block_size
        answer, tokens = unread.answer, len(table) * size - unread.answer.prompt_tokens
        self._kv.write(table, answer.prompt_tokens - len(unread.tail), unread.tail)
        answer.work_out(self._kv, table, tokens)
        answer.write(self._kv, table, tokens)
        node.ids = np.concatenate([unread.tail, answer.ids[:tokens]]).tobytes()
        self._kv.hold(node.blocks)
        node.unread = parent.unread_child = None
        parent.children[self._block(node.ids, 0)] = node

    def _path(self, node: _Node | None) -> BlockIds:
        """Return the blocks from the root to the end of `node`."""
        found: list[BlockIds] = []
        while node is not None:
            found.append(node.blocks)
            node = node.parent
        return np.concatenate(found[::-1])

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
        parent.children[self._block(ids, 0)] = node
        self._kv.hold(blocks)
        self._note_leaf(node, use)

    def _note_leaf(self, node: _Node, use: int) -> None:
        node.used = use
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

    def _idle_tail(self, node: _Node, most: int) -> int:
        """Count the blocks, at most `most`, at the end of `node` that no sequence uses."""
        if node.unread:
            return min(most, node.unread.blocks)
        most = min(most, len(node.blocks))
        if not self._kv.references[node.blocks[-most]]:  # nor any after it
            return most
        tail = self._kv.references[node.blocks[-most:]]
        return most - int(np.count_nonzero(tail))

    def _trim(self, node: _Node, blocks: int) -> int:
        """Take `blocks` blocks that no sequence uses off the leaf `node`; return their number."""
        self.evicted_blocks += blocks
        if node.unread:
            self._kv.evict_promised(blocks)
            node.unread.blocks -= blocks
            if not node.unread.blocks:
                self._take_out(node)
            return blocks
        keep = len(node.blocks) - blocks
        self._kv.evict(node.blocks[keep:])
        if keep:
            node.ids, node.blocks = node.ids[: keep * self._block_bytes], node.blocks[:keep]
        else:
            self._take_out(node)
        return blocks

    def _take_out(self, node: _Node) -> None:
        """Remove a leaf; what it hung on may be one now."""
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        if node.unread:
            parent.unread_child = None
        else:
            del parent.children[self._block(node.ids, 0)]
        if not parent.children and parent.parent is not None:
            self._note_leaf(parent, parent.used)
