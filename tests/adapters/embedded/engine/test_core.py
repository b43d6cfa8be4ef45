"""The embedded engine computes exact times, and no toggle changes an output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from engine_play import Ask, LinearTimer, config, play, random_asks
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.base import EngineError
from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.kv_blocks import BlockIds
from harness.adapters.embedded.engine.prefix_cache import PrefixCache
from harness.adapters.embedded.engine.speculative import SpeculativeConfig

NGRAM = SpeculativeConfig(method="ngram", draft_tokens=5, acceptance=0.5)
TREE = SpeculativeConfig(method="eagle", draft_tokens=14, acceptance=0.6, branches=2, depth=3)
MS = 1_000_000

# Each toggle alone; small pools cause preemptions.
ARMS: dict[str, dict[str, object]] = {
    "baseline": {},
    "prefix_caching off": {"prefix_caching": False},
    "chunked_prefill off": {"chunked_prefill": False},
    "batching static": {"batching": "static"},
    "batching none": {"batching": "none"},
    "paged_kv off": {"paged_kv": False},
    "cuda_graphs off": {"cuda_graphs": False},
    "speculative": {"speculation": NGRAM},
    "block_size 32": {"block_size": 32, "num_blocks": 2000},
    "small budget": {"max_batched_tokens": 24},
    "tight": {"num_blocks": 256},
    "tight, cold": {"num_blocks": 256, "prefix_caching": False, "chunked_prefill": False},
    "tight, speculative": {"num_blocks": 256, "speculation": NGRAM},
    "tight, static": {"num_blocks": 256, "batching": "static"},
    "tree": {"speculation": TREE},
    "tight, swap": {"num_blocks": 256, "preemption": "swap"},
    "tight, swap, tree": {"num_blocks": 256, "preemption": "swap", "speculation": TREE},
    "tight, swap, cold": {"num_blocks": 256, "preemption": "swap", "prefix_caching": False},
    "tight, swap, static": {"num_blocks": 256, "preemption": "swap", "batching": "static"},
}


def answers(changes: dict[str, object], asks: list[Ask]) -> list[list[int]]:
    sequences = play(EngineCore(config(**changes), LinearTimer()), asks)
    return [sequence.output_ids.tolist() for sequence in sequences]


@pytest.mark.parametrize("arm", ARMS)
def test_no_toggle_changes_an_output(arm: str) -> None:
    """Caching, chunks, batching, paging, preemption and speculation change no output token."""
    asks = random_asks(1, 60)

    assert answers(ARMS[arm], asks) == answers({}, asks)


@pytest.mark.parametrize("arm", ARMS)
def test_many_steps_at_once_equal_one_by_one(arm: str) -> None:
    """Computing equal steps together changes no token time and no counter."""
    asks = random_asks(2, 60)
    jumping = EngineCore(config(**ARMS[arm]), LinearTimer())
    stepping = EngineCore(config(**ARMS[arm]), LinearTimer())

    jumped, stepped = play(jumping, asks), play(stepping, asks, max_steps=1)

    assert jumping.counters() == stepping.counters()
    for one, other in zip(jumped, stepped, strict=True):
        np.testing.assert_array_equal(jumping.token_events(one), stepping.token_events(other))


def test_token_times_of_one_request_are_known() -> None:
    """Two chunks and two decode steps of the linear timer take the expected times."""
    core = EngineCore(config(max_batched_tokens=64), LinearTimer())
    prompt = np.arange(100, dtype=np.int32)

    (sequence,) = play(core, [Ask(0, prompt, 3)])

    first = 20 * MS + 64 * 100_000  # 64 prompt tokens
    second = first + 20 * MS + 36 * 100_000  # the other 36; gives token 1
    third = second + 20 * MS + 10_000 + 101  # one query, 101 tokens of context
    fourth = third + 20 * MS + 10_000 + 102
    assert core.token_events(sequence).tolist() == [[second, 1], [third, 1], [fourth, 1]]


def test_an_arrival_waits_for_the_step_in_progress_only() -> None:
    """A request that arrives during a step is admitted by the next step."""
    core = EngineCore(config(), LinearTimer())
    long = Ask(0, np.arange(10, dtype=np.int32), 50)
    late = Ask(100 * MS, np.arange(500, 510, dtype=np.int32), 1)

    first, second = play(core, [long, late])

    times = core.token_events(first)[:, 0]
    begun = times[times >= late.at_ns][0]  # the step in progress at 100 ms ends here
    ends = core.token_events(second)[0, 0]
    assert ends in times  # it shared a step with the decoding sequence
    assert begun < ends <= begun + 25 * MS


def test_static_batching_admits_no_request_until_the_batch_ends() -> None:
    """A late request waits for the slowest sequence of a static batch."""
    asks = [Ask(0, np.arange(10, dtype=np.int32) + i, 10 * (i + 1)) for i in range(3)]
    late = Ask(50 * MS, np.arange(900, 910, dtype=np.int32), 5)
    core = EngineCore(config(batching="static"), LinearTimer())

    *batch, waited = play(core, [*asks, late])

    done = max(core.token_events(sequence)[-1, 0] for sequence in batch)
    assert core.token_events(waited)[0, 0] > done
    assert core.counters().late_admissions == 0


def test_contiguous_memory_runs_fewer_at_once() -> None:
    """With contiguous memory, num_blocks // (blocks of the longest sequence) sequences run."""
    asks = [Ask(0, np.arange(32, dtype=np.int32) + i * 100, 200) for i in range(40)]
    paged = EngineCore(config(num_blocks=1024), LinearTimer())
    contiguous = EngineCore(config(num_blocks=1024, paged_kv=False), LinearTimer())

    play(paged, asks)
    play(contiguous, asks)

    assert paged.counters().peak_running == 40
    assert contiguous.counters().peak_running == 1024 // (4096 // 16)


