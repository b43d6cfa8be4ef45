"""What SGLang tells is read for what it is: its arguments, and series that come up late."""

from __future__ import annotations

from typing import Any

import pytest

from harness.adapters.base import BASELINE, ToggleValue
from harness.adapters.reported_config import effective_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang.reported import (
    READERS,
    SglangConfig,
    assumptions_of,
    reported_config,
    sizes_of,
    totals_of,
)
from harness.adapters.sglang.versions import release_of

NEWEST, NO_VERIFIES, OLD = (release_of(version) for version in ("0.5.23", "0.5.10", "0.5.6"))
RESOLVED: dict[str, Any] = {
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "chunked_prefill_size": 512,
    "max_running_requests": 8,
    "page_size": 16,
    "tp_size": 2,
    "kv_cache_dtype": "fp8_e4m3",
    "quantization": "fp8",
    "dtype": "bfloat16",
    "attention_backend": "fa3",
    "cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}},
    "speculative_algorithm": None,
    "max_total_num_tokens": 4096,
}
DRAFTING = {
    "speculative_algorithm": "STANDALONE",
    "speculative_num_draft_tokens": 4,
    "speculative_draft_model_path": "some/small",
}
ASKED = {**BASELINE, "tensor_parallel": ToggleValue("2")}
# From a scrape of 0.5.23; ranks beyond the first tell the same once more.
SCRAPE = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 900.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 100.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 200.0
sglang:num_requests_total{is_streaming="true",model_name="m"} 10.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20.0
sglang:cuda_graph_passes_total{mode="prefill_none",pp_rank="0",tp_rank="0"} 12.0
sglang:cuda_graph_passes_total{mode="decode_none",pp_rank="0",tp_rank="0"} 15.0
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",pp_rank="0",tp_rank="0"} 80.0
sglang:cuda_graph_passes_total{mode="decode_cuda_graph",pp_rank="0",tp_rank="1"} 80.0
sglang:realtime_tokens_total{mode="decode",pp_rank="0",tp_rank="0"} 190.0
sglang:realtime_tokens_total{mode="prefill_compute",pp_rank="0",tp_rank="0"} 680.0
sglang:per_stage_req_latency_seconds_count{stage="prefill_forward",tp_rank="0"} 10.0
"""
LATER = """\
sglang:per_stage_req_latency_seconds_count{stage="chunked_prefill",tp_rank="0"} 3.0
sglang:per_stage_req_latency_seconds_count{stage="chunked_prefill",tp_rank="1"} 3.0
sglang:spec_verify_calls_total{model_name="m"} 60.0
sglang:num_retracted_requests_total{tp_rank="0"} 2.0
sglang:num_retracted_requests_total{tp_rank="1"} 2.0
sglang:evicted_tokens_total{cache_type="radix",tp_rank="0"} 100.0
"""


def effective(config: SglangConfig, requested: dict[str, ToggleValue]) -> dict[str, str]:
    return effective_labels(config, READERS, requested)


def labels(changes: dict[str, Any], **asked: ToggleValue) -> dict[str, str]:
    return effective(reported_config({**RESOLVED, **changes}), {**ASKED, **asked})


def test_resolved_arguments_are_told_in_our_words() -> None:
    """All toggles that it says anything of, each by the label that results carry."""
    told = labels({}, quantization=ToggleValue("fp8"))

    assert told == {
        "prefix_caching": "on",
        "chunked_prefill": "on",
        "batching": "continuous",
        "paged_kv": "on",
        "preemption": "recompute",
        "cuda_graphs": "on",
        "overlap_scheduling": "on",
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "speculative": "off",
        "attention_backend": "fa3",
        "tensor_parallel": "2",
        "block_size": "16",
    }


@pytest.mark.parametrize(
    ("changes", "toggle", "label"),
    [
        ({"disable_radix_cache": True}, "prefix_caching", "off"),
        ({"chunked_prefill_size": -1}, "chunked_prefill", "off"),
        ({"max_running_requests": 1}, "batching", "none"),
        ({"disable_overlap_schedule": True}, "overlap_scheduling", "off"),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, "cuda_graphs", "off"),
        ({"cuda_graph_config": None, "disable_cuda_graph": True}, "cuda_graphs", "off"),
        ({"cuda_graph_config": None, "disable_cuda_graph": False}, "cuda_graphs", "on"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype", "fp8_e5m2"),
        ({"speculative_algorithm": "NGRAM"}, "speculative", "ngram"),
        ({"speculative_algorithm": "DFLASH"}, "speculative", "DFLASH"),
    ],
)
def test_what_was_resolved_otherwise_is_told(
    changes: dict[str, Any], toggle: str, label: str
) -> None:
    """A value that is none of ours is shown as it stands, and so contradicts."""
    assert labels(changes)[toggle] == label


def test_the_scheduler_knows_best() -> None:
    """Its state tells the limit that took effect, of each of its ranks."""
    state = {"effective_max_running_requests_per_dp": 1, "disable_radix_cache": True}
    told = labels({"internal_states": [state]})

    assert (told["batching"], told["prefix_caching"]) == ("none", "off")


def test_options_of_speculation_are_read_back() -> None:
    """Its draft tokens include the one that is known; a draft model that is not there shows."""
    asked = ToggleValue("draft", (("tokens", 3), ("draft", "some/small")))

    assert labels(DRAFTING, speculative=asked)["speculative"] == asked.label
    without = {**DRAFTING, "speculative_draft_model_path": None}
    assert labels(without, speculative=asked)["speculative"] == "draft(tokens=3,draft=nothing)"


def test_a_server_that_tells_nothing_is_not_guessed_at() -> None:
    """Only that KV is paged needs no telling."""
    assert effective(reported_config(None), ASKED) == {
        "paged_kv": "on",
        "preemption": "recompute",
        "quantization": "none",
    }
    assert sizes_of(reported_config([]))["kv_tokens"] is None


def test_sizes_are_told_in_tokens_and_blocks() -> None:
    """A cache is as large as its tokens; a block is SGLang's page."""
    sizes = sizes_of(reported_config(RESOLVED))

    assert (sizes["kv_tokens"], sizes["kv_blocks"], sizes["block_size"]) == (4096, 256, 16)
    assert (sizes["step_tokens"], sizes["running_limit"]) == (512, 8)


