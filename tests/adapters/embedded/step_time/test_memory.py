"""The memory model of the embedded engine, and the error when a model does not fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.base import EngineError
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.memory import (
    KvCapacity,
    MemoryLimits,
    kv_bytes_per_token,
    kv_capacity,
    weight_bytes,
)
from harness.adapters.embedded.step_time.models import find_model

GIB = 2**30
LLAMA = find_model("llama-3-70b")
LIMITS = MemoryLimits(max_model_len=8192, max_num_seqs=256, max_batched_tokens=512)
FOUR_A100 = Deployment(model=LLAMA, gpu=find_gpu("a100-80gb"), tensor_parallel=4)


def test_kv_of_a_token_is_two_vectors_of_each_kv_head_and_layer() -> None:
    """A token of Llama-3-70B needs 2 x 80 layers x 8 heads x 128 numbers x 2 bytes = 327,680."""
    assert kv_bytes_per_token(LLAMA) == 327_680
    assert kv_bytes_per_token(find_model("llama-3-8b")) == 131_072


def test_narrow_caches_shrink_kv_and_per_token_scales_cost_their_bytes() -> None:
    """FP8 halves the bytes; INT8 and INT4 add a scale of 2 bytes per vector of 128."""
    assert kv_bytes_per_token(LLAMA, "fp8") == 163_840
    assert kv_bytes_per_token(LLAMA, "int8") == 163_840 + 2 * 80 * 8 * 2
    assert kv_bytes_per_token(LLAMA, "int4") == 81_920 + 2 * 80 * 8 * 2


def test_kv_heads_are_split_until_there_is_one_each_and_copied_beyond() -> None:
    """With 8 KV heads, each of 4 GPUs has 2; with Qwen's 4 KV heads, each of 8 GPUs has 1."""
    assert kv_bytes_per_token(LLAMA, tensor_parallel=4) == 327_680 // 4
    wide = replace(find_model("qwen2.5-7b"), heads=32)
    assert kv_bytes_per_token(wide, tensor_parallel=8) == kv_bytes_per_token(
        wide, tensor_parallel=4
    )


def test_weights_are_two_bytes_each_and_only_layers_are_quantized() -> None:
    """Embeddings, LM head and norms stay 16 bit, so INT8 needs a little more than half."""
    whole = weight_bytes(LLAMA)
    tables = 2 * 2 * LLAMA.vocabulary * LLAMA.hidden

    assert whole == 2 * 70_553_706_496
    assert weight_bytes(LLAMA, "int8") == pytest.approx((whole + tables) / 2, rel=1e-4)
    assert weight_bytes(LLAMA, "fp8") == weight_bytes(LLAMA, "int8")


def test_int4_weights_match_published_checkpoints() -> None:
    """AWQ checkpoints with groups of 128 have 39.8 GB for 70B and 5.7 GB for 8B."""
    assert weight_bytes(LLAMA, "int4") == pytest.approx(39.8e9, rel=0.01)
    assert weight_bytes(find_model("llama-3-8b"), "int4") == pytest.approx(5.73e9, rel=0.01)


def test_kv_memory_is_the_allowed_share_less_weights_and_reserve() -> None:
    """Llama-3-70B leaves about 36 GiB of each of 4 A100-80GB for KV: 0.4 to 0.5 M tokens."""
    kv = kv_capacity(FOUR_A100, LIMITS)

    assert kv.weights_bytes == weight_bytes(LLAMA) // 4
    assert kv.free_bytes == round(
        0.9 * FOUR_A100.gpu.memory_bytes - kv.weights_bytes - kv.reserve_bytes
    )
    assert 1.5 * GIB < kv.reserve_bytes < 4 * GIB
    assert 400_000 < kv.tokens < 500_000
    assert kv.blocks == kv.free_bytes // (81_920 * 16)
    assert kv.tokens == 16 * kv.blocks


