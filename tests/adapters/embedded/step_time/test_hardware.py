"""GPUs and models of the embedded engine: tables, names, and valid combinations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.adapters.base import EngineError, UnsupportedToggleError
from harness.adapters.embedded.step_time.deployment import Deployment, check_context
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.model_shape import ModelShape
from harness.adapters.embedded.step_time.models import find_model


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-2-70b", 68_976_648_192),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-72b", 72_706_203_648),
        ("llama-2-7b", 6_738_415_616),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_shapes_give_the_published_parameter_counts(name: str, parameters: int) -> None:
    """Every shape gives the number of parameters in the published checkpoint."""
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize(
    "spelling",
    [
        "llama-3-70b",
        "LLAMA-3-70B",
        "meta-llama/Meta-Llama-3-70B-Instruct",
        "META-LLAMA/meta-llama-3-70b",
        "Meta-Llama-3-70B-Instruct",
    ],
)
def test_a_model_has_several_names(spelling: str) -> None:
    """Short and Hugging Face names give the same shape, in any case, with or without the owner."""
    assert find_model(spelling).name == "llama-3-70b"


def test_context_limits_are_those_of_the_release() -> None:
    """Llama 3 and 3.1 differ only in the longest context."""
    assert find_model("Llama-3.1-70B").max_position == 131_072
    assert find_model("llama-3-70b").max_position == 8192


def test_every_default_draft_is_a_model_with_the_same_tokens() -> None:
    """A drafter needs the target's vocabulary (Qwen's padding differs by model size)."""
    for name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen2.5-7b", "qwen3-8b"):
        target = find_model(name)
        draft = find_model(target.default_draft or "")
        assert abs(draft.vocabulary - target.vocabulary) <= 128
        assert draft.parameters < target.parameters / 5


def test_an_unknown_model_names_the_nearest_and_the_list() -> None:
    """The error for a typing error suggests the nearest name and lists all names."""
    with pytest.raises(EngineError, match=r"unknown model 'meta-llama/Llama3-70B'") as caught:
        find_model("meta-llama/Llama3-70B")

    assert "did you mean 'llama-3-70b'" in str(caught.value)
    assert "mistral-7b" in caught.value.__notes__[0]


def test_an_unknown_gpu_names_the_nearest_and_the_list() -> None:
    """The error for a typing error suggests the nearest GPU; otherwise it only lists all GPUs."""
    with pytest.raises(EngineError, match="did you mean 'h100-80gb'"):
        find_gpu("h100-80g")
    with pytest.raises(EngineError) as caught:
        find_gpu("tpu")
    assert str(caught.value) == "embedded engine: unknown GPU 'tpu'"
    assert "a100-40gb, a100-80gb, h100-80gb, h200, l40s, b200" in caught.value.__notes__[0]


def test_only_measured_gpus_are_called_calibrated() -> None:
    """Flag and basis of a GPU without measured kernels state that it is not calibrated."""
    for name in ("a100-40gb", "h200", "l40s", "b200"):
        gpu = find_gpu(name)
        assert not gpu.calibrated
        assert gpu.basis.startswith("not calibrated")
    assert find_gpu("A100-80GB").calibrated
    assert find_gpu("h100-80gb").calibrated


def test_a100_peaks_cross_at_153_operations_a_byte() -> None:
    """The A100-80GB has 312 TFLOP/s, 2.039 TB/s, and 79.2 GiB reported by CUDA."""
    gpu = find_gpu("a100-80gb")
    assert gpu.flops_per_s / gpu.bandwidth_bytes_per_s == pytest.approx(153, abs=0.1)
    assert gpu.memory_bytes / 2**30 == pytest.approx(79.2)
    assert gpu.fp8_flops_per_s is None


def test_a_context_longer_than_the_models_own_is_refused() -> None:
    """The longest context is accepted, one more token is refused, and the note has the limit."""
    model = find_model("llama-3-70b")
    check_context(model, 8192)
    with pytest.raises(EngineError, match="8,193 is outside 1 to 8,192") as caught:
        check_context(model, 8193)
    assert "at most 8192" in caught.value.__notes__[0]
    with pytest.raises(EngineError):
        check_context(model, 0)


@pytest.mark.parametrize(("name", "gpus"), [("qwen2.5-7b", 8), ("llama-3-70b", 3)])
def test_gpus_that_cannot_share_the_heads_are_refused(name: str, gpus: int) -> None:
    """28 heads on 8 GPUs, or 64 on 3, leave a remainder; the note lists valid numbers."""
    with pytest.raises(EngineError, match=f"tensor_parallel {gpus} cannot split {name}") as caught:
        _deployment(name, tensor_parallel=gpus)
    assert "set tensor_parallel to 1, 2, 4" in caught.value.__notes__[0]


TINY = ModelShape(
    name="tiny",
    layers=2,
    hidden=64,
    heads=8,
    kv_heads=4,
    head_dim=8,
    intermediate=128,
    vocabulary=100,
    max_position=64,
)


def test_more_gpus_than_kv_heads_is_allowed() -> None:
    """KV heads are copied when there are fewer of them than GPUs."""
    assert Deployment(model=TINY, gpu=find_gpu("h200"), tensor_parallel=8).tensor_parallel == 8


@pytest.mark.parametrize(
    "odd", [replace(TINY, kv_heads=3), replace(TINY, heads=9), replace(TINY, intermediate=127)]
)
def test_every_split_dimension_must_be_even(odd: ModelShape) -> None:
    """The number of GPUs must divide the heads, KV heads and MLP width."""
    with pytest.raises(EngineError, match="tensor_parallel 2 cannot split tiny"):
        Deployment(model=odd, gpu=find_gpu("h200"), tensor_parallel=2)


def test_fp8_weights_need_fp8_arithmetic() -> None:
    """An A100 has no FP8 arithmetic and refuses the toggle; an H100 accepts it."""
    with pytest.raises(
        UnsupportedToggleError, match="FP8 arithmetic, which a100-80gb does not have"
    ):
        _deployment("llama-3-8b", quantization="fp8")
    assert _deployment("llama-3-8b", gpu="h100-80gb", quantization="fp8").quantization == "fp8"


def test_a_draft_model_is_the_familys_small_one_or_the_one_named() -> None:
    """Llama 3 uses Llama-3.2-1B; a family without a small model needs an explicit draft model."""
    assert _deployment("llama-3-70b", speculative="draft").drafter == find_model("llama-3.2-1b")
    named = find_model("llama-3-8b")
    assert _deployment("llama-3-70b", speculative="draft", draft=named).drafter == named
    with pytest.raises(EngineError, match="mistral-7b has no default draft model"):
        _deployment("mistral-7b", speculative="draft")


def test_eagle_drafts_with_one_layer_of_the_target() -> None:
    """EAGLE has the target's vocabulary, EAGLE-3 has 32,000 tokens; lookup has no network."""
    eagle = _deployment("llama-3-70b", speculative="eagle").drafter
    eagle3 = _deployment("llama-3-70b", speculative="eagle3").drafter
    assert eagle is not None
    assert eagle3 is not None
    assert (eagle.layers, eagle.hidden, eagle.vocabulary) == (1, 8192, 128_256)
    assert (eagle3.layers, eagle3.vocabulary) == (1, 32_000)
    assert _deployment("llama-3-70b", speculative="ngram").drafter is None
    assert _deployment("llama-3-70b").drafter is None


