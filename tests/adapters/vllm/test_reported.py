"""vLLM's own word, from whichever of its mouths, in the words of our toggles."""

from __future__ import annotations

from typing import Any

import pytest

from harness.adapters.base import BASELINE, ToggleValue
from harness.adapters.reported_config import effective_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.reported import READERS, VllmConfig, reported_config, sizes_of, totals_of

ASKED = {**BASELINE, "tensor_parallel": ToggleValue("1")}
CONFIG: dict[str, dict[str, Any] | None] = {
    "model_config": {"dtype": "torch.bfloat16", "quantization": None},
    "cache_config": {
        "block_size": 16,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "num_gpu_blocks": 500,
    },
    "parallel_config": {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
    },
    "scheduler_config": {
        "max_num_batched_tokens": 512,
        "max_num_seqs": 256,
        "enable_chunked_prefill": True,
        "async_scheduling": True,
    },
    "attention_config": {"backend": None},
    "compilation_config": {"cudagraph_mode": [2, 1], "mode": 3},
    "speculative_config": None,
}
LOG = (
    "(EngineCore pid=7) INFO 11-30 01:04:10 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: model='m', speculative_config=None, dtype=torch.bfloat16, "
    "tensor_parallel_size=2, quantization=None, kv_cache_dtype=fp8, enable_prefix_caching=False, "
    "enable_chunked_prefill=True, compilation_config={'cudagraph_mode': <CUDAGraphMode.NONE: 0>}\n"
)
NO_METRICS = ServerMetrics("")


def effective(config: VllmConfig, requested: dict[str, ToggleValue]) -> dict[str, str]:
    return effective_labels(config, READERS, requested)


def config(section: str, **changes: Any) -> dict[str, Any]:
    return {"vllm_config": {**CONFIG, section: {**(CONFIG[section] or {}), **changes}}}


def label(info: Any, toggle: str, asked: str | ToggleValue, log: str = "") -> str | None:
    value = asked if isinstance(asked, ToggleValue) else ToggleValue(asked)
    return effective(reported_config(info, NO_METRICS, log), {**ASKED, toggle: value}).get(toggle)


def test_a_server_that_follows_the_baseline_says_the_same() -> None:
    """The resolved configuration of the common baseline gives its labels back."""
    told = effective(reported_config({"vllm_config": CONFIG}, NO_METRICS, ""), ASKED)

    auto = {"block_size": "16"}
    assert told == {name: value.label for name, value in ASKED.items()} | auto


@pytest.mark.parametrize(
    ("toggle", "section", "changes", "expected"),
    [
        ("prefix_caching", "cache_config", {"enable_prefix_caching": False}, "off"),
        ("chunked_prefill", "scheduler_config", {"enable_chunked_prefill": False}, "off"),
        ("batching", "scheduler_config", {"max_num_seqs": 1}, "none"),
        ("cuda_graphs", "compilation_config", {"cudagraph_mode": 0}, "off"),
        ("cuda_graphs", "compilation_config", {"cudagraph_mode": "NONE"}, "off"),
        ("cuda_graphs", "compilation_config", {"cudagraph_mode": 1}, "on"),
        ("overlap_scheduling", "scheduler_config", {"async_scheduling": False}, "off"),
        ("kv_cache_dtype", "cache_config", {"cache_dtype": "fp8_e4m3"}, "fp8"),
        ("kv_cache_dtype", "cache_config", {"cache_dtype": "int4_per_token_head"}, "int4"),
        ("tensor_parallel", "parallel_config", {"tensor_parallel_size": 4}, "4"),
        ("block_size", "cache_config", {"block_size": 128}, "128"),
        ("attention_backend", "attention_config", {"backend": "FLASHINFER"}, "FLASHINFER"),
    ],
)
def test_another_configuration_gives_another_label(
    toggle: str, section: str, changes: dict[str, Any], expected: str
) -> None:
    """Each toggle is read from its own place, whatever was asked for."""
    assert label(config(section, **changes), toggle, ASKED[toggle]) == expected


def test_a_quantization_that_was_asked_for_is_read_back() -> None:
    """Asked for, vLLM must say so; without being asked it also tells what a checkpoint is."""
    awq = config("model_config", quantization="awq")

    assert label(config("model_config", quantization="fp8"), "quantization", "fp8") == "fp8"
    assert label(config("model_config"), "quantization", "fp8") == "none"
    assert label(awq, "quantization", "none") == "none"
    assert sizes_of(reported_config(awq, NO_METRICS, ""))["checkpoint_quantization"] == "awq"


def test_speculation_is_read_back_with_its_options() -> None:
    """The label holds the server's own numbers: two drafted for three asked is another value."""
    asked = ToggleValue("eagle3", (("tokens", 3), ("draft", "some/head")))
    same = config(
        "speculative_config", method="eagle3", num_speculative_tokens=3, model="some/head"
    )
    other = config(
        "speculative_config", method="eagle3", num_speculative_tokens=2, model="some/head"
    )

    assert label(same, "speculative", asked) == asked.label
    assert label(other, "speculative", asked) == "eagle3(tokens=2,draft=some/head)"
    assert label({"vllm_config": CONFIG}, "speculative", asked) == "off"
    assert label(same, "speculative", "off") == "eagle3"