def test_everything_that_takes_memory_leaves_fewer_blocks() -> None:
    """Larger steps, more sequences, drafters and a smaller share reduce the KV capacity.

    CUDA graphs reduce it only when they do not fit outside the allowed share.
    """
    graphless = replace(FOUR_A100, cuda_graphs=False)
    whole = kv_capacity(graphless, LIMITS).tokens

    assert kv_capacity(FOUR_A100, LIMITS).tokens == whole
    nearly_all = replace(LIMITS, memory_utilization=0.999)
    assert kv_capacity(FOUR_A100, nearly_all).tokens < kv_capacity(graphless, nearly_all).tokens
    for tighter in (
        replace(LIMITS, max_batched_tokens=16384),
        replace(LIMITS, max_num_seqs=2048),
        replace(LIMITS, memory_utilization=0.8),
    ):
        assert kv_capacity(replace(FOUR_A100, cuda_graphs=False), tighter).tokens < whole
    for method in ("draft", "eagle", "eagle3"):
        drafting = replace(FOUR_A100, cuda_graphs=False, speculative=method)
        assert kv_capacity(drafting, LIMITS).tokens < whole
        assert kv_capacity(drafting, LIMITS).token_bytes > 81_920


def test_a_drafters_memory_excludes_the_weights_it_shares_with_the_target() -> None:
    """EAGLE adds a layer and its input product; a draft model adds all of its weights."""
    plain = kv_capacity(FOUR_A100, LIMITS).weights_bytes
    eagle = kv_capacity(replace(FOUR_A100, speculative="eagle"), LIMITS)
    draft = kv_capacity(replace(FOUR_A100, speculative="draft"), LIMITS)
    copied = Deployment(
        model=find_model("qwen2.5-72b"), gpu=FOUR_A100.gpu, tensor_parallel=4, speculative="draft"
    )
    small = weight_bytes(find_model("qwen2.5-0.5b"))

    layer = LLAMA.layer_parameters + 2 * LLAMA.hidden**2
    assert eagle.weights_bytes - plain == 2 * layer // 4
    assert draft.weights_bytes - plain == weight_bytes(find_model("llama-3.2-1b")) // 4
    alone = kv_capacity(replace(copied, speculative="off"), LIMITS).weights_bytes
    assert kv_capacity(copied, LIMITS).weights_bytes - alone == pytest.approx(small, abs=1)


def test_the_error_for_weights_that_do_not_fit_has_the_missing_memory_and_remedies() -> None:
    """70B in BF16 on one A100-80GB lacks about 62 GiB; two GPUs or INT4 weights are enough."""
    with pytest.raises(EngineError, match=r"does not fit: each GPU needs 13\d\.\d GiB") as caught:
        kv_capacity(replace(FOUR_A100, tensor_parallel=1), LIMITS)

    missing = re.search(r"(\d+\.\d) GiB are missing", str(caught.value))
    assert missing is not None
    assert 60 < float(missing[1]) < 65
    assert caught.value.__notes__ == ["use 2 GPUs, or quantization int4"]


def test_remedies_combine_gpus_and_quantization_if_neither_is_enough() -> None:
    """405B on one A100-40GB needs both more GPUs and INT4."""
    deployment = Deployment(model=find_model("llama-3.1-405b"), gpu=find_gpu("a100-40gb"))
    with pytest.raises(EngineError) as caught:
        kv_capacity(deployment, LIMITS)
    assert caught.value.__notes__ == ["use 8 GPUs with quantization int4"]


def test_the_remedy_for_a_model_that_never_fits_is_a_larger_gpu() -> None:
    """405B does not fit on eight L40S with any quantization."""
    deployment = Deployment(model=find_model("llama-3.1-405b"), gpu=find_gpu("l40s"))
    with pytest.raises(EngineError) as caught:
        kv_capacity(deployment, replace(LIMITS, memory_utilization=0.5))
    assert caught.value.__notes__ == [
        "use a larger GPU: up to 8 GPUs and every quantization are not enough"
    ]