def test_prefix_hits_are_whole_blocks_without_the_last_token() -> None:
    """Of 64 shared tokens, 48 are reused if they are the whole prompt, else all 64."""
    prompt = np.arange(64, dtype=np.int32)
    longer = np.concatenate([prompt, np.arange(900, 930, dtype=np.int32)])
    core = EngineCore(config(), LinearTimer())

    sequences = play(core, [Ask(0, prompt, 1), Ask(900 * MS, prompt, 1), Ask(1800 * MS, longer, 1)])

    assert [sequence.cached_tokens for sequence in sequences] == [0, 48, 64]


def test_chunked_prefill_keeps_decodes_running() -> None:
    """A long prompt stalls the others for its whole prefill only without chunks."""
    running = Ask(0, np.arange(10, dtype=np.int32), 200)
    long = Ask(500 * MS, np.arange(3000, dtype=np.int32) + 50_000, 2)
    gaps = {}
    for chunked in (True, False):
        core = EngineCore(config(chunked_prefill=chunked), LinearTimer())
        sequence = play(core, [running, long])[0]
        gaps[chunked] = int(np.diff(core.token_events(sequence)[:, 0]).max())

    assert gaps[True] < 80 * MS  # one chunk of 512 tokens
    assert gaps[False] > 300 * MS  # all 3,000


def test_speculation_gives_the_mean_of_the_formula() -> None:
    """A chain of 5 at acceptance 0.78 gives (1 - 0.78^6) / 0.22 = 3.52 tokens per verify step."""
    speculation = SpeculativeConfig(method="draft", draft_tokens=5, acceptance=0.78)
    core = EngineCore(config(speculation=speculation), LinearTimer())

    play(core, [Ask(0, np.arange(20, dtype=np.int32) + i, 400) for i in range(30)])

    counters = core.counters()
    assert counters.accepted_tokens is not None
    assert counters.verify_steps is not None
    mean = 1 + counters.accepted_tokens / counters.verify_steps
    assert mean == pytest.approx((1 - 0.78**6) / 0.22, rel=0.03)


