"""Step times of the embedded engine: the roofline, known times, and the effect of each toggle."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.base import EngineError
from harness.adapters.embedded.step_time import calibration
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

FOUR_A100 = Deployment(
    model=find_model("llama-3-70b"), gpu=find_gpu("a100-80gb"), tensor_parallel=4
)
ONE_A100 = Deployment(model=find_model("llama-3-8b"), gpu=find_gpu("a100-80gb"))
METHODS = ("off", "ngram", "draft", "eagle", "eagle3")

CHUNKS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 32768)), max_size=4)


def decode_ms(
    deployment: Deployment, sequences: int, context: int = 1024, queries: int = 1
) -> float:
    """Return the milliseconds of a step that decodes `sequences` of `context` tokens each."""
    fixed_s, slope_s = StepTime(deployment).decode_line(sequences, queries)
    return 1e3 * (fixed_s + slope_s * sequences * context)


def prefill_ms(deployment: Deployment, tokens: int) -> float:
    """Return the milliseconds of a step that computes one whole prompt."""
    return 1e3 * StepTime(deployment).step_s(0, 1, 0, [(tokens, 0)], 1)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Draw any valid deployment."""
    names = (
        "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "mistral-7b", "qwen2.5-7b", "qwen3-30b-a3b",
        "mixtral-8x7b",
    )  # fmt: skip
    gpus = ("a100-40gb", "a100-80gb", "h100-80gb", "h200", "l40s", "b200")
    model, gpu = find_model(draw(st.sampled_from(names))), find_gpu(draw(st.sampled_from(gpus)))
    weights = ("none", "int8", "int4", "fp8") if gpu.fp8_flops_per_s else ("none", "int8", "int4")
    methods = METHODS if model.default_draft else ("off", "ngram", "eagle", "eagle3")
    sharing = (1, 2, 4) if model.heads % 8 else (1, 2, 4, 8)
    one = st.just(1)
    return Deployment(
        model=model,
        gpu=gpu,
        tensor_parallel=draw(st.sampled_from(sharing)),
        quantization=draw(st.sampled_from(weights)),
        kv_cache_dtype=draw(st.sampled_from(("auto", "fp8", "int8", "int4"))),
        cuda_graphs=draw(st.booleans()),
        overlap=draw(st.booleans()),
        speculative=(method := draw(st.sampled_from(methods))),
        draft_branches=(branches := draw(st.sampled_from((1, 2)) if method != "ngram" else one)),
        draft_depth=3 if branches > 1 else None,
    )


@settings(max_examples=300, deadline=None)
@given(deployments(), st.integers(0, 512), st.integers(1, 9), st.integers(0, 32768), CHUNKS)
def test_no_step_is_faster_than_the_roof(
    deployment: Deployment,
    sequences: int,
    queries: int,
    context: int,
    chunks: list[tuple[int, int]],
) -> None:
    """Every step takes at least bytes ÷ peak bandwidth and FLOPs ÷ peak."""
    if not sequences and not chunks:
        return
    step = StepTime(deployment)
    total, rows = sequences * context, sequences * queries + len(chunks)

    roof_s = step.roof_s(sequences, queries, total, chunks)

    assert 0 < roof_s <= step.step_s(sequences, queries, total, chunks, rows)


@settings(max_examples=100, deadline=None)
@given(deployments(), st.integers(1, 512), st.integers(1, 6), st.integers(0, 2_000_000))
def test_a_step_without_chunks_is_on_the_decode_line(
    deployment: Deployment, sequences: int, queries: int, context_tokens: int
) -> None:
    """A decode step equals the decode line exactly, because the core sums many steps from it."""
    step = StepTime(deployment)
    fixed_s, slope_s = step.decode_line(sequences, queries)

    seconds = step.step_s(sequences, queries, context_tokens, (), sequences * queries)

    assert seconds == fixed_s + slope_s * context_tokens
    assert slope_s > 0


