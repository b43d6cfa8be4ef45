"""An unread output has no ids, and changes no other result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_play import Ask, LinearTimer, config, play, random_asks
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.speculative import SpeculativeConfig

MS = 1_000_000
NGRAM = SpeculativeConfig(method="ngram", draft_tokens=5, acceptance=0.5)
ARMS: dict[str, dict[str, object]] = {
    "roomy": {},
    "evicting": {"num_blocks": 256},
    "swap": {"num_blocks": 256, "preemption": "swap"},
    "speculative": {"num_blocks": 256, "speculation": NGRAM},
    "no cache": {"num_blocks": 256, "prefix_caching": False},
    "contiguous": {"num_blocks": 1024, "paged_kv": False},
    "small blocks": {"num_blocks": 4000, "block_size": 1},
}


def results_of(core: EngineCore, asks: list[Ask], *, output_read: bool) -> list[object]:
    """Return all results of a run of `asks`, except the ids of its outputs."""
    sequences = play(core, asks, output_read=output_read)
    times = [core.token_events(sequence).tolist() for sequence in sequences]
    return [core.counters(), times, [sequence.cached_tokens for sequence in sequences]]


@pytest.mark.parametrize("arm", ARMS)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 25), twins=st.booleans())
@settings(max_examples=10, deadline=None)
def test_times_and_counters_do_not_depend_on_reading(
    arm: str, seed: int, count: int, twins: bool
) -> None:
    """With evictions, preemptions and repeated prompts, reading changes only the ids."""
    asks = random_asks(seed, count, shared=40, output=(1, 200), gap_ns=5e7)
    if twins:
        asks = [replace(ask, prompt=asks[n // 2].prompt) for n, ask in enumerate(asks)]
    read, unread = (EngineCore(config(**ARMS[arm]), LinearTimer()) for _ in range(2))

    assert results_of(unread, asks, output_read=False) == results_of(read, asks, output_read=True)

    kv, cache = unread.scheduler.kv, unread.scheduler.cache
    assert not kv.references.any()
    assert kv.evictable == kv.counted + (len(cache.blocks()) if cache else 0)
    assert kv.available == read.scheduler.kv.available


@pytest.mark.parametrize("more", [0, 30])
def test_a_prompt_that_continues_an_unread_output_finds_it_cached(more: int) -> None:
    """The ids are computed when a prompt arrives that may share them, even if partly evicted."""
    prompt = np.arange(100, dtype=np.int32)
    (first,) = play(EngineCore(config(), LinearTimer()), [Ask(0, prompt, 300)])
    core = EngineCore(config(), LinearTimer())
    play(core, [Ask(0, prompt, 300)], output_read=False)
    assert core.scheduler.cache is not None
    core.scheduler.cache.evict(more // 10)
    kept = (399 // 16 - more // 10) * 16

    longer = np.concatenate([prompt, first.output_ids, np.arange(50, dtype=np.int32)])
    follower = core.submit(longer, 20, 0)
    core.advance(0)

    (alone,) = play(EngineCore(config(), LinearTimer()), [Ask(0, longer, 20)])
    assert follower.cached_tokens == kept
    assert follower.output_ids.tolist() == alone.output_ids.tolist()


def test_the_ids_of_an_output_that_is_never_shared_are_not_computed() -> None:
    """Other prompts evict the output before its ids are computed."""
    core = EngineCore(config(num_blocks=256), LinearTimer())
    asks = [Ask(n * 9000 * MS, np.arange(400, dtype=np.int32) + 1000 * n, 300) for n in range(20)]

    sequences = play(core, asks, output_read=False)

    assert core.counters().evicted_blocks
    assert not any(sequence.output.known_tokens for sequence in sequences)


def test_a_reset_forgets_unread_answers() -> None:
    """After a reset all blocks are free."""
    core = EngineCore(config(), LinearTimer())
    play(core, random_asks(1, 9), output_read=False)

    core.reset()

    kv = core.scheduler.kv
    assert (kv.free, kv.evictable, kv.counted) == (kv.num_blocks, 0, 0)


@pytest.mark.parametrize("arm", ["roomy", "evicting", "swap", "no cache"])
@given(seed=st.integers(0, 10**6), looks=st.sampled_from([1, 7, 1000]))
@settings(max_examples=10, deadline=None)
def test_read_outputs_have_the_same_ids_among_unread_ones(arm: str, seed: int, looks: int) -> None:
    """This is also true if all running outputs are read during the run, and no block is lost."""
    asks = random_asks(seed, 14, shared=40, output=(1, 200), gap_ns=0)
    core = EngineCore(config(**ARMS[arm]), LinearTimer())
    sequences = [
        core.submit(ask.prompt, ask.output_tokens, 0, output_read=number % 3 == 0)
        for number, ask in enumerate(asks)
    ]
    now_ns = step = 0
    while core.has_work:
        now_ns, _ = core.advance(now_ns, max_steps=3)
        step += 1
        if step % looks == 0:
            core.catch_up()

    for ask, sequence in list(zip(asks, sequences, strict=True))[::3]:
        (alone,) = play(EngineCore(config(), LinearTimer()), [replace(ask, at_ns=0)])
        assert sequence.output_ids.tolist() == alone.output_ids.tolist()
    kv, cache = core.scheduler.kv, core.scheduler.cache
    assert not kv.references.any()
    if cache is not None:
        cache.evict(kv.num_blocks)
    assert (kv.free, kv.evictable, kv.counted) == (kv.num_blocks, 0, 0)


def test_unread_prompts_are_not_stored() -> None:
    """Of nine prompts with one prefix, only the two that split a run of blocks are stored."""
    core = EngineCore(config(), LinearTimer())
    shared, size = np.arange(320, dtype=np.int32), core.config.block_size
    prompts = [np.concatenate([shared, np.arange(40, dtype=np.int32) + 500 * n]) for n in range(9)]

    play(core, [Ask(n * 9000 * MS, one, 9) for n, one in enumerate(prompts)], output_read=False)

    cache = core.scheduler.cache
    assert cache is not None
    assert core.counters().cached_prompt_tokens == 8 * 320
    assert len(cache.blocks()) == (320 + 2 * 32) // size