def test_a_backend_that_the_log_says_was_taken_wins_over_the_configuration() -> None:
    """The configuration repeats what was asked for, also where the platform could not follow."""
    asked = config("attention_config", backend="FLASHINFER")
    log = "INFO Using FLASH_ATTN attention backend out of potential backends: …"

    assert label(asked, "attention_backend", "flashinfer") == "flashinfer"
    assert label(asked, "attention_backend", "FLASHINFER", log) == "FLASH_ATTN"


def test_without_the_configuration_series_and_log_speak() -> None:
    """A server without its development routes still says most of what it runs."""
    metrics = ServerMetrics(
        'vllm:cache_config_info{block_size="32",enable_prefix_caching="False",'
        'num_gpu_blocks="10"} 1.0'
    )
    server = reported_config(None, metrics, LOG)

    told = effective(server, ASKED)

    assert told == {
        "prefix_caching": "off",
        "chunked_prefill": "on",
        "paged_kv": "on",
        "preemption": "recompute",
        "cuda_graphs": "off",
        "kv_cache_dtype": "fp8",
        "quantization": "none",
        "speculative": "off",
        "tensor_parallel": "2",
        "block_size": "32",
    }
    assert sizes_of(server)["kv_tokens"] == 320
    assert sizes_of(server)["step_tokens"] is None


def test_a_server_that_says_nothing_is_not_made_to_say_anything() -> None:
    """Only that vLLM pages its KV is known of any vLLM."""
    assert effective(reported_config(None, NO_METRICS, ""), ASKED) == {
        "paged_kv": "on",
        "preemption": "recompute",
    }


def test_of_two_words_the_one_against_us_counts() -> None:
    """A server whose series contradicts its configuration is not believed."""
    metrics = ServerMetrics('vllm:cache_config_info{enable_prefix_caching="False"} 1.0')
    server = reported_config({"vllm_config": CONFIG}, metrics, "")

    assert effective(server, ASKED)["prefix_caching"] == "off"
    off = {**ASKED, "prefix_caching": ToggleValue("off")}
    assert effective(server, off)["prefix_caching"] == "on"


SCRAPE = """
vllm:prompt_tokens_total 2443.0
vllm:{prefix}prefix_cache_queries_total 2443.0
vllm:{prefix}prefix_cache_hits_total 1536.0
vllm:generation_tokens_total 220.0
vllm:num_preemptions_total 11.0
vllm:time_to_first_token_seconds_count 13.0
vllm:{later}_seconds_count 207.0
vllm:iteration_tokens_total_count 100.0
vllm:iteration_tokens_total_sum {sum}
vllm:iteration_tokens_total_bucket{{le="512.0"}} 97.0
vllm:iteration_tokens_total_bucket{{le="+Inf"}} 100.0
"""


@pytest.mark.parametrize(
    ("prefix", "later"),
    [("", "inter_token_latency"), ("gpu_", "time_per_output_token")],
)
def test_counters_are_found_under_their_old_names_too(prefix: str, later: str) -> None:
    """Names changed over versions; what is counted did not."""
    seen = totals_of(ServerMetrics(SCRAPE.format(prefix=prefix, later=later, sum=1127)), 512)

    assert (seen.prompt_tokens, seen.cached_prompt_tokens, seen.output_tokens) == (2443, 1536, 220)
    assert seen.looked_up_prompt_tokens == 2443
    assert (seen.steps, seen.sequence_steps, seen.preemptions) == (100, 220, 11)
    assert seen.split_prefills_at_least == 3
    assert (seen.drafted_tokens, seen.accepted_tokens) == (0, None)
    assert seen.split_prefills is seen.late_admissions is seen.peak_running is None


def test_steps_that_count_cached_tokens_prove_no_split_prefill() -> None:
    """Where a step's tokens hold what the cache gave, a large step may have been computed whole."""
    text = SCRAPE.format(prefix="", later="inter_token_latency", sum=2663)

    assert totals_of(ServerMetrics(text), 512).split_prefills_at_least is None
    assert (
        totals_of(ServerMetrics(text.replace("2663", "1127")), None).split_prefills_at_least is None
    )


def test_speculation_counts_drafts_and_what_was_kept() -> None:
    """The series exist only where speculation is on."""
    text = SCRAPE.format(prefix="", later="inter_token_latency", sum=1127) + (
        "vllm:spec_decode_num_drafts_total 56.0\n"
        "vllm:spec_decode_num_draft_tokens_total 137.0\n"
        "vllm:spec_decode_num_accepted_tokens_total 100.0\n"
    )

    seen = totals_of(ServerMetrics(text), 512)

    assert (seen.verify_steps, seen.drafted_tokens, seen.accepted_tokens) == (56, 137, 100)


def test_a_server_without_statistics_counts_nothing() -> None:
    """Not even that nothing was drafted."""
    seen = totals_of(ServerMetrics("python_info 1.0"), 512)

    assert seen.drafted_tokens is seen.prompt_tokens is seen.sequence_steps is None
    assert seen.split_prefills_at_least is None
