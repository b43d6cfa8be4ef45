"""What TensorRT-LLM logs of itself is read back in the words of the toggles."""

from __future__ import annotations

import pytest

from harness.adapters.base import BASELINE, ToggleValue
from harness.adapters.reported_config import effective_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.tensorrt_llm.reported import READERS, TensorRtLlmConfig, reported_config

ASKED = {**BASELINE, "tensor_parallel": ToggleValue("1")}
ARGUMENTS = (
    "model='/models/a b, (c)' tokenizer=None dtype='bfloat16' tensor_parallel_size=1 "
    "pipeline_parallel_size=1 load_format=<LoadFormat.AUTO: 0> "
    "kv_cache_config=KvCacheConfig(enable_block_reuse=True, "
    "max_attention_window=[1, 2], enable_partial_reuse=False, dtype='auto', tokens_per_block=32) "
    "enable_chunked_prefill=True scheduler_config=SchedulerConfig("
    "capacity_scheduler_policy=<CapacitySchedulerPolicy.GUARANTEED_NO_EVICT: "
    "'GUARANTEED_NO_EVICT'>, context_chunking_policy=None, dynamic_batch_config=None) "
    "speculative_config=None max_batch_size=8 max_num_tokens=512 "
    "cuda_graph_config=CudaGraphConfig(batch_sizes=[1, 2, 4, 8], max_batch_size=8, "
    "enable_padding=True) disable_overlap_scheduler=False attn_backend='TRTLLM'"
)
NO_METRICS = ServerMetrics("")


def effective(config: TensorRtLlmConfig, requested: dict[str, ToggleValue]) -> dict[str, str]:
    return effective_labels(config, READERS, requested)


def log(arguments: str = ARGUMENTS, *lines: str) -> str:
    head = "[11/30/2026-01:02:03] [TRT-LLM] [I] "
    return "\n".join(
        ["INFO starting", *(head + line for line in lines), f"{head}LLM Args:", arguments, "ready"]
    )


def label(text: str, toggle: str, asked: str | ToggleValue) -> str | None:
    value = asked if isinstance(asked, ToggleValue) else ToggleValue(asked)
    return effective(reported_config(text, NO_METRICS, 32), {**ASKED, toggle: value}).get(toggle)


def test_a_server_that_follows_the_baseline_says_the_same() -> None:
    """The logged arguments of the common baseline give its labels back."""
    told = effective(reported_config(log(), NO_METRICS, 32), ASKED)

    # The first is a checkpoint's; one GPU spreads no experts, and there is one copy of the model.
    silent = {"quantization", "expert_parallel", "data_parallel"}
    asked = {name: value.label for name, value in ASKED.items() if name not in silent}
    assert told == asked | {"block_size": "32", "attention_backend": "TRTLLM"}


@pytest.mark.parametrize(
    ("toggle", "old", "new", "expected"),
    [
        ("prefix_caching", "enable_block_reuse=True", "enable_block_reuse=False", "off"),
        ("chunked_prefill", "enable_chunked_prefill=True", "enable_chunked_prefill=False", "off"),
        ("batching", "speculative_config=None max_batch_size=8", "max_batch_size=1", "none"),
        (
            "batching",
            "<CapacitySchedulerPolicy.GUARANTEED_NO_EVICT: 'GUARANTEED_NO_EVICT'>",
            "<CapacitySchedulerPolicy.STATIC_BATCH: 'STATIC_BATCH'>",
            "static",
        ),
        (
            "cuda_graphs",
            "CudaGraphConfig(batch_sizes=[1, 2, 4, 8], max_batch_size=8, enable_padding=True)",
            "None",
            "off",
        ),
        ("overlap_scheduling", "scheduler=False", "scheduler=True", "off"),
        ("kv_cache_dtype", "dtype='auto'", "dtype='fp8'", "fp8"),
        ("tensor_parallel", "tensor_parallel_size=1", "tensor_parallel_size=4", "4"),
        ("attention_backend", "attn_backend='TRTLLM'", "attn_backend='VANILLA'", "VANILLA"),
    ],
)
def test_another_argument_gives_another_label(
    toggle: str, old: str, new: str, expected: str
) -> None:
    """Each toggle is read from its own place, whatever was asked for."""
    assert old in ARGUMENTS

    assert label(log(ARGUMENTS.replace(old, new)), toggle, ASKED[toggle]) == expected