def test_totals_are_of_one_rank_and_of_all_kinds_of_requests() -> None:
    """Streamed or not, from any tier of the cache; a pass of two ranks is one pass."""
    totals = totals_of(ServerMetrics(SCRAPE), reported_config(RESOLVED), NEWEST)

    assert totals.prompt_tokens == 1000
    assert totals.cached_prompt_tokens == 320
    assert totals.output_tokens == 200
    assert (totals.steps, totals.sequence_steps, totals.graph_steps) == (95, 190, 80)


def test_a_series_that_has_not_come_up_is_zero_where_the_version_counts_it() -> None:
    """And nothing where it does not: no proof comes of what was never counted."""
    metrics, said = ServerMetrics(SCRAPE), reported_config(RESOLVED)
    newest, middle, old = (totals_of(metrics, said, one) for one in (NEWEST, NO_VERIFIES, OLD))

    assert (newest.partial_prefill_steps, newest.verify_steps, newest.preemptions) == (0, 0, 0)
    assert (middle.partial_prefill_steps, middle.verify_steps) == (0, None)
    assert old.partial_prefill_steps is old.steps is old.graph_steps is old.preemptions is None
    assert old.sequence_steps is None
    assert newest.evicted_blocks is None
    assert newest.drafted_tokens == 0
    assert newest.accepted_tokens is None


def test_without_metrics_nothing_is_counted() -> None:
    """An empty answer is no answer of zeros."""
    totals = totals_of(ServerMetrics(""), reported_config(RESOLVED), NEWEST)

    assert totals.cached_prompt_tokens is totals.verify_steps is totals.prompt_tokens is None


def test_drafts_are_worked_out_from_verify_steps() -> None:
    """200 tokens of 10 answers: 60 steps gave one each, 2 prefills came twice, 128 drafts stood."""
    totals = totals_of(
        ServerMetrics(SCRAPE + LATER), reported_config({**RESOLVED, **DRAFTING}), NEWEST
    )

    assert (totals.verify_steps, totals.drafted_tokens, totals.accepted_tokens) == (60, 180, 128)
    assert totals.sequence_steps == 60
    assert (totals.partial_prefill_steps, totals.preemptions, totals.evicted_blocks) == (3, 2, 6)


def test_steps_with_drafts_are_no_sequences_where_verifying_is_not_counted() -> None:
    """A step that brings several tokens to one sequence is no batch of several."""
    totals = totals_of(
        ServerMetrics(SCRAPE), reported_config({**RESOLVED, **DRAFTING}), NO_VERIFIES
    )

    assert totals.sequence_steps is totals.drafted_tokens is totals.accepted_tokens is None


def test_how_drafts_are_counted_is_said_beside_them() -> None:
    """With speculation only; of a toy model, that its figures say nothing of real ones."""
    said, draft = reported_config({**RESOLVED, **DRAFTING}), ToggleValue("draft")

    assert assumptions_of(said, ToggleValue("off"), 1000) == []
    (counted,) = assumptions_of(said, draft, 140_000_000_000)
    assert "draft: each verify step counts as 3 drafted tokens" in counted
    assert "a model of 15 MB repeats itself" in assumptions_of(said, draft, 15_000_000)[1]


def test_the_queue_of_the_first_rank_is_its_time_in_nanoseconds() -> None:
    """Every rank of a model waits alike; one of them is counted."""
    name = "sglang:queue_time_seconds_sum"
    ranks = "".join(f'{name}{{tp_rank="{rank}"}} 0.75\n' for rank in (0, 1))

    totals = totals_of(ServerMetrics(SCRAPE + ranks), reported_config(RESOLVED), NEWEST)

    assert totals.queued_ns == 750_000_000
