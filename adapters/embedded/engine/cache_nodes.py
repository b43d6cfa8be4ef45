"""The nodes of the prefix cache: runs of blocks, settled or only counted, and who uses them.

    blocks settled   they have numbers, and what is in them lies in the KV
    only counted     free blocks set aside; the ids are known (`ids`), or not even those (`unread`)

A sequence without a block table uses whole nodes, and every node before them: it is one of their
`users`. All users of a node together hold one reference to each of its settled blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.answer import Answer
from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks

NO_BLOCKS: BlockIds = np.empty(0, np.int32)


@dataclass(slots=True)
class Unread:
    """An answer of which nobody knows the ids yet, and the end of the prompt that it answers."""

    answer: Answer
    tail: NDArray[np.int32]  # ids of the prompt behind its last whole block


class Node:
    """A run of blocks and the token ids in them, as bytes: those compare and hash at once."""

    __slots__ = (
        "blocks",
        "children",
        "ids",
        "length",
        "parent",
        "settled",
        "unread",
        "unread_child",
        "used",
        "users",
    )

    def __init__(self, ids: bytes, length: int, parent: Node | None) -> None:
        self.ids = ids
        self.length = length  # in blocks
        self.parent = parent
        self.blocks = NO_BLOCKS  # where `settled`
        self.settled = False
        self.children: dict[bytes, Node] = {}
        self.unread: Unread | None = None  # in the place of ids
        self.unread_child: Node | None = None  # never beside other children
        self.users = 0
        self.used = 0  # when it was used last, in uses of the cache

    def settle(self, blocks: BlockIds) -> None:
        """Say which blocks these are."""
        self.blocks, self.settled = blocks, True

    def cut(self, keep: int, block_bytes: int) -> None:
        """Keep the first `keep` blocks only."""
        self.ids, self.length = self.ids[: keep * block_bytes], keep
        self.blocks = self.blocks[:keep]


def path_to(node: Node) -> list[Node]:
    """Return the nodes from the first below the root to `node`."""
    found = []
    while node.parent is not None:
        found.append(node)
        node = node.parent
    return found[::-1]


def enter(node: Node, kv: KvBlocks, above: Node | None = None) -> None:
    """Count one more user of `node` and of all before it, up to `above`, which is left out."""
    while node is not above and node.parent is not None:
        node.users += 1
        if node.users == 1:
            if node.settled:
                kv.share(node.blocks)
            else:
                kv.use_promised(node.length)
        node = node.parent


def leave(node: Node, kv: KvBlocks) -> None:
    """Count one user less of `node` and of all before it."""
    while node.parent is not None:
        node.users -= 1
        if not node.users:
            if node.settled:
                kv.release(node.blocks)
            else:
                kv.hold_promised(node.length)
        node = node.parent


def idle_blocks(node: Node, kv: KvBlocks) -> int:
    """Return how many blocks of `node` and of all before it no sequence uses."""
    idle = 0
    while node.parent is not None:
        if not node.users:
            idle += kv.idle(node.blocks) if node.settled else node.length
        node = node.parent
    return idle
