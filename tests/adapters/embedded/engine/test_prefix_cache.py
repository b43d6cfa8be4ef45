"""The radix tree finds stored prefixes, evicts the least recently used, and loses no block."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.adapters.embedded.engine.kv_blocks import KvBlocks
from harness.adapters.embedded.engine.kv_contents import KvContents
from harness.adapters.embedded.engine.prefix_cache import PrefixCache

SIZE = 2


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def pool(blocks: int) -> tuple[KvBlocks, KvContents, PrefixCache]:
    kv = KvBlocks(blocks)
    contents = KvContents(kv, SIZE)
    return kv, contents, PrefixCache(kv, contents)


def store(
    kv: KvBlocks, contents: KvContents, cache: PrefixCache, values: NDArray[np.int32]
) -> None:
    """Compute, cache and finish a sequence of `values`."""
    cached = cache.match(values)
    kv.share(cached)
    missing = -(-len(values) // SIZE) - len(cached)
    if missing > kv.free:
        cache.evict(missing - kv.free)
    table = np.concatenate([cached, kv.allocate(missing)])
    contents.write(table, len(cached) * SIZE, values[len(cached) * SIZE :])
    cache.insert(values, table)
    kv.release(table)


def test_the_longest_stored_prefix_is_found_in_whole_blocks() -> None:
    """A prompt that differs inside a block gets the blocks before it."""
    kv, contents, cache = pool(16)
    store(kv, contents, cache, ids(1, 2, 3, 4, 5, 6, 7))
    store(kv, contents, cache, ids(1, 2, 3, 9))

    assert contents.token_ids(cache.match(ids(1, 2, 3, 4, 5, 9)), 4).tolist() == [1, 2, 3, 4]
    assert contents.token_ids(cache.match(ids(1, 2, 3, 9, 5, 9)), 4).tolist() == [1, 2, 3, 9]
    assert len(cache.match(ids(1, 9))) == 0
    assert len(cache.match(ids(1))) == 0


def test_the_least_recently_used_prefix_goes_first() -> None:
    """Of three stored prompts, the two most recently used remain after an eviction."""
    kv, contents, cache = pool(6)
    for start in (10, 20, 30):
        store(kv, contents, cache, ids(start, start + 1, start + 2, start + 3))
    cache.match(ids(10, 11, 12, 13))  # used again

    cache.evict(2)

    found = [len(cache.match(ids(s, s + 1, s + 2, s + 3))) for s in (10, 20, 30)]
    assert found == [2, 0, 2]
    assert cache.evicted_blocks == 2


def test_eviction_removes_tails_before_their_prefix() -> None:
    """A block is never evicted before the blocks after it, so a shared prefix remains longest."""
    kv, contents, cache = pool(8)
    store(kv, contents, cache, ids(1, 2, 3, 4))
    store(kv, contents, cache, ids(1, 2, 5, 6))

    cache.evict(2)

    assert len(cache.match(ids(1, 2))) == 1
    assert len(cache.match(ids(1, 2, 3, 4))) == 1


def test_blocks_in_use_are_never_evicted() -> None:
    """Blocks of a running sequence stay, however many blocks are requested."""
    kv, contents, cache = pool(4)
    store(kv, contents, cache, ids(1, 2, 3, 4))
    used = cache.match(ids(1, 2))
    kv.share(used)

    cache.evict(4)

    assert len(cache.match(ids(1, 2, 3, 4))) == 1
    assert kv.free == 3


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=25),
    blocks=st.sampled_from([6, 9, 64]),
)
def test_hits_equal_those_of_a_list_of_prefixes(prompts: list[list[int]], blocks: int) -> None:
    """Every hit contains the prompt's ids; without eviction no cached prefix is missed."""
    kv, contents, cache = pool(blocks)
    seen: set[tuple[int, ...]] = set()
    for prompt in prompts:
        found = cache.match(ids(*prompt))
        whole = [prompt[: SIZE * n] for n in range(len(prompt) // SIZE + 1)]

        assert contents.token_ids(found, SIZE * len(found)).tolist() == whole[len(found)]
        if not cache.evicted_blocks:
            assert len(found) == max(n for n, part in enumerate(whole) if not n or (*part,) in seen)

        store(kv, contents, cache, ids(*prompt))
        seen.update(tuple(part) for part in whole)
        known = sorted(cache.blocks().tolist())
        assert known == np.flatnonzero(kv.cached).tolist()
        assert kv.free + len(known) == blocks


def test_later_evictions_do_not_check_a_leaf_in_use_again() -> None:
    """A skipped prefix in use counts as used at that time, also after its release."""
    kv, contents, cache = pool(3)
    for first in (1, 3, 5):
        store(kv, contents, cache, ids(first, first))
    running = cache.match(ids(1, 1))
    for first in (3, 5):
        cache.match(ids(first, first))
    kv.share(running)

    cache.evict(1)  # skips the oldest, which is in use
    kv.release(running)
    cache.evict(1)

    assert [len(cache.match(ids(first, first))) for first in (1, 3, 5)] == [1, 0, 0]
    assert kv.free == 2