def test_the_roof_is_weights_and_cache_over_bandwidth_when_one_sequence_decodes() -> None:
    """The floor is 137 + 2.1 GB of matrices and 1,025 tokens of KV at 4 × 2.039 TB/s."""
    model = FOUR_A100.model
    matrices = 2 * (model.layers * model.layer_parameters + model.vocabulary * model.hidden)

    roof_s = StepTime(FOUR_A100).roof_s(1, 1, 1024, ())

    assert roof_s == pytest.approx((matrices + 1025 * 327_680) / 4 / 2.039e12, rel=1e-9)
    assert roof_s == pytest.approx(0.0171, abs=1e-4)


def test_the_roof_is_arithmetic_over_peak_when_a_long_prompt_is_computed() -> None:
    """The floor is 2 FLOPs per weight and token plus 4 x 8,192 per layer and pair of tokens."""
    model, tokens = FOUR_A100.model, 4096
    layers = 2 * model.layers * model.layer_parameters * tokens
    attention = 4 * model.layers * model.heads * model.head_dim * tokens * (tokens + 1) // 2

    roof_s = StepTime(FOUR_A100).roof_s(0, 1, 0, [(tokens, 0)])

    assert roof_s == pytest.approx((layers + attention) / 4 / 312e12, rel=1e-9)


def test_the_roof_counts_the_cache_that_a_chunk_reads() -> None:
    """One token after 100,000 earlier tokens reads the KV of all of them."""
    step = StepTime(FOUR_A100)
    read_s = step.roof_s(0, 1, 0, [(1, 100_000)]) - step.roof_s(0, 1, 0, [(1, 0)])
    assert read_s == pytest.approx(100_000 * 327_680 / 4 / 2.039e12, rel=1e-6)


# Constant → (what runs, sequences, queries, how often a step pays it). Launches are counted where
# they bound the step, as everything else hides behind the GPU there.
EAGER = replace(FOUR_A100, cuda_graphs=False)
COUNTED = [
    ("GEMM_START_S", FOUR_A100, 8, 1, 4 * 80 + 1),
    ("ELEMENTWISE_START_S", FOUR_A100, 8, 1, 5 * 80),
    ("SAMPLING_START_S", FOUR_A100, 8, 1, 1),
    ("SAMPLING_BYTES_PER_LOGIT", FOUR_A100, 8, 1, 8 * 128_256 / 2.039e12),
    ("OVERLAP_REST_S", FOUR_A100, 8, 1, 1),
    ("KERNEL_PAUSE_S", replace(EAGER, overlap=False), 256, 1, 12 * 80),
    ("HOST_STEP_S", replace(FOUR_A100, overlap=False), 8, 1, 1),
    ("HOST_SEQUENCE_S", replace(FOUR_A100, overlap=False), 8, 1, 8),
    ("LAUNCH_S", EAGER, 1, 1, 12 * 80),
    ("ALL_REDUCE_LAUNCH_S", EAGER, 1, 1, 2 * 80),
    ("LAUNCH_S", replace(EAGER, speculative="draft"), 1, 6, 12 * (80 + 5 * 16)),
    ("VERIFY_S", replace(FOUR_A100, speculative="ngram"), 8, 6, 1),
    ("NGRAM_STEP_S", replace(FOUR_A100, speculative="ngram"), 8, 6, 1),
    ("NGRAM_SEQUENCE_S", replace(FOUR_A100, speculative="ngram"), 8, 6, 8),
    ("VERIFY_S", replace(FOUR_A100, speculative="eagle"), 8, 6, 1),
    ("DRAFT_RUN_S", replace(FOUR_A100, speculative="eagle"), 8, 6, 5),
    ("DRAFT_RUN_S", replace(FOUR_A100, speculative="ngram"), 8, 6, 0),
]


@pytest.mark.parametrize(("constant", "deployment", "sequences", "queries", "times"), COUNTED)
def test_every_cost_is_counted_as_often_as_it_happens(
    monkeypatch: pytest.MonkeyPatch,
    constant: str,
    deployment: Deployment,
    sequences: int,
    queries: int,
    times: float,
) -> None:
    """A small increase of one constant lengthens a step once for each time the step includes it."""
    before_s, _ = StepTime(deployment).decode_line(sequences, queries)
    value = getattr(calibration, constant)
    monkeypatch.setattr(calibration, constant, 1.01 * value)

    after_s, _ = StepTime(deployment).decode_line(sequences, queries)

    assert after_s - before_s == pytest.approx(0.01 * value * times, rel=1e-6, abs=1e-12)