def test_a_drafter_that_cannot_be_shared_runs_whole_on_every_gpu() -> None:
    """Qwen2.5-0.5B has 14 heads, so each of four GPUs has a copy."""
    shared = _deployment("llama-3-70b", tensor_parallel=4, speculative="draft")
    copied = _deployment("qwen2.5-72b", tensor_parallel=4, speculative="draft")
    assert shared.drafter_parallel == 4
    assert copied.drafter_parallel == 1


def _deployment(
    model: str,
    *,
    gpu: str = "a100-80gb",
    tensor_parallel: int = 1,
    quantization: str = "none",
    speculative: str = "off",
    draft: ModelShape | None = None,
) -> Deployment:
    return Deployment(
        model=find_model(model),
        gpu=find_gpu(gpu),
        tensor_parallel=tensor_parallel,
        quantization=quantization,
        speculative=speculative,
        draft=draft,
    )


def test_an_abbreviated_name_suggests_names_with_that_beginning() -> None:
    """`h100` suggests the H100, not the H200, which has the same edit distance."""
    with pytest.raises(EngineError, match=r"did you mean 'h100-80gb'\?"):
        find_gpu("h100")
    with pytest.raises(EngineError, match="did you mean 'a100-40gb' or 'a100-80gb'") as caught:
        find_gpu("A100")
    assert caught.value.about == "gpu"
    with pytest.raises(EngineError, match=r"mean 'llama-3\.1-8b' or 'llama-3\.1-70b'") as seen:
        find_model("meta-llama/Llama-3.1")
    assert seen.value.about == "model"
