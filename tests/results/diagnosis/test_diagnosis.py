"""Tests of every diagnosis rule on runs of the embedded engine with and without the bottleneck."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosed import diagnosed, finding, names

UNLIKE = (
    "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 100, "
    "output_tokens: {uniform: {low: 10, high: 400}}}"
)
ANSWERS = "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 100, output_tokens: 900}"
LONG_PROMPTS = (
    "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 4000, output_tokens: 60}"
)
SHORT_PROMPTS = (
    "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 16, output_tokens: 200}"
)
SYSTEM_PROMPT = (
    "{kind: shared-prefix, name: w, prefix_tokens: 1600, suffix_tokens: 100, output_tokens: 50}"
)
TENANTS = (
    "{kind: shared-prefix, name: w, prefix_tokens: 1600, suffix_tokens: 100, output_tokens: 20, "
    "groups: 20}"
)
TIGHT = "{max_model_len: 8192, memory_utilization: 0.5}"  # about 24,000 KV tokens


def test_a_small_kv_cache_is_reported(tmp_path: Path) -> None:
    """A KV cache that is too small gives the findings `preemptions` and `kv_room`."""
    run = diagnosed(tmp_path, base=TIGHT, workload=ANSWERS, load="{concurrency: 64, requests: 128}")

    assert names(run["baseline"])[:2] == ["preemptions", "kv_room"]
    assert "preemptions in 128 requests" in finding(run["baseline"], "preemptions")["evidence"]
    assert "the KV cache has 24," in finding(run["baseline"], "kv_room")["evidence"]
    assert "lower the concurrency" in finding(run["baseline"], "preemptions")["next"]


def test_a_large_kv_cache_is_not_reported(tmp_path: Path) -> None:
    """The same load has neither finding if it fits into the KV cache."""
    run = diagnosed(tmp_path, workload=ANSWERS, load="{concurrency: 64, requests: 128}")

    assert not {"preemptions", "kv_room"} & set(names(run["baseline"]))
    assert run["baseline"]["measured"]["preemptions"] == 0
    assert run["baseline"]["measured"]["kv_room"] == 0


def test_contiguous_blocks_fill_the_cache(tmp_path: Path) -> None:
    """Without paging each sequence takes the maximum length; with paging the same load fits."""
    runs = diagnosed(
        tmp_path,
        toggles="[paged_kv]",
        workload=UNLIKE,
        load="{concurrency: 40, requests: 120}",
    )

    found = finding(runs["paged_kv=off"], "kv_room")
    assert runs["paged_kv=off"]["bottleneck"] == "kv_room"
    assert "8,192 each, the maximum length, because paged_kv is off" in found["evidence"]
    assert found["next"] == "turn paged_kv on"
    assert "kv_room" not in names(runs["baseline"])


def test_a_static_batch_has_idle_slots(tmp_path: Path) -> None:
    """Answers of different lengths leave slots idle; continuous batching fills them."""
    runs = diagnosed(
        tmp_path,
        toggles="[{batching: [continuous, static, none]}]",
        workload=UNLIKE,
        load="{concurrency: 32, requests: 128}",
    )

    static = runs["batching=static"]
    assert static["bottleneck"] == "idle_slots"
    assert "batching is static" in finding(static, "idle_slots")["evidence"]
    assert "set batching to continuous" in finding(static, "idle_slots")["next"]
    assert finding(runs["batching=none"], "idle_slots")["value"] > 0.9
    assert "idle_slots" not in names(runs["baseline"])


def test_a_rate_above_capacity_is_reported(tmp_path: Path) -> None:
    """A request rate above capacity is a finding with the answered rate."""
    run = diagnosed(
        tmp_path, workload=LONG_PROMPTS, load="{rate: 10, duration: 20 s, arrivals: constant}"
    )["baseline"]

    assert run["bottleneck"] == "arrivals"
    assert "requests/s were due" in finding(run, "arrivals")["evidence"]
    assert "lower the rate to at most" in finding(run, "arrivals")["next"]


def test_a_rate_below_capacity_is_not_reported(tmp_path: Path) -> None:
    """The same prompts at a rate below capacity have no finding."""
    run = diagnosed(
        tmp_path, workload=LONG_PROMPTS, load="{rate: 0.5, duration: 60 s, arrivals: constant}"
    )["baseline"]

    assert run["measured"]["arrivals"] == 0
    assert not {"arrivals", "queue"} & set(names(run))


@pytest.mark.parametrize(("slots", "named"), [(4, True), (64, False)])
def test_waiting_for_a_slot_is_reported(tmp_path: Path, slots: int, named: bool) -> None:
    """With 4 slots for 16 users most of the TTFT is queue time; with 64 slots it is not."""
    run = diagnosed(
        tmp_path,
        base=f"{{max_model_len: 8192, max_num_seqs: {slots}}}",
        load="{concurrency: 16, requests: 64}",
    )["baseline"]

    assert ("queue" in names(run)) is named
    if named:
        assert run["bottleneck"] == "queue"
        assert "all 4 slots are in use" in finding(run, "queue")["evidence"]
        assert "raise max_num_seqs" in finding(run, "queue")["next"]


def test_waiting_for_other_prefills_has_its_own_cause(tmp_path: Path) -> None:
    """If slots and KV blocks are free, the remedy is more prompt tokens per step."""
    run = diagnosed(tmp_path, workload=LONG_PROMPTS, load="{concurrency: 16, requests: 64}")

    found = finding(run["baseline"], "queue")
    assert "requests wait for the prefill of others" in found["evidence"]
    assert "raise max_batched_tokens" in found["next"]


def test_long_prefills_delay_the_tokens_of_other_requests(tmp_path: Path) -> None:
    """Long prompts delay decoding requests; the first remedy is chunked prefill."""
    runs = diagnosed(
        tmp_path,
        toggles="[chunked_prefill]",
        workload=LONG_PROMPTS,
        load="{concurrency: 8, requests: 48}",
    )

    whole = finding(runs["chunked_prefill=off"], "prefill_stalls")
    assert "prefills of other requests take" in whole["evidence"]
    assert "turn chunked_prefill on" in whole["next"]
    assert "smaller chunks" in finding(runs["baseline"], "prefill_stalls")["next"]


def test_short_prefills_delay_no_tokens(tmp_path: Path) -> None:
    """Token gaps are even if a prompt fits into a part of a step."""
    run = diagnosed(tmp_path, workload=SHORT_PROMPTS, load="{concurrency: 8, requests: 48}")

    assert "prefill_stalls" not in names(run["baseline"])
    assert run["baseline"]["measured"]["prefill_stalls"] < 0.1


def test_prefix_caching_that_is_off_is_reported(tmp_path: Path) -> None:
    """Prompts with a shared prefix and no prefix cache give a finding that names the toggle."""
    runs = diagnosed(
        tmp_path,
        toggles="[prefix_caching]",
        workload=SYSTEM_PROMPT,
        load="{concurrency: 4, requests: 40}",
    )

    off = runs["prefix_caching=off"]
    assert off["bottleneck"] == "cache_unused"
    assert "the prefix hit rate is 0%" in finding(off, "cache_unused")["evidence"]
    assert "shares its first 1,600 tokens" in finding(off, "cache_unused")["evidence"]
    assert finding(off, "cache_unused")["next"] == "turn prefix_caching on"
    assert "cache_unused" not in names(runs["baseline"])


def test_evicted_kv_blocks_have_their_own_cause(tmp_path: Path) -> None:
    """With more shared prefixes than the KV cache can store, the cause is eviction."""
    run = diagnosed(tmp_path, base=TIGHT, workload=TENANTS, load="{concurrency: 2, requests: 80}")[
        "baseline"
    ]

    assert run["bottleneck"] == "cache_unused"
    assert "KV blocks were evicted" in finding(run, "cache_unused")["evidence"]
    assert "enlarge the KV cache" in finding(run, "cache_unused")["next"]


def trace(folder: Path, *, own_first: bool) -> str:
    """Write a trace of prompts of four blocks, three shared, one their own; return its entry."""
    lines = [
        {
            "timestamp": 0,
            "input_length": 2048,
            "output_length": 20,
            "hash_ids": [100 + row, 1, 2, 3] if own_first else [1, 2, 3, 100 + row],
        }
        for row in range(24)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return f"{{kind: trace, name: w, path: {path}, block_tokens: 512}}"


@pytest.mark.parametrize("own_first", [True, False])
def test_a_prompt_with_unique_text_first_is_reported(tmp_path: Path, own_first: bool) -> None:
    """A prefix cache finds three shared blocks only if they come before the unique block."""
    run = diagnosed(
        tmp_path,
        workload=trace(tmp_path, own_first=own_first),
        load="{concurrency: 2, requests: 24}",
    )["baseline"]

    assert (run["bottleneck"] == "hidden_prefix") is own_first
    assert ("hidden_prefix" in names(run)) is own_first
    if own_first:
        found = finding(run, "hidden_prefix")
        assert found["value"] == pytest.approx(0.75 * 23 / 24)
        assert "shares its first 0 tokens" in found["evidence"]
        assert "move changing text" in found["next"]


@pytest.mark.parametrize(("acceptance", "named"), [(0.2, True), (0.9, False)])
def test_rejected_drafts_are_reported(tmp_path: Path, acceptance: float, named: bool) -> None:
    """An acceptance rate of 0.2 is a finding, one of 0.9 is not."""
    toggles = f"[{{speculative: [off, {{method: ngram, tokens: 5, acceptance: {acceptance}}}]}}]"
    runs = diagnosed(tmp_path, toggles=toggles, load="{concurrency: 4, requests: 40}")

    [drafting] = [run for arm, run in runs.items() if arm.startswith("speculative")]
    assert ("drafts" in names(drafting)) is named
    assert "drafts" not in names(runs["baseline"])
    assert runs["baseline"]["measured"]["drafts"] is None
    if named:
        assert drafting["bottleneck"] == "drafts"
        assert "draft tokens were accepted" in finding(drafting, "drafts")["evidence"]


@pytest.mark.parametrize(
    ("model", "toggle"), [("llama-3-8b", "cuda_graphs"), ("llama-3.2-1b", "overlap_scheduling")]
)
def test_host_overhead_is_reported(tmp_path: Path, model: str, toggle: str) -> None:
    """Without CUDA graphs, or without overlap, the host limits the token rate of one user."""
    runs = diagnosed(
        tmp_path,
        model=model,
        hardware="{gpu: h100-80gb, count: 1}",
        toggles=f"[{toggle}]",
        load="{concurrency: 1, requests: 6}",
    )

    off = runs[f"{toggle}=off"]
    assert off["bottleneck"] == "launches"
    assert f"{toggle} off" in finding(off, "launches")["evidence"]
    assert finding(off, "launches")["next"] == f"turn {toggle} on"
    assert names(runs["baseline"]) == []


def test_high_concurrency_is_not_compared_with_the_floor(tmp_path: Path) -> None:
    """With more than 8 sequences decoding, a step is longer for reasons other than the host."""
    runs = diagnosed(
        tmp_path,
        hardware="{gpu: h100-80gb, count: 1}",
        toggles="[cuda_graphs]",
        load="{concurrency: 32, requests: 128}",
    )

    assert "launches" not in names(runs["cuda_graphs=off"])


@pytest.mark.parametrize(("model", "named"), [("qwen2.5-0.5b", True), ("llama-3-8b", False)])
def test_a_model_too_small_for_its_gpu_is_reported(tmp_path: Path, model: str, named: bool) -> None:
    """With graphs and overlap on, the host still limits a 0.5B model on an H200."""
    run = diagnosed(tmp_path, model=model, hardware="{gpu: h200, count: 1}")["baseline"]

    assert (run["bottleneck"] == "far_from_floor") is named
    if named:
        assert "graphs and overlap are on" in finding(run, "far_from_floor")["evidence"]


def test_an_idle_engine_has_no_bottleneck(tmp_path: Path) -> None:
    """One user with short prompts and all toggles on gives no finding and no missing data."""
    run: dict[str, Any] = diagnosed(tmp_path)["baseline"]

    assert (run["bottleneck"], run["findings"], run["unjudged"]) == (None, [], {})


@pytest.mark.parametrize(("toggle", "advised"), [("on", False), ("off", True)])
def test_a_remedy_that_is_already_applied_is_not_repeated(
    tmp_path: Path, toggle: str, advised: bool
) -> None:
    """The remedy mentions prefix caching only if it is off."""
    run = diagnosed(
        tmp_path,
        base=f"{{max_model_len: 8192, prefix_caching: {toggle}}}",
        workload=LONG_PROMPTS,
        load="{concurrency: 16, requests: 64}",
    )["baseline"]

    for name in ("queue", "prefill_stalls"):
        assert ("turn prefix_caching on" in finding(run, name)["next"]) is advised
