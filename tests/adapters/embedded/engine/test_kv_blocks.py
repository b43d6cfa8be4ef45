"""KV blocks: counting, copy-on-write, and reading stored ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.embedded.engine.kv_blocks import (
    BlockIds,
    BlockRun,
    KvBlocks,
    OutOfBlocksError,
)
from harness.adapters.embedded.engine.kv_contents import KvContents


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def pool(blocks: int, block_size: int) -> tuple[KvBlocks, KvContents]:
    kv = KvBlocks(blocks)
    return kv, KvContents(kv, block_size)


def cache(kv: KvBlocks, blocks: BlockIds) -> None:
    kv.cache(BlockRun(len(blocks)), blocks)


def test_written_ids_are_read_through_the_table() -> None:
    """Tokens that are written in parts to scattered blocks are read in order."""
    kv, contents = pool(8, 4)
    kv.allocate(3)
    table = kv.allocate(3)[::-1].copy()

    contents.write(table, 0, ids(1, 2, 3))
    contents.write(table, 3, ids(4, 5, 6, 7, 8, 9))

    assert contents.token_ids(table, 9).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@given(
    values=st.lists(st.integers(0, 127_999), min_size=1, max_size=60),
    cut=st.integers(0, 60),
    size=st.sampled_from([1, 4, 16]),
)
def test_a_hash_depends_on_the_ids_alone(values: list[int], cut: int, size: int) -> None:
    """The hash does not depend on block size, block numbers or sizes of writes."""
    cut = min(cut, len(values))
    (kv, plain), (other_kv, pieces) = pool(64, 16), pool(64, size)
    other_kv.allocate(2)
    one, other = kv.allocate(4), other_kv.allocate(-(-len(values) // size))

    plain.write(one, 0, ids(*values))
    pieces.write(other, 0, ids(*values[:cut]))
    pieces.write(other, cut, ids(*values[cut:]))

    assert plain.read(one, len(values)) == pieces.read(other, len(values))
    assert plain.read(one, cut) == pieces.read(other, cut)


def test_one_changed_id_changes_the_hash() -> None:
    """A change at any position changes the hash."""
    kv, contents = pool(8, 4)
    table = kv.allocate(2)
    hashes = set()
    for position in range(8):
        contents.write(table, 0, ids(*range(8)))
        contents.write(table, position, ids(99))
        hashes.add(contents.read(table, 8))

    assert len(hashes) == 8


def test_a_fork_copies_only_the_block_that_it_writes() -> None:
    """After a fork both tables read the common tokens, and neither reads the other's new tokens."""
    kv, contents = pool(8, 4)
    parent = kv.allocate(2)
    contents.write(parent, 0, ids(1, 2, 3, 4, 5))
    child = kv.fork(parent)

    contents.write(child, 5, ids(60))
    contents.write(parent, 5, ids(70))

    assert contents.token_ids(parent, 6).tolist() == [1, 2, 3, 4, 5, 70]
    assert contents.token_ids(child, 6).tolist() == [1, 2, 3, 4, 5, 60]
    assert parent[0] == child[0]
    assert parent[1] != child[1]
    assert kv.free == 5


def test_a_cached_block_is_never_written_in_place() -> None:
    """A cached block does not change, even if its only user writes."""
    kv, contents = pool(8, 4)
    table = kv.allocate(1)
    contents.write(table, 0, ids(1, 2, 3, 4))
    cache(kv, table)
    known = table.copy()

    contents.write(table, 3, ids(9))

    assert contents.token_ids(known, 4).tolist() == [1, 2, 3, 4]
    assert contents.token_ids(table, 4).tolist() == [1, 2, 3, 9]
    assert kv.evictable == 1


def test_requesting_too_many_blocks_raises_an_error() -> None:
    """A failed allocation changes nothing."""
    kv = KvBlocks(3)
    kv.allocate(2)

    with pytest.raises(OutOfBlocksError, match="2 blocks requested, but only 1 are free"):
        kv.allocate(2)
    assert kv.free == 1


def test_regions_are_contiguous_and_freed_as_a_whole() -> None:
    """Contiguous memory allocates equal regions; a partial region is never used."""
    kv = KvBlocks(10, region_blocks=3)

    regions = [kv.allocate_region() for _ in range(3)]
    with pytest.raises(OutOfBlocksError):
        kv.allocate_region()
    for region in regions:
        assert np.diff(region).tolist() == [1, 1]
        kv.release(region)

    assert kv.free == 9


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("afrwhd"), st.integers(0, 10**6)), max_size=60))
def test_no_block_is_lost_or_counted_twice(actions: list[tuple[str, int]]) -> None:
    """After any actions every block has exactly one state: free, evictable or in use."""
    kv, contents = pool(12, 2)
    tables: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    for action, number in actions:
        table = tables[number % len(tables)] if tables else None
        if action == "a" and kv.free:
            tables.append(kv.allocate(1 + number % kv.free))
        elif table is None:
            continue
        elif action == "f":
            tables.append(kv.fork(table))
        elif action == "r":
            tables = [other for other in tables if other is not table]
            kv.release(table)
        elif action == "w" and kv.free >= len(table):
            contents.write(table, 0, np.full(2 * len(table), number % 1000, dtype=np.int32))
        elif action == "h":
            cache(kv, table)
        elif action == "d":
            kv.forget_cached([])

        users = np.zeros(12, dtype=int)
        for held in tables:
            users[held] += 1
        assert (kv.references == users).all()
        assert kv.evictable == np.count_nonzero(kv.cached & (users == 0))
        assert kv.free == np.count_nonzero(~kv.cached & (users == 0))


def test_reserved_blocks_without_a_number_are_not_free() -> None:
    """Reserved blocks can be named, cancelled, or cached without a number until eviction."""
    kv = KvBlocks(8)
    kv.reserve(6)
    with pytest.raises(OutOfBlocksError, match="3 blocks requested, but only 2 are free"):
        kv.allocate(3)

    named = kv.name(2)
    kv.cancel(1)
    run = BlockRun(3)
    kv.cache_reserved(run)
    kv.leave(run)

    assert kv.references[named].tolist() == [1, 1]
    assert (kv.free, kv.evictable, kv.counted) == (3, 3, 3)
    kv.evict(run, 3)
    assert (kv.free, kv.evictable, kv.counted) == (6, 0, 0)


def test_the_last_of_the_batched_writes_wins() -> None:
    """A block that is freed and allocated again contains the data of its new owner."""
    kv, contents = pool(2, 4)
    first = kv.allocate(1)
    contents.write(first, 0, ids(1, 2, 3, 4))
    kv.release(first)

    second = kv.allocate(1)
    contents.write(second, 0, ids(5, 6))

    other_kv, other = pool(2, 4)
    table = other_kv.allocate(1)
    other.write(table, 0, ids(5, 6))
    assert first.tolist() == second.tolist()
    assert contents.token_ids(second, 2).tolist() == [5, 6]
    assert contents.read(second, 2) == other.read(table, 2)