def test_equal_prompts_that_arrive_together_are_stored_once() -> None:
    """Computed side by side, equal beginnings end up in the same blocks, and room for more shows.

    A pool of 64 blocks holds both, and a third prompt that only fits without a second copy.
    """
    shared = np.arange(320, dtype=np.int32)
    tails = [np.concatenate([shared, np.full(32, i, np.int32)]) for i in (7, 8)]
    core = EngineCore(config(num_blocks=64, max_model_len=1024), LinearTimer())
    first, second = (core.submit(tail, 200, 0) for tail in tails)
    now_ns, _ = core.advance(0, max_steps=4)
    assert not core.scheduler.prefilling
    other = core.submit(np.arange(400, dtype=np.int32) + 5000, 4, now_ns)

    core.advance(now_ns, max_steps=3)
    assert other.generated_tokens > 0
    while core.has_work:
        now_ns, _ = core.advance(now_ns)

    assert first.table[:20].tolist() == second.table[:20].tolist()
    assert (core.counters().preemptions, core.scheduler.kv.available) == (0, 64)


def test_preemption_recomputes_and_loses_no_token() -> None:
    """In a pool that is too small, sequences are preempted and still reach their full length."""
    core = EngineCore(config(num_blocks=256, prefix_caching=False), LinearTimer())

    sequences = play(core, random_asks(3, 40, gap_ns=1e6, output=(200, 400)))

    assert (core.counters().preemptions or 0) > 0
    for sequence in sequences:
        assert core.token_events(sequence)[:, 1].sum() == sequence.requested_tokens


