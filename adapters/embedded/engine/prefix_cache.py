"""The prefix cache: a radix tree over whole blocks of token ids with LRU eviction.

    root ── [b0 b1 b2] ──┬── [b3 b4]          a node is a run of blocks; children differ in
                         └── [b5]             their first block

A sequence that uses the blocks of a node also uses all blocks before them. Reference counts
therefore never increase towards a leaf, and eviction removes blocks from the end of a leaf.

A run that was never read is only counted. The ids of a prompt are stored on the first read. The ids
of an output are computed when a prompt arrives that may share them. A run that is evicted before
costs neither.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.kv_blocks import BlockIds, BlockRun, KvBlocks
from harness.adapters.embedded.engine.kv_contents import KvContents
from harness.adapters.embedded.engine.output_tokens import OutputTokens

NO_BLOCKS: BlockIds = np.empty(0, np.int32)


@dataclass(slots=True)
class Unread:
    """An output without computed ids, and the end of its prompt."""

    output: OutputTokens
    tail: NDArray[np.int32]  # ids of the prompt after its last whole block


class Node(BlockRun):
    """A run of blocks with its token ids, stored as bytes for fast comparison and hashing."""

    __slots__ = ("children", "ids", "parent", "unread", "unread_child", "used")

    def __init__(self, ids: bytes, length: int, parent: Node | None) -> None:
        super().__init__(length)
        self.ids = ids
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.unread: Unread | None = None  # set instead of `ids`
        self.unread_child: Node | None = None  # set only if `children` is empty
        self.used = 0  # time of the last use, counted in uses of the cache

    def up_to(self, above: Node | None = None) -> list[Node]:
        """Return this node and its ancestors below `above`, without the root."""
        node, path = self, []
        while node.parent is not None and node is not above:
            path.append(node)
            node = node.parent
        return path


class PrefixCache:
    """A cache of prefixes that finds the longest cached prefix of a prompt, in whole blocks."""

    def __init__(self, kv: KvBlocks, contents: KvContents) -> None:
        self._kv = kv
        self._contents = contents
        self._block_size = contents.block_size
        self._block_bytes = self._block_size * np.dtype(np.int32).itemsize
        self._root = self._new_root()
        self._uses = count(1)
        self._order = count()  # resolves ties in the heap
        self._leaves: list[tuple[int, int, Node]] = []  # heap of (last use, order, node); may lag
        self.evicted_blocks = 0

    def match(self, ids: NDArray[np.int32]) -> BlockIds:
        """Return the cached blocks of the longest prefix of `ids`, in whole blocks.

        The caller must share them before the next eviction.
        """
        use = next(self._uses)
        path, _, last = self._descend(self._root, *self._whole(ids))
        return self._blocks_of(path, last, use)

    def find(self, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Return the last node of the longest cached prefix of `ids`, and its number of blocks.

        Returns None if the prefix ends inside a node, because only a block table can use a part of
        a node.
        """
        use = next(self._uses)
        path, blocks, last = self._descend(self._root, *self._whole(ids))
        if last < path[-1].length:
            return None
        for node in path:
            node.used = use
        return path[-1], blocks

    def extend(self, end: Node, known: int, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Cache the whole blocks of `ids`; return the new last node and the number of spare blocks.

        The first `known` blocks end at node `end`, which the sequence uses. The other blocks are
        reserved for the sequence. Spare blocks are reserved blocks that another sequence has cached
        with the same ids. Returns None if `ids` end inside a node.
        """
        whole = len(ids) // self._block_size
        data = ids[known * self._block_size : whole * self._block_size].tobytes()
        more = whole - known
        use = next(self._uses)
        path, at, last = self._descend(end, more, data)
        node = path[-1]
        if last < node.length:
            if at == more:
                return None
            node = self._split(node, last)
        self.use(node, end)
        if at < more:
            node = self._add(node, data[at * self._block_bytes :], use)
            self._kv.cache_reserved(node)
        self._touch(node, use)
        return node, at

    def use(self, end: Node, above: Node | None = None) -> None:
        """Add a user to each node from below `above` to `end`."""
        for node in end.up_to(above):
            self._kv.use(node)

    def leave(self, end: Node) -> None:
        """Remove a user from each node up to `end`."""
        for node in end.up_to():
            self._kv.leave(node)

    def idle(self, end: Node) -> int:
        """Return the number of blocks up to `end` that no sequence uses."""
        return sum(self._kv.idle_in(node) for node in end.up_to())

    def insert(self, ids: NDArray[np.int32], table: BlockIds) -> BlockIds:
        """Cache the whole blocks of `ids` from `table`; return the blocks that were cached before.

        The tree keeps its own blocks for ids that it already contains.
        """
        whole, data = self._whole(ids)
        use = next(self._uses)
        path, blocks, last = self._descend(self._root, whole, data)
        if blocks < whole:
            if last < path[-1].length:
                path[-1] = self._split(path[-1], last)
            node = self._add(path[-1], data[blocks * self._block_bytes :], use)
            self._kv.cache(node, table[blocks:whole].copy())
        return self._blocks_of(path, last, use)

    def end_of(self, prompt: NDArray[np.int32]) -> Node | None:
        """Return the last node of the whole blocks of `prompt`, if it has no children.

        Returns None otherwise: the output may equal a cached continuation, so its ids are needed.
        """
        whole, data = self._whole(prompt)
        path, blocks, last = self._descend(self._root, whole, data, read=False)
        if blocks < whole or last < path[-1].length:
            return None
        return self.childless(path[-1])

    def childless(self, node: Node) -> Node | None:
        """Return `node` if it has no children, otherwise None."""
        return None if node.children or node.unread_child else node

    def insert_unread(
        self, end: Node, tail: NDArray[np.int32], output: OutputTokens, blocks: int
    ) -> None:
        """Cache `blocks` free blocks below `end` for an output without computed ids.

        `tail` is the ids of the prompt after its last whole block.
        """
        use = next(self._uses)
        self._touch(end, use)
        if not blocks:
            return
        child = Node(b"", blocks, end)
        child.unread = Unread(output, tail.copy())
        end.unread_child = child
        self._kv.reserve(blocks)
        self._kv.cache_reserved(child)
        self._kv.leave(child)
        self._note_leaf(child, use)

    def evict(self, blocks: int) -> None:
        """Free up to `blocks` unused blocks, least recently used first.

        A leaf in use counts as used now, so that later evictions do not check it again.
        """
        busy = []
        while blocks > 0 and self._leaves:
            used, order, node = self._leaves[0]
            if node.children or node.unread_child or node.parent is None:
                heapq.heappop(self._leaves)
            elif node.used != used:  # outdated entry: the node was used since
                heapq.heapreplace(self._leaves, (node.used, order, node))
            elif (idle := self._kv.idle_tail(node, blocks)) == 0:
                heapq.heappop(self._leaves)
                busy.append((order, node))
            else:
                self._trim(node, idle)
                blocks -= idle
        for order, node in busy:
            node.used = next(self._uses)
            heapq.heappush(self._leaves, (node.used, order, node))

    def clear(self) -> None:
        """Remove all entries. Sequences keep the blocks that they use."""
        self._kv.forget_cached(self._nodes())
        self._root = self._new_root()
        self._leaves.clear()

    def blocks(self) -> BlockIds:
        """Return all named blocks of the tree, in any order."""
        return np.concatenate([n.blocks for n in self._nodes() if n.blocks is not None])

    def table(self, end: Node) -> BlockIds:
        """Return the blocks up to `end`. Counted blocks become named."""
        return np.concatenate([NO_BLOCKS, *map(self._named, end.up_to()[::-1])])

    def _nodes(self) -> Iterator[Node]:
        todo = [self._root]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            if node.unread_child:
                todo.append(node.unread_child)
            yield node

    def _descend(
        self, start: Node, blocks: int, data: bytes, *, read: bool = True
    ) -> tuple[list[Node], int, int]:
        """Follow the first `blocks` blocks of `data` from `start` as far as they match.

        Return (nodes from `start`, matched blocks below `start`, matched blocks of the last node).
        With `read`, compute the ids of unread outputs, which may match.
        """
        node, path, at, last = start, [start], 0, start.length
        while at < blocks and last == node.length:
            if node.unread_child and read:
                self._read(node.unread_child)
            child = node.children.get(self._block(data, at))
            if child is None:
                break
            whole = data.startswith(child.ids, at * self._block_bytes)
            last = child.length if whole else self._common(child.ids, data, at)
            node, at = child, at + last
            path.append(node)
        return path, at, last

    def _blocks_of(self, path: list[Node], last: int, use: int) -> BlockIds:
        """Return the named blocks of `path` (`last` of the last node), and mark them as used."""
        for node in path:
            node.used = use
        blocks = [self._named(node) for node in path]
        blocks[-1] = blocks[-1][:last]
        return np.concatenate(blocks)

    def _read(self, node: Node) -> None:
        """Compute the ids of an unread output and store them in named blocks."""
        unread, parent = node.unread, node.parent
        assert unread is not None  # noqa: S101  callers pass only unread nodes
        assert parent is not None  # noqa: S101  an unread node is never the root
        blocks = self._kv.name_run(node)
        table = np.concatenate([self.table(parent), blocks])
        output, contents = unread.output, self._contents
        tokens = len(table) * self._block_size - output.prompt_tokens
        contents.write(table, output.prompt_tokens - len(unread.tail), unread.tail)
        output.make_ids(contents, table, tokens)
        output.write(contents, table, tokens)
        node.ids = np.concatenate([unread.tail, output.ids[:tokens]]).tobytes()
        self._kv.cache(node, blocks)
        node.unread = parent.unread_child = None
        parent.children[self._block(node.ids, 0)] = node

    def _named(self, node: Node) -> BlockIds:
        """Return the blocks of a node with ids. The ids of a counted node are stored now."""
        if node.blocks is None:
            blocks = self._kv.name_run(node)
            self._contents.write(blocks, 0, np.frombuffer(node.ids, np.int32))
            self._kv.cache(node, blocks)
            return blocks
        return node.blocks

    def _touch(self, end: Node, use: int) -> None:
        """Mark all nodes up to `end` as used."""
        for node in end.up_to():
            node.used = use

    def _new_root(self) -> Node:
        root = Node(b"", 0, None)
        root.blocks = NO_BLOCKS
        return root

    def _whole(self, ids: NDArray[np.int32]) -> tuple[int, bytes]:
        """Return the number of whole blocks in `ids`, and their bytes."""
        whole = len(ids) // self._block_size
        return whole, ids[: whole * self._block_size].tobytes()

    def _block(self, data: bytes, number: int) -> bytes:
        return data[number * self._block_bytes : (number + 1) * self._block_bytes]

    def _common(self, known: bytes, data: bytes, at: int) -> int:
        """Return the number of leading blocks that `known` shares with `data` from block `at`."""
        start = at * self._block_bytes
        length = min(len(known), len(data) - start)
        ours = np.frombuffer(known, np.int32, length // 4)
        differing = np.flatnonzero(ours != np.frombuffer(data, np.int32, length // 4, start))
        tokens = int(differing[0]) if len(differing) else len(ours)
        return tokens // self._block_size

    def _add(self, parent: Node, ids: bytes, use: int) -> Node:
        """Add a counted run of blocks with `ids` below `parent`, and return it."""
        node = Node(ids, len(ids) // self._block_bytes, parent)
        parent.children[self._block(ids, 0)] = node
        self._note_leaf(node, use)
        return node

    def _note_leaf(self, node: Node, use: int) -> None:
        node.used = use
        heapq.heappush(self._leaves, (use, next(self._order), node))

    def _split(self, node: Node, at: int) -> Node:
        """Split `node` after `at` blocks; return the upper part, whose child is the rest."""
        parent = node.parent
        assert parent is not None  # noqa: S101  the root has no blocks, so it is never split
        cut = at * self._block_bytes
        upper = Node(node.ids[:cut], at, parent)
        upper.used = node.used
        node.split(upper)
        node.ids, node.parent = node.ids[cut:], upper
        parent.children[self._block(upper.ids, 0)] = upper
        upper.children[self._block(node.ids, 0)] = node
        return upper

    def _trim(self, node: Node, blocks: int) -> None:
        """Evict the last `blocks` blocks of the leaf `node`, which no sequence uses."""
        self.evicted_blocks += blocks
        self._kv.evict(node, blocks)
        if node.length:
            node.ids = node.ids[: node.length * self._block_bytes]
        else:
            self._take_out(node)

    def _take_out(self, node: Node) -> None:
        """Remove a leaf. Its parent may become a leaf."""
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        if node.unread:
            parent.unread_child = None
        else:
            del parent.children[self._block(node.ids, 0)]
        if not parent.children and parent.parent is not None:
            self._note_leaf(parent, parent.used)
