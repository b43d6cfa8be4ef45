"""Preemption by recomputation, and by copying KV to host memory and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_play import Ask, LinearTimer, config, play, random_asks
from small_sweeps import settings_of, swept

from harness.adapters.base import ToggleValue
from harness.adapters.embedded.adapter import EmbeddedAdapter
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

MS = 1_000_000
CROWDED: dict[str, object] = {"num_blocks": 256, "prefix_caching": False}


def crowded(**changes: object) -> EngineCore:
    """Return a core whose pool is too small for all requests of `long_answers`."""
    return EngineCore(config(**(CROWDED | changes)), LinearTimer())


def long_answers() -> list[Ask]:
    return random_asks(3, 40, gap_ns=1e6, output=(200, 400))


def test_swapping_computes_no_prompt_twice() -> None:
    """With swap, prefill computes each prompt once; with recompute, more than once."""
    asks = long_answers()
    swapping, recomputing = crowded(preemption="swap"), crowded()

    swapped, recomputed = play(swapping, asks), play(recomputing, asks)

    prompts = sum(len(ask.prompt) for ask in asks)
    once = sum(len(s.prompt_ids) * (s.preemptions == 0) for s in swapped)
    assert swapping.counters().preemptions
    assert swapping.counters().swapped_tokens
    assert swapping.computed_prompt_tokens < recomputing.computed_prompt_tokens
    assert once <= swapping.computed_prompt_tokens <= 1.2 * prompts
    assert recomputing.counters().swapped_tokens == 0
    assert [s.output_ids.tolist() for s in swapped] == [s.output_ids.tolist() for s in recomputed]
    assert all(s.host_ids is None for s in swapped)


def test_a_copy_delays_the_step_after_it_and_nothing_else() -> None:
    """With blocks for one of two sequences, the second waits in host memory until it fits."""
    core = EngineCore(
        config(num_blocks=8, max_model_len=128, prefix_caching=False, preemption="swap"),
        LinearTimer(),
    )
    first, second = play(core, [Ask(0, np.arange(60, dtype=np.int32) + i, 20) for i in (0, 500)])

    counters = core.counters()
    assert (counters.preemptions, counters.swapped_tokens) == (1, 64)
    assert second.preemptions == 1
    times = core.token_events(first)[:, 0]
    gaps = np.diff(times)
    copied = int(np.argmax(gaps))
    assert copied == 4  # tokens 61 to 64 fill the fourth block of each, the 65th needs a fifth
    assert gaps[copied] == pytest.approx(20 * MS + 64 * 1e-5 * 1e9, abs=0.1 * MS)
    back = core.token_events(second)[:, 0]
    pause = int(np.diff(back).max())
    ends = back[int(np.argmax(np.diff(back)))] + pause
    assert ends > times[-1]
    assert ends - times[-1] == pytest.approx(20 * MS + 64 * 1e-5 * 1e9, abs=0.1 * MS)
    assert len(back) == 20  # each token once: the swap-in gives no token


def test_a_swapped_prefix_that_is_still_cached_is_not_copied_back() -> None:
    """With a prefix cache a swapped sequence reuses its shared prefix when it returns."""
    asks = random_asks(5, 40, shared=400, gap_ns=1e6, output=(200, 400))
    warm = EngineCore(config(num_blocks=256, preemption="swap"), LinearTimer())
    cold = crowded(preemption="swap")

    warm_end = max(int(warm.token_events(s)[-1, 0]) for s in play(warm, asks))
    cold_end = max(int(cold.token_events(s)[-1, 0]) for s in play(cold, asks))

    assert warm.counters().swapped_tokens
    assert warm_end < cold_end


def test_a_request_that_is_cancelled_while_swapped_leaves_nothing() -> None:
    """The copy in host memory is dropped, and the other requests finish."""
    core = EngineCore(
        config(num_blocks=8, max_model_len=128, prefix_caching=False, preemption="swap"),
        LinearTimer(),
    )
    kept = core.submit(np.arange(60, dtype=np.int32), 20, 0)
    gone = core.submit(np.arange(60, dtype=np.int32) + 500, 20, 0)
    now_ns = 0
    while gone.host_ids is None:
        now_ns, _ = core.advance(now_ns, max_steps=1)

    core.cancel(gone)
    core.advance(now_ns)

    assert kept.finished_ns is not None
    assert not core.has_work
    assert core.scheduler.kv.free == 8


def test_a_copy_takes_its_bytes_over_each_gpus_own_link() -> None:
    """1,000 tokens of 81,920 bytes per GPU take 0.2 ms plus their bytes at 80 % of 32 GB/s."""
    four = Deployment(model=find_model("llama-3-70b"), gpu=find_gpu("a100-80gb"), tensor_parallel=4)
    assert StepTime(four).swap_s(1000) == pytest.approx(0.2e-3 + 81_920_000 / (0.8 * 32e9))


def test_a_long_context_is_cheaper_to_copy_than_to_compute() -> None:
    """Copying 4,000 tokens out and back takes a tenth of the time of their prefill."""
    step = StepTime(
        Deployment(model=find_model("llama-3-70b"), gpu=find_gpu("a100-80gb"), tensor_parallel=4)
    )
    assert 2 * step.swap_s(4000) < 0.1 * step.step_s(0, 1, 0, [(4000, 0)], 1)


SWEEP = """
model: llama-3-8b
hardware: {{gpu: a100-40gb}}
engines: [embedded]
base: {{max_model_len: 8192, memory_utilization: {share}}}
toggles: [{{preemption: [recompute, swap]}}]
workloads: [{{kind: shared-prefix, prefix_tokens: 16, suffix_tokens: 500, output_tokens: 600}}]
load: [{{concurrency: 24, requests: 30}}]
blocks: 1
"""


def test_swap_is_verified_by_the_counters(tmp_path: Path) -> None:
    """With little memory both arms preempt, and only one copies tokens to the host."""
    arms = swept(tmp_path, SWEEP.format(share=0.48))

    swap, base = arms["preemption=swap"], arms["baseline"]
    assert swap["evidence"]["preemption"]["verdict"] == "verified"
    assert base["evidence"]["preemption"]["verdict"] == "verified"
    assert swap["counters"]["swapped_tokens"] > 0
    assert base["counters"]["swapped_tokens"] == 0
    assert base["counters"]["preemptions"] > 0


def test_without_preemptions_nothing_is_verified(tmp_path: Path) -> None:
    """With enough memory neither value is exercised."""
    arms = swept(tmp_path, SWEEP.format(share=0.9))
    verdicts = {arm["evidence"]["preemption"]["verdict"] for arm in arms.values()}
    assert verdicts == {"not exercised"}


def test_reports_state_the_assumption_of_swapping() -> None:
    """Only runs with swap have the assumption."""
    for value, stands in (("swap", True), ("recompute", False)):
        with EmbeddedAdapter().start(settings_of(preemption=ToggleValue(value))) as endpoint:
            said = endpoint.facts()["assumptions"]
            assert any("PCIe" in sentence for sentence in said) is stands
            assert endpoint.effective()["preemption"] == value
