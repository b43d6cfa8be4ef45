"""The prefix cache: a radix tree over whole blocks of token ids, least recently used evicted first.

    root ── [b0 b1 b2] ──┬── [b3 b4]          a node is a run of blocks; children differ in
                         └── [b5]             their first block

A sequence that uses a node's blocks uses all blocks before them too. So within a path references
never grow towards the leaf, and eviction takes blocks off the tail of a leaf.

Runs that nobody has read are only counted. A prompt has its ids, which are stored when somebody
reads them. An output does not even have ids; they are made when a prompt arrives that may share
them. Neither happens where the run is evicted first.
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
    """An output whose ids are not made yet, and the end of its prompt."""

    output: OutputTokens
    tail: NDArray[np.int32]  # ids of the prompt behind its last whole block


class Node(BlockRun):
    """A run of blocks and the token ids in them, as bytes: those compare and hash at once."""

    __slots__ = ("children", "ids", "parent", "unread", "unread_child", "used")

    def __init__(self, ids: bytes, length: int, parent: Node | None) -> None:
        super().__init__(length)
        self.ids = ids
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.unread: Unread | None = None  # in the place of ids
        self.unread_child: Node | None = None  # never beside other children
        self.used = 0  # when it was used last, in uses of the cache

    def up_to(self, above: Node | None = None) -> list[Node]:
        """Return this node and those before it, the root and what is not below `above` excluded."""
        node, path = self, []
        while node.parent is not None and node is not above:
            path.append(node)
            node = node.parent
        return path


class PrefixCache:
    """Finds the longest cached prefix of a prompt, in whole blocks."""

    def __init__(self, kv: KvBlocks, contents: KvContents) -> None:
        self._kv = kv
        self._contents = contents
        self._block_size = contents.block_size
        self._block_bytes = self._block_size * np.dtype(np.int32).itemsize
        self._root = self._new_root()
        self._uses = count(1)
        self._order = count()  # breaks ties in the heap
        self._leaves: list[tuple[int, int, Node]] = []  # (last use, order, node), some out of date
        self.evicted_blocks = 0

    def match(self, ids: NDArray[np.int32]) -> BlockIds:
        """Return the cached blocks of the longest prefix of `ids`, in whole blocks.

        The caller shares them before anything else can evict them.
        """
        use = next(self._uses)
        path, _, last = self._descend(self._root, *self._whole(ids))
        return self._blocks_of(path, last, use)

    def find(self, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Return where the longest cached prefix of `ids` ends, and its blocks.

        None where that is within a node: it takes a block table to use a part of one.
        """
        use = next(self._uses)
        path, blocks, last = self._descend(self._root, *self._whole(ids))
        if last < path[-1].length:
            return None
        for node in path:
            node.used = use
        return path[-1], blocks

    def extend(self, end: Node, known: int, ids: NDArray[np.int32]) -> tuple[Node, int] | None:
        """Cache the whole blocks of `ids`, of which `known` blocks end in `end`, in use.

        The others are reserved for the sequence that uses `end`. Afterwards it uses the node that
        is returned, where `ids` end; the number is how many of the reserved blocks it does not
        need, since another sequence has cached the same. None where `ids` end within a node.
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
        """Let one more sequence use everything up to `end`, from below `above` on."""
        for node in end.up_to(above):
            self._kv.use(node)

    def leave(self, end: Node) -> None:
        """Let one sequence less use everything up to `end`."""
        for node in end.up_to():
            self._kv.leave(node)

    def idle(self, end: Node) -> int:
        """Return how many blocks up to `end` no sequence uses."""
        return sum(self._kv.idle_in(node) for node in end.up_to())

    def insert(self, ids: NDArray[np.int32], table: BlockIds) -> BlockIds:
        """Cache the whole blocks of `ids`, those of `table`; return those cached before.

        For what the tree already has it keeps its own blocks.
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
        """Return where the whole blocks of `prompt` end, if nothing cached follows there.

        None: what follows `prompt` may be what followed it before, so its ids must be made.
        """
        whole, data = self._whole(prompt)
        path, blocks, last = self._descend(self._root, whole, data, read=False)
        if blocks < whole or last < path[-1].length:
            return None
        return self.childless(path[-1])

    def childless(self, node: Node) -> Node | None:
        """Return `node` if nothing cached follows it."""
        return None if node.children or node.unread_child else node

    def insert_unread(
        self, end: Node, tail: NDArray[np.int32], output: OutputTokens, blocks: int
    ) -> None:
        """Cache `blocks` free blocks behind `end`, of an output whose prompt ends in `tail`.

        `tail` are the ids behind the prompt's last whole block.
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
        """Forget everything; blocks that sequences still use stay theirs."""
        self._kv.forget_cached(self._nodes())
        self._root = self._new_root()
        self._leaves.clear()

    def blocks(self) -> BlockIds:
        """Return all named blocks of the tree, in no order."""
        return np.concatenate([n.blocks for n in self._nodes() if n.blocks is not None])

    def table(self, end: Node) -> BlockIds:
        """Return the blocks up to `end`, named."""
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
        """Walk down from `start` along the first `blocks` blocks of `data`, as far as they match.

        Return the nodes from `start` on, the blocks that matched below it, and how many blocks of
        the last node are on the path. `read` makes the ids of an unread output, which may match.
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
        """Return the blocks of `path`, named, `last` of its last node, and note their use."""
        for node in path:
            node.used = use
        blocks = [self._named(node) for node in path]
        blocks[-1] = blocks[-1][:last]
        return np.concatenate(blocks)

    def _read(self, node: Node) -> None:
        """Make the ids of an unread output and store them in named blocks."""
        unread, parent = node.unread, node.parent
        assert unread is not None  # noqa: S101  only such a node is passed
        assert parent is not None  # noqa: S101  nor is it the root
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
        """Return the blocks of a node whose ids are known; a counted one is stored now."""
        if node.blocks is None:
            blocks = self._kv.name_run(node)
            self._contents.write(blocks, 0, np.frombuffer(node.ids, np.int32))
            self._kv.cache(node, blocks)
            return blocks
        return node.blocks

    def _touch(self, end: Node, use: int) -> None:
        """Note that everything up to `end` was used."""
        for node in end.up_to():
            node.used = use

    def _new_root(self) -> Node:
        root = Node(b"", 0, None)
        root.blocks = NO_BLOCKS
        return root

    def _whole(self, ids: NDArray[np.int32]) -> tuple[int, bytes]:
        """Return how many whole blocks `ids` fill, and the bytes of those."""
        whole = len(ids) // self._block_size
        return whole, ids[: whole * self._block_size].tobytes()

    def _block(self, data: bytes, number: int) -> bytes:
        return data[number * self._block_bytes : (number + 1) * self._block_bytes]

    def _common(self, known: bytes, data: bytes, at: int) -> int:
        """Return how many blocks `known` has in common with `data` from its block `at` on."""
        start = at * self._block_bytes
        length = min(len(known), len(data) - start)
        ours = np.frombuffer(known, np.int32, length // 4)
        differing = np.flatnonzero(ours != np.frombuffer(data, np.int32, length // 4, start))
        tokens = int(differing[0]) if len(differing) else len(ours)
        return tokens // self._block_size

    def _add(self, parent: Node, ids: bytes, use: int) -> Node:
        """Add a run of blocks with `ids`, only counted yet, below `parent`, and return it."""
        node = Node(ids, len(ids) // self._block_bytes, parent)
        parent.children[self._block(ids, 0)] = node
        self._note_leaf(node, use)
        return node

    def _note_leaf(self, node: Node, use: int) -> None:
        node.used = use
        heapq.heappush(self._leaves, (use, next(self._order), node))

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` after `at` blocks; return the upper part, whose child is the rest."""
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
        """Remove a leaf; its parent may become one."""
        parent, node.parent = node.parent, None
        assert parent is not None  # noqa: S101  only nodes below the root are leaves
        if node.unread:
            parent.unread_child = None
        else:
            del parent.children[self._block(node.ids, 0)]
        if not parent.children and parent.parent is not None:
            self._note_leaf(parent, parent.used)
