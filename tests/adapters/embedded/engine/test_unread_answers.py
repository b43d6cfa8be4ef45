"""An answer that nobody reads costs nothing, and nobody can tell from anything else."""

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


def told(core: EngineCore, asks: list[Ask], *, output_read: bool) -> list[object]:
    """Return all that a run of `asks` tells, but for the ids of its answers."""
    sequences = play(core, asks, output_read=output_read)
    times = [core.token_events(sequence).tolist() for sequence in sequences]
    return [core.counters(), times, [sequence.cached_tokens for sequence in sequences]]


@pytest.mark.parametrize("arm", ARMS)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 25), twins=st.booleans())
@settings(max_examples=10, deadline=None)
def test_times_and_counters_are_those_of_answers_that_are_read(
    arm: str, seed: int, count: int, twins: bool
) -> None:
    """Whatever is evicted, preempted or asked twice: reading decides about ids alone."""
    asks = random_asks(seed, count, shared=40, output=(1, 200), gap_ns=5e7)
    if twins:
        asks = [replace(ask, prompt=asks[n // 2].prompt) for n, ask in enumerate(asks)]
    read, unread = (EngineCore(config(**ARMS[arm]), LinearTimer()) for _ in range(2))

    assert told(unread, asks, output_read=False) == told(read, asks, output_read=True)

    kv, cache = unread.scheduler.kv, unread.scheduler.cache
    assert not kv.references.any()
    assert kv.evictable == kv.counted + (len(cache.blocks()) if cache else 0)
    assert kv.available == read.scheduler.kv.available


@pytest.mark.parametrize("more", [0, 30])
def test_who_goes_on_from_an_unread_answer_finds_it(more: int) -> None:
    """Its ids are worked out when a prompt comes that may begin alike, also partly evicted."""
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


def test_an_answer_that_nobody_may_look_at_is_never_worked_out() -> None:
    """Other prompts come, and push it out of the cache: its ids never existed."""
    core = EngineCore(config(num_blocks=256), LinearTimer())
    asks = [Ask(n * 9000 * MS, np.arange(400, dtype=np.int32) + 1000 * n, 300) for n in range(20)]

    sequences = play(core, asks, output_read=False)

    assert core.counters().evicted_blocks
    assert not any(sequence.output.known_tokens for sequence in sequences)


def test_a_reset_forgets_unread_answers() -> None:
    """All blocks are free again."""
    core = EngineCore(config(), LinearTimer())
    play(core, random_asks(1, 9), output_read=False)

    core.reset()

    kv = core.scheduler.kv
    assert (kv.free, kv.evictable, kv.counted) == (kv.num_blocks, 0, 0)


@pytest.mark.parametrize("arm", ["roomy", "evicting", "swap", "no cache"])
@given(seed=st.integers(0, 10**6), looks=st.sampled_from([1, 7, 1000]))
@settings(max_examples=10, deadline=None)
def test_readers_among_those_who_do_not_read_get_the_ids_of_one_alone(
    arm: str, seed: int, looks: int
) -> None:
    """Also where somebody looks at all running answers meanwhile; no block is lost by it."""
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


def test_prompts_that_nobody_reads_are_not_stored() -> None:
    """Of nine with the same beginning only the two are at whose parting a run of blocks is cut."""
    core = EngineCore(config(), LinearTimer())
    shared, size = np.arange(320, dtype=np.int32), core.config.block_size
    prompts = [np.concatenate([shared, np.arange(40, dtype=np.int32) + 500 * n]) for n in range(9)]

    play(core, [Ask(n * 9000 * MS, one, 9) for n, one in enumerate(prompts)], output_read=False)

    cache = core.scheduler.cache
    assert cache is not None
    assert core.counters().cached_prompt_tokens == 8 * 320
    assert len(cache.blocks()) == (320 + 2 * 32) // size