def test_a_wrongly_reused_block_changes_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix cache that returns the previous block changes the output."""
    asks = random_asks(4, 20)
    right = answers({}, asks)
    match = PrefixCache.match

    def off_by_one(cache: PrefixCache, ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> BlockIds:
        blocks = match(cache, ids)
        if len(blocks) > 1:
            blocks[-1] = cache.blocks()[0]
        return blocks

    monkeypatch.setattr(PrefixCache, "match", off_by_one)

    assert answers({}, asks) != right


def test_a_block_overwritten_while_decoding_changes_the_output() -> None:
    """The last token depends on every block, so damage after the prefill changes it."""
    prompt = np.arange(40, dtype=np.int32)
    clean, damaged = (EngineCore(config(), LinearTimer()) for _ in range(2))
    expected = play(clean, [Ask(0, prompt, 30)])[0].output_ids

    sequence = damaged.submit(prompt, 30, 0)
    damaged.advance(0, max_steps=3)
    stranger = sequence.table[2:3].copy()  # another user of this block
    damaged.scheduler.contents.write(stranger, 3, np.array([7], dtype=np.int32))
    damaged.advance(10**9)

    assert sequence.output_ids[-1] != expected[-1]


@pytest.mark.parametrize(("prompt", "output"), [(0, 5), (5, 0), (4000, 97)])
def test_an_invalid_length_is_refused(prompt: int, output: int) -> None:
    """An empty prompt, an empty output and one token too many give an error with both numbers."""
    core = EngineCore(config(), LinearTimer())

    with pytest.raises(EngineError, match=f"{prompt} prompt tokens and {output} output"):
        core.submit(np.zeros(prompt, np.int32), output, 0)
    assert not core.has_work


def test_the_cache_is_not_reset_under_running_requests() -> None:
    """A reset is refused during a run, because the cache would not be cold."""
    core = EngineCore(config(), LinearTimer())
    core.submit(np.arange(9, dtype=np.int32), 9, 0)

    with pytest.raises(EngineError, match="in flight"):
        core.reset()


def gone(ask: Ask, gone_ns: int) -> Ask:
    return replace(ask, gone_ns=gone_ns)


def still_there(core: EngineCore) -> int:
    """Return the number of blocks that sequences use."""
    return int(np.count_nonzero(core.scheduler.kv.references))


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted"])
def test_a_cancelled_request_frees_its_blocks_in_any_state(state: str) -> None:
    """A waiting, prefilling, decoding or preempted request is removed and its blocks are freed."""
    core = EngineCore(config(num_blocks=256, max_batched_tokens=64, max_num_seqs=2), LinearTimer())
    scheduler = core.scheduler
    other = core.submit(np.arange(1800, dtype=np.int32), 2200, 0)
    victim = core.submit(np.arange(1000, dtype=np.int32) + 5000, 1500, 0)
    places: dict[str, Callable[[], bool]] = {
        "waiting": lambda: victim in scheduler.waiting,
        "prefilling": lambda: victim in scheduler.prefilling,
        "decoding": lambda: victim in scheduler.decoding.sequences,
        "preempted": lambda: victim.preemptions > 0,
    }
    now_ns = 0
    while not places[state]():
        now_ns, _ = core.advance(now_ns, max_steps=1)

    core.cancel(victim)

    assert not any(there() for name, there in places.items() if name != "preempted")
    assert still_there(core) == other.blocks
    core.cancel(other)
    assert still_there(core) == 0
    assert not core.has_work


def test_the_kv_of_a_cancelled_request_stays_cached() -> None:
    """The next request with the same prefix finds the blocks of prompt and output."""
    prompt = np.arange(100, dtype=np.int32)
    core = EngineCore(config(), LinearTimer())
    victim = core.submit(prompt, 400, 0)
    now_ns, _ = core.advance(0, max_steps=100)

    core.cancel(victim)
    follower = core.submit(np.concatenate([prompt, victim.output_ids[:99]]), 5, now_ns)
    core.advance(now_ns)

    assert victim.generated_tokens == 100
    assert follower.cached_tokens == 192  # 199 tokens are in the KV; the last is always computed


def test_cancelling_the_head_of_the_queue_admits_the_next_request() -> None:
    """After a first request that does not fit is cancelled, the next request is admitted."""
    core = EngineCore(config(num_blocks=256), LinearTimer())
    core.submit(np.arange(3000, dtype=np.int32), 50, 0)
    now_ns, _ = core.advance(0, max_steps=10)
    head = core.submit(np.arange(2000, dtype=np.int32) + 5000, 50, now_ns)
    follower = core.submit(np.arange(100, dtype=np.int32) + 9000, 50, now_ns)
    now_ns, _ = core.advance(now_ns, max_steps=3)
    assert list(core.scheduler.waiting) == [head, follower]

    core.cancel(head)
    core.advance(now_ns, max_steps=1)

    assert follower in core.scheduler.prefilling + core.scheduler.decoding.sequences


def test_a_static_batch_does_not_refill_the_place_of_a_cancelled_request() -> None:
    """A batch of two admits no late request after one request is cancelled before its prefill."""
    core = EngineCore(config(batching="static", max_batched_tokens=64), LinearTimer())
    core.submit(np.arange(200, dtype=np.int32), 50, 0)
    second = core.submit(np.arange(200, dtype=np.int32) + 5000, 50, 0)
    now_ns, _ = core.advance(0, max_steps=1)

    core.cancel(second)
    late = core.submit(np.arange(10, dtype=np.int32) + 9000, 5, now_ns)
    core.advance(now_ns, max_steps=20)

    assert list(core.scheduler.waiting) == [late]
    assert core.counters().late_admissions == 0


def test_cancelling_the_finished_changes_nothing() -> None:
    """Cancelling a finished request frees no block twice."""
    core = EngineCore(config(), LinearTimer())
    (sequence,) = play(core, [Ask(0, np.arange(40, dtype=np.int32), 3)])
    free, counters = core.scheduler.kv.available, core.counters()

    core.cancel(sequence)

    assert core.scheduler.kv.available == free
    assert core.counters() == counters


@pytest.mark.parametrize("arm", ARMS)
def test_an_output_read_step_by_step_is_the_whole_output(arm: str) -> None:
    """The ids after each `catch_up` are a growing prefix of the final ids."""
    asks = random_asks(5, 30, output=(1, 300))
    expected = answers({}, asks)
    core = EngineCore(config(**ARMS[arm]), LinearTimer())
    read: dict[int, list[int]] = {}
    sequences = [core.submit(ask.prompt, ask.output_tokens, 0) for ask in asks]

    now_ns = 0
    while core.has_work:
        now_ns, _ = core.advance(now_ns, max_steps=1)
        core.catch_up()
        for number, sequence in enumerate(sequences):
            seen = read.setdefault(number, [])
            seen.extend(sequence.output_ids[len(seen) : sequence.generated_tokens].tolist())

    assert list(read.values()) == expected


def test_a_server_forgets_step_times_between_requests_only() -> None:
    """Clearing the log changes no later times, and is refused while a request runs."""
    core = EngineCore(config(), LinearTimer())
    core.submit(np.arange(9, dtype=np.int32), 9, 0)
    with pytest.raises(EngineError, match="in flight"):
        core.forget_times()
    end_ns, _ = core.advance(0)

    core.forget_times()
    again = core.submit(np.arange(9, dtype=np.int32) + 50, 9, end_ns)
    last_ns, _ = core.advance(end_ns)

    assert last_ns - end_ns == end_ns
    assert core.token_events(again)[:, 0].tolist()[-1] == last_ns


engines = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([64, 100, 400]),
        "max_model_len": st.just(512),
        "max_num_seqs": st.sampled_from([1, 3, 64]),
        "max_batched_tokens": st.sampled_from([12, 64, 512]),
        "block_size": st.sampled_from([8, 16]),
        "prefix_caching": st.booleans(),
        "chunked_prefill": st.booleans(),
        "batching": st.sampled_from(["continuous", "static", "none"]),
        "paged_kv": st.booleans(),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "speculation": st.sampled_from(
            [None, NGRAM, SpeculativeConfig(method="draft", draft_tokens=2, acceptance=1.0), TREE]
        ),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    engine=engines,
    seed=st.integers(0, 10**6),
    count=st.integers(1, 25),
    patience_ms=st.dictionaries(st.integers(0, 24), st.integers(0, 3000)),
    twins=st.booleans(),
)
def test_no_block_is_lost_and_every_token_arrives(
    engine: dict[str, object], seed: int, count: int, patience_ms: dict[int, int], twins: bool
) -> None:
    """With any load, toggles and cancellations, all tokens arrive and all blocks are freed."""
    asks = random_asks(seed, count, shared=40, suffix=(1, 100), output=(1, 200), gap_ns=2e7)
    if twins:  # every prompt is sent twice at the same time
        asks = [
            replace(ask, at_ns=twin.at_ns, prompt=twin.prompt)
            for ask, twin in zip(asks, (asks[n // 2] for n in range(count)), strict=True)
        ]
    alone = answers(engine, asks)
    asks = [
        gone(ask, ask.at_ns + patience_ms[number] * MS) if number in patience_ms else ask
        for number, ask in enumerate(asks)
    ]
    core = EngineCore(EngineConfig(**engine), LinearTimer())  # type: ignore[arg-type]

    sequences = play(core, asks)

    brought = 0
    for ask, sequence, answer in zip(asks, sequences, alone, strict=True):
        events = core.token_events(sequence)
        brought += int(events[:, 1].sum())
        assert events[:, 1].sum() == sequence.generated_tokens
        assert (events[:, 1] >= 1).all()
        assert (np.diff(events[:, 0]) > 0).all()
        assert (events[:, 0] > ask.at_ns).all()
        if ask.gone_ns is None:
            assert sequence.output_ids.tolist() == answer
            assert sequence.generated_tokens == ask.output_tokens
    assert core.counters().output_tokens == brought
    kv, cache = core.scheduler.kv, core.scheduler.cache
    assert not kv.references.any()
    known = sorted(cache.blocks().tolist()) if cache else []
    assert known == np.flatnonzero(kv.cached).tolist()  # each block once
    assert kv.evictable == len(known)
    step = kv.region_blocks or 1
    assert kv.free + len(known) == kv.num_blocks // step * step
    assert core.counters().cached_prompt_tokens == sum(s.cached_tokens or 0 for s in sequences)
