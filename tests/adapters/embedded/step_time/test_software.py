"""Step times of older engine versions, and of GPUs other than the A100-80GB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.adapters.base import EngineError, UnsupportedToggleError
from harness.adapters.embedded.step_time import calibration
from harness.adapters.embedded.step_time.deployment import SOFTWARE, Deployment
from harness.adapters.embedded.step_time.forward import ForwardPass
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

ONE = Deployment(model=find_model("llama-3-8b"), gpu=find_gpu("a100-80gb"), overlap=False)
FOUR_H100 = Deployment(
    model=find_model("llama-3-70b"), gpu=find_gpu("h100-80gb"), tensor_parallel=4
)


def layers(deployment: Deployment) -> ForwardPass:
    """Return the forward pass of the deployment's model."""
    gpus = deployment.tensor_parallel
    return ForwardPass(deployment, deployment.model, tensor_parallel=gpus)


def test_the_gpu_waits_for_the_host_of_vllm_in_2024() -> None:
    """0.8 ms + 47 µs per sequence instead of 1 ms + 15 µs; several GPUs need 0.6 ms more."""
    old = replace(ONE, software="vllm-2024")
    (now_s, slope_s), (then_s, old_slope_s) = (StepTime(one).decode_line(64) for one in (ONE, old))
    assert then_s - now_s == pytest.approx(0.8e-3 - 1e-3 + 64 * 32e-6, abs=1e-9)
    assert old_slope_s == slope_s
    on_two = [
        StepTime(replace(one, tensor_parallel=2)).decode_line(1)[0]
        - StepTime(one).decode_line(1)[0]
        for one in (old, ONE)
    ]
    assert on_two[0] - on_two[1] == pytest.approx(0.6e-3, abs=1e-9)
    assert any("vLLM 0.2 to 0.6" in line for line in StepTime(old).assumptions())


def test_old_software_refuses_toggles_that_it_did_not_have() -> None:
    """VLLM of 2024 has no overlapped scheduling; an unknown name is an error."""
    with pytest.raises(UnsupportedToggleError, match="overlap_scheduling"):
        replace(ONE, software="vllm-2024", overlap=True)
    with pytest.raises(EngineError, match=", ".join(SOFTWARE)):
        replace(ONE, software="vllm-2030")


@pytest.mark.parametrize(
    ("model", "software", "slower"),
    [
        ("llama-3-8b", "trtllm-2024", True),
        ("llama-2-70b", "trtllm-2023", True),
        ("llama-2-70b", "trtllm-2024", False),
        ("llama-2-7b", "trtllm-2023", False),
    ],
)
def test_old_tensorrt_llm_reads_the_cache_for_each_query_head(
    model: str, software: str, slower: bool
) -> None:
    """Groups of 4, and of 8 before 0.7, are limited by the L2 cache; ungrouped heads are not."""
    now = replace(ONE, model=find_model(model), tensor_parallel=4)
    _, slope_s = layers(now).decode_attention(64, 1)
    _, old_s = layers(replace(now, software=software)).decode_attention(64, 1)
    assert (old_s > 1.3 * slope_s) is slower


def test_one_thread_block_processes_a_long_context() -> None:
    """A token of context takes 14 ns per layer on an A100, with any number of heads."""
    old = replace(ONE, software="trtllm-2024")
    for gpus in (1, 4):
        _, slope_s = layers(replace(old, tensor_parallel=gpus)).decode_attention(1, 1)
        assert slope_s == pytest.approx(32 * 14e-9)
    _, slope_s = layers(replace(old, gpu=find_gpu("h100-80gb"))).decode_attention(1, 1)
    assert slope_s == pytest.approx(32 * 14e-9 * 1.41 / 1.755)


def test_old_all_reduces_take_what_nccl_takes() -> None:
    """Two all-reduces of 128 KiB in each of 80 layers on 4 A100 take 17.7 µs instead of 7.8."""
    now = replace(FOUR_H100, gpu=find_gpu("a100-80gb"))
    old = replace(now, software="trtllm-2024")
    each_s = calibration.NCCL_S[4](131_072) - calibration.ALL_REDUCE_S[4](131_072)
    assert layers(old).dense_s(8) - layers(now).dense_s(8) == pytest.approx(2 * 80 * each_s)
    assert 9e-6 < each_s < 11e-6


# microsoft/vidur (MIT), H100-SXM5-80GB, FP16: milliseconds of one layer's products of Llama-2-70B
# over 2 GPUs, which was not used to fit the tables.
@pytest.mark.parametrize(
    ("tokens", "measured_ms"), [(1, 0.294), (16, 0.298), (64, 0.310), (1024, 1.327), (4096, 4.928)]
)
def test_products_on_h100_are_near_measured_ones(tokens: int, measured_ms: float) -> None:
    """Products are within 8 %, from memory-bound to compute-bound ones."""
    model = find_model("llama-2-70b")
    shared = layers(replace(FOUR_H100, model=model, tensor_parallel=2))
    ms = 1e3 * shared._products_s(tokens) / model.layers
    assert ms == pytest.approx(measured_ms, rel=0.08)


def test_an_a100_40gb_uses_a_larger_share_of_its_bandwidth() -> None:
    """With the same multiprocessors a step is slower by less than 2.039 / 1.555."""
    large, small = (
        layers(replace(ONE, gpu=find_gpu(name))).dense_s(1) for name in ("a100-80gb", "a100-40gb")
    )
    assert 1.1 * large < small < 1.25 * large


def test_no_gpu_streams_faster_than_its_memory() -> None:
    """A step on any GPU takes longer than its weights ÷ peak bandwidth."""
    for name in ("a100-40gb", "a100-80gb", "h100-80gb", "h200", "l40s", "b200"):
        step = StepTime(replace(ONE, gpu=find_gpu(name)))
        fixed_s, _ = step.decode_line(1)
        assert fixed_s > step.roof_s(1, 1, 1, []), name