def test_one_sequence_of_llama_3_70b_decodes_in_27_to_31_ms_on_4_a100() -> None:
    """Kernels alone take about 27 ms and the roofline is 17 ms; twice the roofline is too slow."""
    assert 27 < decode_ms(FOUR_A100, 1) < 31
    assert 33 < decode_ms(FOUR_A100, 64) < 38


# What NVIDIA publishes for TensorRT-LLM 0.5 (Apache-2.0 docs, performance.md): first token of one
# prompt, A100-80GB, FP16, no cache. None of it was used to fit the tables.
@pytest.mark.parametrize(("tokens", "published_ms"), [(128, 47), (2048, 377)])
def test_prefill_of_llama_2_70b_is_near_what_nvidia_published(
    tokens: int, published_ms: float
) -> None:
    """The prediction is within 10 % of the published TTFT on 4 A100."""
    model = find_model("llama-2-70b")
    deployment = replace(FOUR_A100, model=model, software="trtllm-2023")
    assert prefill_ms(deployment, tokens) == pytest.approx(published_ms, rel=0.10)


# LLM-Inference-Bench (Argonne, arXiv 2411.00136), Llama-3-8B on one A100-40GB in FP16, 128 tokens
# in and out: sequences → output tokens/s of TensorRT-LLM, prefill included.
@pytest.mark.parametrize(
    ("sequences", "published"), [(1, 71.9), (16, 1003), (32, 1819), (64, 3000)]
)
def test_batches_of_llama_3_8b_are_near_what_argonne_measured(
    sequences: int, published: float
) -> None:
    """Predictions for the A100-40GB are within 8 % at every batch size."""
    gpu = find_gpu("a100-40gb")
    deployment = replace(ONE_A100, gpu=gpu, software="trtllm-2024")
    step = StepTime(deployment)
    fixed_s, slope_s = step.decode_line(sequences)
    read = sequences * sum(range(129, 256))  # 127 steps after the prefill's token

    seconds = step.step_s(0, 1, 0, [(128, 0)] * sequences, sequences) + 127 * fixed_s
    seconds += slope_s * read

    assert sequences * 128 / seconds == pytest.approx(published, rel=0.08)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 600), st.integers(1, 4000))
def test_more_work_never_takes_less_time(sequences: int, tokens: int) -> None:
    """One more sequence or prompt token never makes a step faster."""
    step = StepTime(FOUR_A100)
    assert step.decode_line(sequences)[0] <= step.decode_line(sequences + 1)[0]
    shorter = step.step_s(0, 1, 0, [(tokens, 0)], 1)
    assert shorter <= step.step_s(0, 1, 0, [(tokens + 1, 0)], 1)
    assert shorter <= step.step_s(0, 1, 0, [(tokens, 1)], 1)


def test_prompt_and_decoding_tokens_share_the_weights() -> None:
    """A mixed step takes longer than either part and less time than both parts in sequence."""
    step = StepTime(FOUR_A100)
    decode_s = step.step_s(32, 1, 32_000, (), 32)
    prefill_s = step.step_s(0, 1, 0, [(128, 512)], 0)

    mixed_s = step.step_s(32, 1, 32_000, [(128, 512)], 32)

    assert max(decode_s, prefill_s) < mixed_s < decode_s + prefill_s


def test_only_sampled_tokens_pay_for_the_lm_head() -> None:
    """A chunk before the end of its prompt does not read 525 MB per GPU (0.26 ms at the peak)."""
    step = StepTime(FOUR_A100)
    middle_s = step.step_s(0, 1, 0, [(512, 0)], 0)
    assert step.step_s(0, 1, 0, [(512, 0)], 1) - middle_s > 0.26e-3


def test_a_step_past_128_tokens_pays_for_another_tile() -> None:
    """129 tokens take over a tenth longer than 128, as measured; 64 take hardly longer than 1."""
    assert decode_ms(FOUR_A100, 129) > 1.1 * decode_ms(FOUR_A100, 128)
    products = StepTime(ONE_A100)
    assert products.decode_line(64)[0] < 1.15 * products.decode_line(1)[0]


