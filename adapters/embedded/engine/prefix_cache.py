"""The prefix cache: a radix tree over whole blocks of token ids, least recently used evicted first.

    root ── [b0 b1 b2] ──┬── [b3 b4]          a node holds a run of blocks; children differ in
                         └── [b5]             their first block

A sequence that uses a node's blocks holds references to them, and to all before them. So within a
path references never grow towards the leaf, and eviction takes blocks off the tail of a leaf.

What nobody has read hangs in the tree as a number of blocks: an answer without its ids, which are
worked out when somebody comes along whose ids may be the same; a prompt with its ids, which are
stored when somebody reads them. Neither is ever done where nobody comes before the eviction.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.answer import Answer
from harness.adapters.embedded.engine.cache_nodes import (
    NO_BLOCKS,
    Node,
    Unread,
    enter,
    idle_blocks,
    leave,
    path_to,
)
from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks


class PrefixCache:
    """Finds the longest cached prefix of a prompt, in whole blocks."""

    def __init__(self, kv: KvBlocks) -> None:
        self._kv = kv
        self._block_bytes = kv.block_size * np.dtype(np.int32).itemsize
        self._root = self._new_root()
        self._uses = count(1)
        self._order = count()  # breaks ties in the heap
        self._leaves: list[tuple[int, int, Node]] = []  # (last use, order, node), some out of date
        self.evicted_blocks = 0

    def match(self, ids: NDArray[np.int32]) -> BlockIds:
        """Return the cached blocks of the longest prefix of `ids`, in whole blocks.

        The caller shares them before anything else can evict them.
        """
        whole, data = self._whole(ids)
        node, matched, found = self._root, 0, [NO_BLOCKS]
        use = next(self._uses)
        while matched < whole:
            child = self._child(node, data, matched)
            if child is None:
                break
            same = self._common(child.ids, data, matched)
            child.used = use
            found.append(self._settled(child)[:same])
            matched += same
            if same < child.length:
                break
            node = child
        return np.concatenate(found)

    def find(self, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Return where the longest cached prefix of `ids` ends, and its blocks.

        None where that is within a node: it takes a block table to use a part of one.
        """
        whole, data = self._whole(ids)
        node, matched = self._root, 0
        use = next(self._uses)
        while matched < whole:
            child = self._child(node, data, matched)
            if child is None:
                break
            if not data.startswith(child.ids, matched * self._block_bytes):
                return None
            child.used = use
            matched += child.length
            node = child
        return node, matched

    def extend(self, end: Node, known: int, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Make the whole blocks of `ids` known, of which `known` blocks end in `end`, in use.

        The others are free ones, promised to the sequence that uses `end`, which then uses what is
        returned: where `ids` end, and how many of the promised blocks were known meanwhile. None
        where that is within a node.
        """
        whole, size = len(ids) // self._kv.block_size, self._kv.block_size
        data = ids[known * size : whole * size].tobytes()
        node, at, more = end, 0, whole - known
        use = next(self._uses)
        while at < more:
            child = self._child(node, data, at)
            if child is None:
                break
            same = self._common(child.ids, data, at)
            if same < child.length:
                if at + same == more:
                    return None
                child = self._split(child, same)
            node, at = child, at + same
        enter(node, self._kv, end)
        if at < more:
            node = self._add(node, data[at * self._block_bytes :], more - at, use)
            node.users = 1
        self._touch(node, use)
        return node, at

    def enter(self, end: Node) -> None:
        """Let one more sequence use everything up to `end`."""
        enter(end, self._kv)

    def leave(self, end: Node) -> None:
        """Let one sequence less use everything up to `end`."""
        leave(end, self._kv)

    def idle(self, end: Node) -> int:
        """Return how many blocks up to `end` no sequence uses."""
        return idle_blocks(end, self._kv)

    def insert(self, ids: NDArray[np.int32], table: BlockIds) -> BlockIds:
        """Make the whole blocks of `ids`, held in `table`, known; return those known before.

        For what the tree already knows it keeps its own blocks.
        """
        whole, data = self._whole(ids)
        node, matched, found = self._root, 0, [NO_BLOCKS]
        use = next(self._uses)
        while matched < whole:
            child = self._child(node, data, matched)
            if child is None:
                new = table[matched:whole].copy()
                self._kv.hold(new)
                self._add(node, data[matched * self._block_bytes :], len(new), use).settle(new)
                break
            same = self._common(child.ids, data, matched)
            if same < child.length and matched + same < whole:
                child = self._split(child, same)
            child.used = use
            found.append(self._settled(child)[:same])
            matched += same
            node = child
        return np.concatenate(found)

    def end_of(self, prompt: NDArray[np.int32]) -> Node | None:
        """Return where the whole blocks of `prompt` end, if nothing is known to follow there.

        None: what follows `prompt` may be what followed it before, so its ids must be known.
        """
        whole, data = self._whole(prompt)
        node, matched = self._root, 0
        while matched < whole:
            child = node.children.get(self._block(data, matched))
            if child is None or not data.startswith(child.ids, matched * self._block_bytes):
                return None
            node, matched = child, matched + child.length
        return self.childless(node)

    def childless(self, node: Node) -> Node | None:
        """Return `node` if nothing is known to follow it."""
        return None if node.children or node.unread_child else node

    def insert_unread(
        self, end: Node, tail: NDArray[np.int32], answer: Answer, blocks: int
    ) -> None:
        """Make known, behind `end`, `blocks` free blocks of an answer whose prompt ends in `tail`.

        `tail` is what lies behind the prompt's last whole block.
        """
        use = next(self._uses)
        self._touch(end, use)
        if not blocks:
            return
        child = Node(b"", blocks, end)
        child.unread = Unread(answer, tail.copy())
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
            if not node.settled:
                self._kv.evict_promised(node.length)
        self._root = self._new_root()
        self._leaves.clear()

    def blocks(self) -> BlockIds:
        """Return all settled blocks that the tree knows, in no order."""
        return np.concatenate([node.blocks for node in self._nodes()])

    def _nodes(self) -> Iterator[Node]:
        todo = [self._root]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            if node.unread_child:
                todo.append(node.unread_child)
            yield node

    def _child(self, node: Node, data: bytes, at: int) -> Node | None:
        """Return the child of `node` that begins with the block `at` of `data`."""
        if node.unread_child:
            self._read(node.unread_child)
        return node.children.get(self._block(data, at))

    def _read(self, node: Node) -> None:
        """Work out the ids of an unread answer and settle which blocks they lie in."""
        unread, parent = node.unread, node.parent
        assert unread is not None  # noqa: S101  only such a node is asked for
        assert parent is not None  # noqa: S101  nor is it the root
        node.settle(self._kv.settle_held(node.length, 0))
        table, size = self.table(node), self._kv.block_size
        answer, tokens = unread.answer, len(table) * size - unread.answer.prompt_tokens
        self._kv.write(table, answer.prompt_tokens - len(unread.tail), unread.tail)
        answer.work_out(self._kv, table, tokens)
        answer.write(self._kv, table, tokens)
        node.ids = np.concatenate([unread.tail, answer.ids[:tokens]]).tobytes()
        self._kv.hold(node.blocks)
        node.unread = parent.unread_child = None
        parent.children[self._block(node.ids, 0)] = node

    def table(self, end: Node) -> BlockIds:
        """Return the blocks up to `end`, settled."""
        return np.concatenate([NO_BLOCKS, *(self._settled(node) for node in path_to(end))])

    def _settled(self, node: Node) -> BlockIds:
        """Return the blocks of a node whose ids are known; what was only counted is stored now."""
        if not node.settled:
            node.settle(self._kv.settle_held(node.length, 1 if node.users else 0))
            self._kv.write(node.blocks, 0, np.frombuffer(node.ids, np.int32))
            self._kv.hold(node.blocks)
        return node.blocks

    def _touch(self, node: Node, use: int) -> None:
        """Note that everything up to `node` was used."""
        while node.parent is not None:
            node.used, node = use, node.parent

    def _new_root(self) -> Node:
        root = Node(b"", 0, None)
        root.settle(NO_BLOCKS)
        return root

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

    def _add(self, parent: Node, ids: bytes, blocks: int, use: int) -> Node:
        """Hang a run of `blocks` blocks, not settled yet, on `parent`, and return it."""
        node = Node(ids, blocks, parent)
        parent.children[self._block(ids, 0)] = node
        self._note_leaf(node, use)
        return node

    def _note_leaf(self, node: Node, use: int) -> None:
        node.used = use
        heapq.heappush(self._leaves, (use, next(self._order), node))

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` blocks; return the upper part, whose child is the rest."""
        parent = node.parent
        assert parent is not None  # noqa: S101  the root holds no blocks, so it is never split
        cut = at * self._block_bytes
        upper = Node(node.ids[:cut], at, parent)
        upper.used, upper.users = node.used, node.users
        upper.blocks, upper.settled = node.blocks[:at], node.settled
        parent.children[self._block(upper.ids, 0)] = upper
        node.ids, node.blocks, node.parent = node.ids[cut:], node.blocks[at:], upper
        node.length -= at
        upper.children[self._block(node.ids, 0)] = node
        return upper

    def _idle_tail(self, node: Node, most: int) -> int:
        """Count the blocks, at most `most`, at the end of `node` that no sequence uses."""
        most = min(most, node.length)
        if node.users:
            return 0
        if not node.settled:
            return most
        if not self._kv.references[node.blocks[-most]]:  # nor any after it
            return most
        tail = self._kv.references[node.blocks[-most:]]
        return most - int(np.count_nonzero(tail))

    def _trim(self, node: Node, blocks: int) -> int:
        """Take `blocks` blocks that no sequence uses off the leaf `node`; return their number."""
        self.evicted_blocks += blocks
        keep = node.length - blocks
        if node.settled:
            self._kv.evict(node.blocks[keep:])
        else:
            self._kv.evict_promised(blocks)
        if keep:
            node.cut(keep, self._block_bytes)
        else:
            self._take_out(node)
        return blocks

    def _take_out(self, node: Node) -> None:
        """Remove a leaf; what it hung on may be one now."""
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        if node.unread:
            parent.unread_child = None
        else:
            del parent.children[self._block(node.ids, 0)]
        if not parent.children and parent.parent is not None:
            self._note_leaf(parent, parent.used)
