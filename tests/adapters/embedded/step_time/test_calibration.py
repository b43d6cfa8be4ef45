"""The tables of measured kernel times: their form, and measured values that they reproduce."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.adapters.embedded.step_time import calibration
from harness.adapters.embedded.step_time.calibration import ALL_REDUCE_S, Curve
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.forward import ForwardPass
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model

A100 = find_gpu("a100-80gb")


def test_a_curve_joins_its_points_and_is_flat_outside() -> None:
    """A curve is linear between points, and constant before the first and after the last."""
    curve = Curve(((1, 10.0), (3, 20.0), (4, 0.0)))
    assert [curve(x) for x in (0, 1, 2, 3, 3.5, 4, 9)] == [10, 10, 15, 20, 10, 0, 0]


def test_an_extended_curve_continues_its_last_line() -> None:
    """After the last point an extended curve keeps the last slope."""
    curve = Curve(((0, 1.0), (2, 2.0), (3, 4.0)), extend=True)
    assert curve(5) == 8.0


@pytest.mark.parametrize("gpus", sorted(ALL_REDUCE_S))
def test_all_reduce_grows_with_the_message(gpus: int) -> None:
    """A larger message never takes less time, with any number of GPUs."""
    sizes = [2**i for i in range(6, 30)]
    times = [ALL_REDUCE_S[gpus](size) for size in sizes]
    assert times == sorted(times)
    assert 4e-6 < times[0] < 6e-6


def test_all_reduce_of_four_gpus_is_as_measured() -> None:
    """Times on 4 A100 (NVIDIA aiconfigurator): 6 µs at 32 KB, 26 µs at 2 MiB, 0.54 ms at 64 MiB.

    Its sizes count 16-bit numbers. vidur measured 0.60 ms for 64 MiB, in bytes.
    """
    curve = ALL_REDUCE_S[4]
    assert curve(2 * 16384) == pytest.approx(6.0e-6)
    assert curve(2**21) == pytest.approx(26e-6)
    assert curve(2**26) == pytest.approx(544e-6, rel=0.01)
    assert curve(2**26) == pytest.approx(603e-6, rel=0.1)


@given(st.integers(1, 100_000))
def test_products_stay_below_the_peaks(tokens: int) -> None:
    """Every share of a peak is below 1, so no product is faster than the roofline."""
    assert 0.3 < calibration.GEMM_BANDWIDTH_SHARE(tokens) < 0.8
    assert 0.3 < calibration.GEMM_FLOPS_SHARE(tokens) < 0.9
    assert 0.1 < calibration.DECODE_ATTENTION_BANDWIDTH_SHARE(tokens) < 0.9


# Single operations on an A100-SXM4-80GB with vLLM 0.14.0, from NVIDIA aiconfigurator 0.12.0
# (Apache-2.0): the products of one Llama-3-70B layer over 4 GPUs. The gate-and-up product of
# 14,336 rows is the mean of the measured 12,288 and 16,384.
@pytest.mark.parametrize(
    ("tokens", "measured_us"),
    [
        (1, 295),
        (16, 316),
        (64, 327),
        (128, 369),
        (192, 491),
        (512, 968),
        (2048, 3238),
        (4096, 6312),
    ],
)
def test_a_layers_products_are_as_measured(tokens: int, measured_us: float) -> None:
    """Products are within 12 %; the tables are means over three engines and two model sizes."""
    layers_s = _pass("llama-3-70b", 4)._products_s(tokens)
    assert layers_s / 80 * 1e6 == pytest.approx(measured_us, rel=0.12)


# The same source: decode attention of 16 query and 2 KV heads, (sequences, context) → µs.
@pytest.mark.parametrize(
    ("sequences", "context", "measured_us"),
    [
        (1, 1024, 19),
        (1, 8192, 34),
        (16, 2048, 45),
        (64, 1024, 72),
        (64, 4096, 195),
        (128, 2048, 226),
    ],
)
def test_decode_attention_is_as_measured(sequences: int, context: int, measured_us: float) -> None:
    """Decode attention is within 12 % of the measured times."""
    start_s, slope_s = _pass("llama-3-70b", 4).decode_attention(sequences, 1)
    layer_us = (start_s + slope_s * sequences * context) / 80 * 1e6
    assert layer_us == pytest.approx(measured_us, rel=0.12)


# The same source: attention of whole prompts, 16 query and 2 KV heads, (prompts, tokens) → µs.
@pytest.mark.parametrize(
    ("prompts", "tokens", "measured_us"),
    [(1, 2048, 150), (1, 8192, 1692), (4, 1024, 164), (8, 512, 115), (16, 4096, 6816)],
)
def test_prefill_attention_is_as_measured(prompts: int, tokens: int, measured_us: float) -> None:
    """Prefill attention is within 12 % of the measured times, from one prompt to sixteen."""
    layer_us = _pass("llama-3-70b", 4).prefill_attention_s([(tokens, 0)] * prompts) / 80 * 1e6
    assert layer_us == pytest.approx(measured_us, rel=0.12)


def test_many_queries_make_decode_attention_compute_bound() -> None:
    """With one KV head, 64 query heads and INT4 KV, 9 queries are compute-bound."""
    model = replace(find_model("llama-3-70b"), kv_heads=1)
    deployment = Deployment(model=model, gpu=A100, kv_cache_dtype="int4")
    passes = ForwardPass(deployment, model, tensor_parallel=1)
    _, one_s = passes.decode_attention(64, 1)
    _, nine_s = passes.decode_attention(64, 9)
    assert nine_s > 2 * one_s


def test_one_prompt_token_over_a_long_context_reads_all_of_it() -> None:
    """Prefill attention is never faster than reading its KV at peak bandwidth."""
    whole_s = _pass("llama-3-8b", 1).prefill_attention_s([(1, 1_000_000)])
    assert whole_s > 1_000_000 * 131_072 / 2.039e12


def test_a_short_chunk_leaves_multiprocessors_idle() -> None:
    """A quarter of the queries with the same context takes nearly as long as all of them."""
    passes = _pass("llama-3-70b", 4)  # 16 heads a GPU: 64 tokens are 16 tiles for 108
    assert passes.prefill_attention_s([(64, 32_768)]) > 0.9 * passes.prefill_attention_s(
        [(256, 32_768)]
    )


def test_logits_are_gathered_over_the_link() -> None:
    """Sampling 64 tokens from split logits needs the link; one GPU needs no link."""
    quick, slow = (
        _pass("llama-3-70b", gpus, link_bytes_per_s=link) for gpus, link in ((4, 600e9), (4, 60e9))
    )
    assert slow.head_s(64) > quick.head_s(64) + 3e-4
    alone = [_pass("llama-3-8b", 1, link_bytes_per_s=link).head_s(64) for link in (600e9, 60e9)]
    assert alone[0] == alone[1]
    assert quick.head_s(0) == 0.0


def test_an_input_product_adds_its_weights_to_the_stream() -> None:
    """EAGLE's input product of 10^9 weights reads 2 GB at the measured share of the peak."""
    model = find_model("llama-3-8b")
    deployment = Deployment(model=model, gpu=A100)
    plain, joined = (
        ForwardPass(deployment, model, tensor_parallel=1, input_parameters=count)
        for count in (0, 10**9)
    )
    share = calibration.GEMM_BANDWIDTH_SHARE(1)
    assert joined.dense_s(1) - plain.dense_s(1) == pytest.approx(2e9 / 2.039e12 / share)
    assert joined.dense_s(4096) > 1.1 * plain.dense_s(4096)


