"""The effect of each scheduling technique on traffic like that of its paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from engine_play import Ask, LinearTimer, config, play, random_asks
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.speculative import SpeculativeConfig
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

MS = 1_000_000
MIXTURE = "mixtral-8x7b"
TREE = SpeculativeConfig(method="eagle", draft_tokens=14, acceptance=0.6, branches=2, depth=3)
CHAIN = SpeculativeConfig(method="eagle", draft_tokens=3, acceptance=0.6)
FOUR_A100 = Deployment(
    model=find_model("llama-3-70b"), gpu=find_gpu("a100-80gb"), tensor_parallel=4
)


def steps(core: EngineCore, asks: list[Ask]) -> Iterator[tuple[int, int]]:
    """Submit all requests, run single steps, and return (duration in ns, running) of each step."""
    for ask in asks:
        core.submit(ask.prompt, ask.output_tokens, 0)
    now_ns = 0
    while core.has_work:
        end_ns, finished = core.advance(now_ns, max_steps=1)
        yield end_ns - now_ns, core.scheduler.running + len(finished)
        now_ns = end_ns


def chats(count: int) -> list[Ask]:
    """Return requests like ShareGPT's: means of 161 prompt and 338 output tokens, at most 2,048."""
    random = np.random.default_rng(1)
    prompts = np.clip(random.lognormal(np.log(205) - 0.5, 1.0, count), 4, 1024).astype(int)
    answers = np.clip(random.lognormal(np.log(450) - 0.5, 1.0, count), 4, 1024).astype(int)
    return [
        Ask(0, random.integers(0, 9999, prompt, dtype=np.int32), int(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def kv_use(*, paged: bool) -> float:
    """Return the share of allocated KV slots that contain a token, over a whole run."""
    core = EngineCore(
        config(num_blocks=2560, max_model_len=2048, paged_kv=paged, prefix_caching=False),
        LinearTimer(),
    )
    lying = held = 0
    for _ in steps(core, chats(80)):
        core.catch_up()
        batch = core.scheduler.decoding
        lying += batch.context_tokens
        held += sum(one.blocks * core.config.block_size for one in batch.sequences)
    return lying / held


def test_paging_wastes_less_than_a_block_per_sequence() -> None:
    """Tokens use 20-38 % of contiguous and 96 % of paged memory, as published (vLLM, SOSP 2023)."""
    contiguous, paged = kv_use(paged=False), kv_use(paged=True)

    assert 0.20 < contiguous < 0.38
    assert paged > 0.95


def prefix_hits(blocks: int, prefix_blocks: int, suffix_blocks: int) -> float:
    """Return the share of 1,000 requests with a fully cached prefix; 60 % use one of five."""
    random = np.random.default_rng(4)
    size = 16 * prefix_blocks
    prefixes = [random.integers(0, 128_000, size, dtype=np.int32) for _ in range(5)]
    core = EngineCore(config(num_blocks=blocks), LinearTimer())
    hits, now_ns = 0, 0
    for _ in range(1000):
        shared = random.random() < 0.6
        first = prefixes[random.integers(5)] if shared else random.integers(0, 128_000, size)
        rest = random.integers(0, 128_000, 16 * suffix_blocks + 1)
        prompt = np.concatenate([first, rest]).astype(np.int32)
        sequence = core.submit(prompt, 1, now_ns)
        now_ns, _ = core.advance(now_ns)
        hits += (sequence.cached_tokens or 0) >= size
    return hits / 1000


@pytest.mark.parametrize(("prefix_blocks", "suffix_blocks"), [(1, 0), (1, 2), (8, 8)])
def test_a_small_cache_keeps_frequent_prefixes(prefix_blocks: int, suffix_blocks: int) -> None:
    """An LRU cache of 500 blocks of 16 tokens has over 55 % hits, as an unlimited cache."""
    small = prefix_hits(500, prefix_blocks, suffix_blocks)
    unlimited = prefix_hits(20_000, prefix_blocks, suffix_blocks)

    assert small > 0.55
    assert unlimited - 0.01 <= small <= unlimited < 0.62


def slot_use(batching: str) -> float:
    """Return the share of eight slots in use until the last request starts."""
    random = np.random.default_rng(2)
    lengths = np.minimum(20 * (1 + random.pareto(1.5, 50)), 2000).astype(int)
    asks = [Ask(0, np.arange(8, dtype=np.int32) + 50 * i, int(n)) for i, n in enumerate(lengths)]
    core = EngineCore(config(batching=batching, max_num_seqs=8), LinearTimer())
    used_ns = whole_ns = 0
    for taken_ns, running in steps(core, asks):
        used_ns += running * taken_ns
        whole_ns += 8 * taken_ns
        if not core.scheduler.waiting:
            break
    return used_ns / whole_ns


def test_continuous_batching_keeps_the_slots_busy() -> None:
    """With 50 Pareto lengths (1.5, from 20) over 80 % of slots are busy; static batches wait."""
    continuous, static = slot_use("continuous"), slot_use("static")

    assert continuous > 0.8
    assert static < 0.6
    assert continuous > 1.5 * static


@pytest.mark.parametrize(("chunked", "low_ms", "high_ms"), [(True, 0, 200), (False, 1000, 3000)])
def test_chunks_bound_how_long_a_prompt_stalls_the_others(
    chunked: bool, low_ms: float, high_ms: float
) -> None:
    """A prompt of 8,000 tokens on 4 A100 stalls the others for its whole prefill or one chunk."""
    core = EngineCore(config(max_model_len=8192, chunked_prefill=chunked), StepTime(FOUR_A100))
    running = Ask(0, np.arange(100, dtype=np.int32), 150)
    long = Ask(1000 * MS, np.arange(8000, dtype=np.int32) + 9000, 2)

    answer, prompt = play(core, [running, long])

    longest_ms = np.diff(core.token_events(answer)[:, 0]).max() / MS
    assert low_ms < longest_ms < high_ms
    assert core.counters().split_prefills == (1 if chunked else 0)
    assert prompt.finished_ns is not None


ENGINES = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([64, 400]),
        "chunked_prefill": st.booleans(),
        "prefix_caching": st.booleans(),
        "batching": st.sampled_from(["continuous", "static", "none"]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "speculation": st.sampled_from([None, TREE, CHAIN]),
    }
)


@settings(max_examples=40, deadline=None)
@given(engine=ENGINES, seed=st.integers(0, 10**6), model=st.sampled_from(["llama-3-8b", MIXTURE]))
def test_no_run_is_faster_than_the_roof(engine: dict[str, object], seed: int, model: str) -> None:
    """A whole run takes at least its bytes ÷ peak bandwidth and its FLOPs ÷ peak."""
    speculation = engine["speculation"]
    deployment = Deployment(
        model=find_model(model),
        gpu=find_gpu("a100-80gb"),
        tensor_parallel=2,
        speculative="eagle" if speculation else "off",
        draft_branches=2 if speculation is TREE else 1,
        draft_depth=3 if speculation is TREE else None,
    )
    core = EngineCore(config(max_model_len=512, **engine), StepTime(deployment))
    asks = [replace(ask, at_ns=0) for ask in random_asks(seed, 20, shared=40, output=(1, 200))]

    sequences = play(core, asks)

    counters, shape = core.counters(), deployment.model
    end_s = max(int(sequence.finished_ns or 0) for sequence in sequences) / 1e9
    per_token = shape.experts.per_token * shape.expert_parameters if shape.experts else 0
    weights = shape.layers * (shape.common_parameters + per_token)
    decoded = (counters.output_tokens or 0) - len(asks) - (counters.accepted_tokens or 0)
    tokens = core.computed_prompt_tokens + decoded
    assert end_s >= (counters.steps or 0) * weights / deployment.gpu.bandwidth_bytes_per_s
    assert end_s >= tokens * weights / deployment.gpu.flops_per_s
    brought = sum(int(core.token_events(one)[:, 1].sum()) for one in sequences)
    assert brought == counters.output_tokens == sum(ask.output_tokens for ask in asks)
    assert not core.scheduler.kv.references.any()


def test_no_sequence_starves_while_others_arrive() -> None:
    """Requests start in order of arrival and wait only for earlier requests."""
    core = EngineCore(config(num_blocks=64, max_model_len=512, max_num_seqs=4), LinearTimer())
    asks = [Ask(i * 40 * MS, np.arange(30, dtype=np.int32) + i * 40, 60) for i in range(80)]
    asks[5] = Ask(5 * 40 * MS, np.arange(400, dtype=np.int32) + 90_000, 60)  # half of the blocks

    sequences = play(core, asks)

    first = [int(core.token_events(sequence)[0, 0]) for sequence in sequences]
    assert first == sorted(first)