def test_graphs_hide_launches_that_a_small_model_waits_for() -> None:
    """Without CUDA graphs the host limits one sequence; a large batch only has kernel pauses."""
    eager = replace(FOUR_A100, cuda_graphs=False)
    assert decode_ms(eager, 1) > 1.2 * decode_ms(FOUR_A100, 1)
    assert 1.0 < decode_ms(eager, 128) / decode_ms(FOUR_A100, 128) < 1.05


def test_a_step_with_prompt_tokens_is_not_replayed() -> None:
    """A few prompt tokens on a fast GPU add launch time, because no CUDA graph replays the step."""
    fast = replace(FOUR_A100, gpu=find_gpu("b200"))
    step = StepTime(fast)
    mixed_s = step.step_s(1, 1, 1000, [(1, 1000)], 1)
    assert mixed_s > 1.2 * step.step_s(2, 1, 2000, (), 2)


def test_overlap_hides_the_host_behind_the_gpu() -> None:
    """Without overlap every step is longer by the host time, which grows with the sequences."""
    serial = replace(FOUR_A100, overlap=False)
    one = decode_ms(serial, 1) - decode_ms(FOUR_A100, 1)
    many = decode_ms(serial, 128) - decode_ms(FOUR_A100, 128)
    host_ms = 1e3 * (calibration.HOST_STEP_S + calibration.HOST_SEQUENCE_S)
    assert one == pytest.approx(host_ms - 1e3 * calibration.OVERLAP_REST_S)
    assert many - one == pytest.approx(127e3 * calibration.HOST_SEQUENCE_S)


def test_narrow_weights_help_small_batches_and_lose_large_ones() -> None:
    """INT4 more than halves the step of one sequence; with 128 sequences it is slower."""
    int8, int4 = (replace(FOUR_A100, quantization=kind) for kind in ("int8", "int4"))
    assert decode_ms(int4, 1) < decode_ms(int8, 1) < 0.7 * decode_ms(FOUR_A100, 1)
    assert decode_ms(int4, 1) < 0.5 * decode_ms(FOUR_A100, 1)
    assert decode_ms(int4, 128) > decode_ms(FOUR_A100, 128)
    assert prefill_ms(int4, 2048) > prefill_ms(FOUR_A100, 2048)


def test_fp8_weights_also_speed_up_prefill_where_the_gpu_computes_in_fp8() -> None:
    """On an H100 FP8 has twice the 16-bit peak; INT8 weights only reduce the bytes."""
    hopper = replace(FOUR_A100, gpu=find_gpu("h100-80gb"))
    plain = prefill_ms(hopper, 4096)
    assert prefill_ms(replace(hopper, quantization="fp8"), 4096) < 0.75 * plain
    assert prefill_ms(replace(hopper, quantization="int8"), 4096) > plain


@pytest.mark.parametrize(("dtype", "most"), [("fp8", 0.62), ("int8", 0.62), ("int4", 0.40)])
def test_a_narrow_cache_cuts_what_context_costs(dtype: str, most: float) -> None:
    """A narrow KV cache reduces the time per token of context and changes nothing else."""
    fixed_s, slope_s = StepTime(FOUR_A100).decode_line(64)
    narrow_fixed_s, narrow_slope_s = StepTime(replace(FOUR_A100, kv_cache_dtype=dtype)).decode_line(
        64
    )
    assert narrow_slope_s / slope_s < most
    assert narrow_fixed_s == pytest.approx(fixed_s, rel=0.01)


def test_two_gpus_are_faster_than_one_and_slower_than_half() -> None:
    """Two GPUs halve the bytes per GPU and add all-reduces, which are slow over PCIe."""
    two = replace(ONE_A100, tensor_parallel=2)
    assert decode_ms(ONE_A100, 1) / 2 < decode_ms(two, 1) < decode_ms(ONE_A100, 1)
    pcie = replace(two, gpu=replace(two.gpu, link_bytes_per_s=64e9))
    assert prefill_ms(pcie, 4096) > 1.5 * prefill_ms(two, 4096)