@pytest.mark.parametrize(
    ("toggle", "line"),
    [
        ("prefix_caching", "[W] Disabling block reuse for FLASHINFER backend"),
        ("prefix_caching", "[W] KV cache reuse for MLA …, disable enable_block_reuse for SM80"),
        (
            "chunked_prefill",
            "[W] Chunked Prefill for MLA …, disable enable_chunked_context for SM80",
        ),
        ("overlap_scheduling", "[W] Disable overlap scheduler for speculation mode NGRAM"),
    ],
)
def test_what_could_not_be_followed_is_logged_and_counts(toggle: str, line: str) -> None:
    """The arguments may still say what was asked for."""
    assert label(log(ARGUMENTS, line), toggle, "on") == "off"


def test_graphs_that_were_captured_are_on_whatever_was_asked() -> None:
    """The arguments may say off: what was done counts."""
    off = ARGUMENTS.replace("cuda_graph_config=CudaGraphConfig(", "other=CudaGraphConfig(")
    text = log(f"{off} cuda_graph_config=None", "Creating CUDA graph instances for 8 batch sizes.")

    assert label(text, "cuda_graphs", "off") == "on"


@pytest.mark.parametrize(
    ("logged", "asked", "expected"),
    [
        ("None", "off", "off"),
        ("None", ToggleValue("ngram", (("tokens", 3),)), "off"),
        ("NGramDecodingConfig(max_draft_len=3, is_keep_all=True)", "off", "ngram"),
        (
            "NGramDecodingConfig(max_draft_len=3, is_keep_all=True)",
            ToggleValue("ngram", (("tokens", 3),)),
            "ngram(tokens=3)",
        ),
        (
            "Eagle3DecodingConfig(max_draft_len=2, speculative_model=PosixPath('some/head'))",
            ToggleValue("eagle3", (("tokens", 3), ("draft", "some/head"))),
            "eagle3(tokens=2,draft=some/head)",
        ),
        ("MTPDecodingConfig(max_draft_len=1)", "off", "MTPDecodingConfig"),
    ],
)
def test_speculation_is_read_back_with_its_options(
    logged: str, asked: str | ToggleValue, expected: str
) -> None:
    """The label holds the server's own numbers: two drafted for three asked is another value."""
    text = log(ARGUMENTS.replace("speculative_config=None", f"speculative_config={logged}"))

    assert label(text, "speculative", asked) == expected


def test_series_of_a_newer_version_are_held_against_the_arguments() -> None:
    """Of two words the one against us counts."""
    metrics = ServerMetrics(
        'trtllm_kv_cache_config_info{enable_block_reuse="false",page_size="64"} 1.0\n'
        'trtllm_parallel_config_info{tensor_parallel_size="2"} 1.0\n'
        'trtllm_speculative_config_info{spec_enabled="false"} 1.0\n'
    )

    both = effective(reported_config(log(), metrics, 32), ASKED)
    alone = effective(reported_config("", metrics, None), ASKED)

    assert (both["prefix_caching"], both["tensor_parallel"]) == ("off", "2")
    assert alone == {
        "prefix_caching": "off",
        "paged_kv": "on",
        "preemption": "recompute",
        "speculative": "off",
        "tensor_parallel": "2",
        "block_size": "64",
    }


def test_a_server_that_says_nothing_is_not_made_to_say_anything() -> None:
    """Only that it pages its KV, and computes anew what it paused, is known of any."""
    assert effective(reported_config("", NO_METRICS, None), ASKED) == {
        "paged_kv": "on",
        "preemption": "recompute",
    }


def test_of_several_starts_in_one_log_the_last_counts() -> None:
    """A first, smaller one estimates how much memory there is."""
    text = (
        log() + "\n" + log(ARGUMENTS.replace("enable_block_reuse=True", "enable_block_reuse=False"))
    )

    assert label(text, "prefix_caching", "on") == "off"