def test_less_than_one_sequence_of_kv_names_the_longest_that_fits() -> None:
    """The engine accepts the length in the note and refuses one more token."""
    tight = Deployment(
        model=find_model("llama-3.1-70b"), gpu=find_gpu("a100-80gb"), tensor_parallel=2
    )
    with pytest.raises(EngineError, match="less than one sequence of max_model_len 131,072") as err:
        kv_capacity(tight, replace(LIMITS, max_model_len=131_072))
    longest = int(err.value.__notes__[0].split("at most ")[1])

    assert longest > 8192
    assert kv_capacity(tight, replace(LIMITS, max_model_len=longest)).tokens == longest
    with pytest.raises(EngineError):
        kv_capacity(tight, replace(LIMITS, max_model_len=longest + 1))
    assert "use 4 GPUs, or quantization int8, or quantization int4" in (err.value.__notes__[1])


def test_every_remedy_that_is_named_works() -> None:
    """Each remedy in a note removes the error."""
    for model in ("llama-3-70b", "llama-3.1-405b", "qwen2.5-72b", "mistral-7b"):
        for gpu in ("a100-40gb", "a100-80gb", "l40s", "h200"):
            deployment = Deployment(model=find_model(model), gpu=find_gpu(gpu))
            for remedy in _remedies(deployment):
                assert _follow(deployment, remedy).tokens >= LIMITS.max_model_len


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["llama-3-70b", "llama-3-8b", "qwen2.5-7b"]),
    st.sampled_from(["a100-80gb", "h200", "l40s"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "int8", "int4"]),
    st.floats(min_value=0.3, max_value=0.98),
)
def test_allocations_fit_in_the_memory(
    model: str, gpu: str, gpus: int, weights: str, share: float
) -> None:
    """Weights, reserve and KV blocks use the allowed share and leave 1 GiB for CUDA graphs."""
    deployment = Deployment(
        model=find_model(model), gpu=find_gpu(gpu), tensor_parallel=gpus, quantization=weights
    )
    try:
        kv = kv_capacity(deployment, replace(LIMITS, memory_utilization=share))
    except EngineError:
        return
    used = kv.weights_bytes + kv.reserve_bytes + kv.tokens * kv.token_bytes
    total = deployment.gpu.memory_bytes
    usable = min(share * total, total - 2**30)
    assert used <= usable + 1
    assert used + 16 * kv.token_bytes > usable - 1


def _remedies(deployment: Deployment) -> list[str]:
    try:
        kv_capacity(deployment, LIMITS)
    except EngineError as error:
        note = error.__notes__[-1]
        found = note.startswith("use ") and not note.startswith("use a larger")
        return note.removeprefix("use ").split(", or ") if found else []
    return []


def _follow(deployment: Deployment, remedy: str) -> KvCapacity:
    count = re.search(r"(\d+) GPUs", remedy)
    weights = re.search(r"quantization (\w+)", remedy)
    changed = replace(
        deployment,
        tensor_parallel=int(count[1]) if count else deployment.tensor_parallel,
        quantization=weights[1] if weights else deployment.quantization,
    )
    return kv_capacity(changed, LIMITS)


@pytest.mark.parametrize(
    ("limits", "about", "note"),
    [
        (
            replace(LIMITS, memory_utilization=0.1),
            "memory_utilization",
            "the cause is memory_utilization 0.1; set memory_utilization to 0.9",
        ),
        (
            replace(LIMITS, block_size=1_000_000),
            "block_size",
            "the cause is block_size 1000000; set block_size to 16",
        ),
    ],
)
def test_an_unusual_setting_is_suggested_before_other_hardware(
    limits: MemoryLimits, about: str, note: str
) -> None:
    """If the default memory_utilization or block_size fits, the error names that setting."""
    with pytest.raises(EngineError) as caught:
        kv_capacity(FOUR_A100, limits)

    assert caught.value.__notes__[-1] == note
    assert caught.value.about == about


def test_an_unusual_setting_that_is_not_the_cause_is_not_named() -> None:
    """70B does not fit on one GPU with any memory_utilization."""
    with pytest.raises(EngineError) as caught:
        kv_capacity(replace(FOUR_A100, tensor_parallel=1), replace(LIMITS, memory_utilization=0.8))

    assert caught.value.about == "gpu"
    assert caught.value.__notes__ == ["use 4 GPUs, or quantization int4"]