@pytest.mark.parametrize("method", METHODS[1:])
def test_drafting_makes_a_step_longer_but_not_by_a_step_per_token(method: str) -> None:
    """Verifying 5 draft tokens of one sequence takes far less time than 6 steps."""
    plain = decode_ms(FOUR_A100, 1)
    with_drafts = decode_ms(replace(FOUR_A100, speculative=method), 1, queries=6)
    assert plain < with_drafts < 1.5 * plain


def test_larger_drafters_take_longer() -> None:
    """A draft model of 16 layers takes longer than EAGLE's one layer, and lookup almost no time."""
    times = {
        method: decode_ms(replace(FOUR_A100, speculative=method), 1, queries=6)
        for method in METHODS[1:]
    }
    assert times["ngram"] < times["eagle3"] < times["eagle"] < times["draft"]
    eagle = StepTime(replace(FOUR_A100, speculative="eagle"))
    lookup = StepTime(replace(FOUR_A100, speculative="ngram"))
    assert eagle.decode_line(8, 6)[1] > lookup.decode_line(8, 6)[1]
    prompt_s = eagle.step_s(0, 1, 0, [(512, 0)], 1) - lookup.step_s(0, 1, 0, [(512, 0)], 1)
    assert prompt_s > 1e-3  # one layer of the 80 that take 120 ms


def test_speculation_helps_few_sequences_and_slows_many() -> None:
    """With 3 of 5 draft tokens accepted, 128 sequences are faster without speculation."""
    eagle = replace(FOUR_A100, speculative="eagle")
    tokens_a_step = 4
    assert decode_ms(eagle, 1, queries=6) / tokens_a_step < 0.4 * decode_ms(FOUR_A100, 1)
    assert decode_ms(eagle, 256, queries=6) / tokens_a_step > decode_ms(FOUR_A100, 256)


def test_a_step_that_does_not_draft_does_not_pay_for_a_drafter() -> None:
    """With one query per sequence the drafter does not run."""
    eagle = StepTime(replace(FOUR_A100, speculative="eagle"))
    assert eagle.decode_line(8, 1) == StepTime(FOUR_A100).decode_line(8, 1)


def test_assumptions_are_those_of_the_deployment() -> None:
    """A report gets the basis of the GPU and only the assumptions that apply."""
    plain = StepTime(FOUR_A100).assumptions()
    assert plain[0].endswith("calibrated on kernels measured on A100-SXM4-80GB")
    assert not any("draft" in one or "weight-only" in one for one in plain)
    other = StepTime(
        replace(
            FOUR_A100,
            gpu=find_gpu("h200"),
            quantization="int4",
            kv_cache_dtype="fp8",
            speculative="eagle",
            overlap=False,
        )
    ).assumptions()
    assert "not calibrated" in other[0]
    for word in ("weight-only", "4-bit KV cache", "drafter", "verifying", "GiB of runtime"):
        assert any(word in one for one in other)
    assert not any("overlapped" in one for one in other)
    assert any("overlapped" in one for one in plain)
    assert any("prompt lookup" in one for one in _assumptions("ngram"))


def test_the_time_of_a_step_with_chunks_is_computed_in_microseconds() -> None:
    """The best of three is fast enough for the millions of steps of a sweep."""
    step = StepTime(FOUR_A100)
    chunks = [(200, 300), (150, 0), (102, 1000)]

    def thousand_s() -> float:
        started = time.perf_counter()
        for _ in range(1000):
            step.step_s(60, 1, 60_000, chunks, 61)
        return time.perf_counter() - started

    assert min(thousand_s() for _ in range(3)) < 0.06


def test_a_number_of_gpus_without_measured_all_reduce_is_refused() -> None:
    """16 GPUs need several machines, which the tables do not cover."""
    with pytest.raises(EngineError, match="tensor_parallel 16"):
        replace(FOUR_A100, tensor_parallel=16)


def _assumptions(method: str) -> tuple[str, ...]:
    return StepTime(replace(FOUR_A100, speculative=method)).assumptions()