def test_new_tokens_write_their_cache() -> None:
    """A narrow KV cache reduces the bytes that 8,192 prompt tokens write."""
    model = find_model("llama-3-8b")
    wide, narrow = (
        ForwardPass(
            Deployment(model=model, gpu=A100, kv_cache_dtype=dtype), model, tensor_parallel=1
        ).dense_s(8192)
        for dtype in ("auto", "fp8")
    )
    saved_bytes = 8192 * (131_072 - 65_536)
    share = calibration.ELEMENTWISE_BANDWIDTH_SHARE
    assert wide - narrow == pytest.approx(saved_bytes / 2.039e12 / share)


def test_assumption_sentences_contain_the_numbers_in_use() -> None:
    """The number in an assumption sentence is the number that the model uses."""
    sentences = calibration.ASSUMPTIONS
    assert f"{calibration.HOST_STEP_S * 1e3:g} ms per step" in sentences["host"]
    assert f"{calibration.LAUNCH_S * 1e6:.0f} µs" in sentences["launch"]
    assert "80% (int4)" in sentences["weight-only"]
    assert "70% (int4)" in sentences["narrow-cache"]


def _pass(model: str, gpus: int, *, link_bytes_per_s: float = 600e9) -> ForwardPass:
    gpu = replace(A100, link_bytes_per_s=link_bytes_per_s)
    deployment = Deployment(model=find_model(model), gpu=gpu, tensor_parallel=gpus)
    return ForwardPass(deployment, deployment.model, tensor_parallel=gpus)
