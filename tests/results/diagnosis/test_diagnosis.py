"""The embedded engine, brought into each state that holds a server back, is told what it is."""

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
TIGHT = "{max_model_len: 8192, memory_utilization: 0.5}"  # room for some 18,000 tokens


def test_a_tight_cache_is_named(tmp_path: Path) -> None:
    """Sequences that lose their blocks, and tokens that find no room, with both figures."""
    run = diagnosed(tmp_path, base=TIGHT, workload=ANSWERS, load="{concurrency: 64, requests: 128}")

    assert names(run["baseline"])[:2] == ["preemptions", "kv_room"]
    assert "preemptions in 128 requests" in finding(run["baseline"], "preemptions")["evidence"]
    assert "the KV cache has room for" in finding(run["baseline"], "kv_room")["evidence"]
    assert "lower max_num_seqs" in finding(run["baseline"], "preemptions")["next"]


def test_a_wide_cache_is_not(tmp_path: Path) -> None:
    """The same load where all of it fits."""
    run = diagnosed(tmp_path, workload=ANSWERS, load="{concurrency: 64, requests: 128}")

    assert not {"preemptions", "kv_room"} & set(names(run["baseline"]))
    assert run["baseline"]["measured"]["preemptions"] == 0
    assert run["baseline"]["measured"]["kv_room"] == 0


def test_contiguous_blocks_fill_the_cache(tmp_path: Path) -> None:
    """Without paging each sequence takes its longest length; with it the same load fits."""
    runs = diagnosed(
        tmp_path,
        toggles="[paged_kv]",
        workload=UNLIKE,
        load="{concurrency: 40, requests: 120}",
    )

    found = finding(runs["paged_kv=off"], "kv_room")
    assert runs["paged_kv=off"]["bottleneck"] == "kv_room"
    assert "8,192 each, its longest length since blocks are not paged" in found["evidence"]
    assert found["next"] == "turn paged_kv on"
    assert "kv_room" not in names(runs["baseline"])


def test_a_static_batch_has_idle_slots(tmp_path: Path) -> None:
    """Answers of unlike lengths leave slots idle; continuous batching fills them."""
    runs = diagnosed(
        tmp_path,
        toggles="[{batching: [continuous, static, none]}]",
        workload=UNLIKE,
        load="{concurrency: 32, requests: 128}",
    )

    static = runs["batching=static"]
    assert static["bottleneck"] == "idle_slots"
    assert "batching is static" in finding(static, "idle_slots")["evidence"]
    assert "turn batching to continuous" in finding(static, "idle_slots")["next"]
    assert finding(runs["batching=none"], "idle_slots")["value"] > 0.9
    assert "idle_slots" not in names(runs["baseline"])


def test_arrivals_above_capacity_are_named(tmp_path: Path) -> None:
    """An open loop that asks for more than is answered piles up, and says what was answered."""
    run = diagnosed(
        tmp_path, workload=LONG_PROMPTS, load="{rate: 10, duration: 20 s, arrivals: constant}"
    )["baseline"]

    assert run["bottleneck"] == "arrivals"
    assert "requests/s were due" in finding(run, "arrivals")["evidence"]
    assert "ask for at most" in finding(run, "arrivals")["next"]


def test_arrivals_below_capacity_are_not(tmp_path: Path) -> None:
    """The same prompts at a rate that is answered."""
    run = diagnosed(
        tmp_path, workload=LONG_PROMPTS, load="{rate: 0.5, duration: 60 s, arrivals: constant}"
    )["baseline"]

    assert run["measured"]["arrivals"] == 0
    assert not {"arrivals", "queue"} & set(names(run))


@pytest.mark.parametrize(("slots", "named"), [(4, True), (64, False)])
def test_waiting_for_a_slot_is_named(tmp_path: Path, slots: int, named: bool) -> None:
    """With four slots for sixteen users most of the TTFT is the queue; with enough it is not."""
    run = diagnosed(
        tmp_path,
        base=f"{{max_model_len: 8192, max_num_seqs: {slots}}}",
        load="{concurrency: 16, requests: 64}",
    )["baseline"]

    assert ("queue" in names(run)) is named
    if named:
        assert run["bottleneck"] == "queue"
        assert "all 4 slots are taken" in finding(run, "queue")["evidence"]
        assert "raise max_num_seqs" in finding(run, "queue")["next"]


def test_prompts_that_wait_for_each_others_prefill_are_told_apart(tmp_path: Path) -> None:
    """Where slots and KV room are left, it is the prompt tokens of a step that are short."""
    run = diagnosed(tmp_path, workload=LONG_PROMPTS, load="{concurrency: 16, requests: 64}")

    found = finding(run["baseline"], "queue")
    assert "prompts wait for each other's prefill" in found["evidence"]
    assert "raise max_batched_tokens" in found["next"]


def test_whole_prompts_hold_up_others(tmp_path: Path) -> None:
    """Long prompts beside answers stall these; without chunks the remedy is to have them."""
    runs = diagnosed(
        tmp_path,
        toggles="[chunked_prefill]",
        workload=LONG_PROMPTS,
        load="{concurrency: 8, requests: 48}",
    )

    whole = finding(runs["chunked_prefill=off"], "prefill_stalls")
    assert "lost beside prefills" in whole["evidence"]
    assert "turn chunked_prefill on" in whole["next"]
    assert "smaller chunks" in finding(runs["baseline"], "prefill_stalls")["next"]


def test_short_prompts_hold_up_nobody(tmp_path: Path) -> None:
    """Tokens come evenly where a prompt is a part of a step."""
    run = diagnosed(tmp_path, workload=SHORT_PROMPTS, load="{concurrency: 8, requests: 48}")

    assert "prefill_stalls" not in names(run["baseline"])
    assert run["baseline"]["measured"]["prefill_stalls"] < 0.1


def test_a_cache_that_is_off_is_named(tmp_path: Path) -> None:
    """What could be found and is not, where prompts begin alike, and what to turn on."""
    runs = diagnosed(
        tmp_path,
        toggles="[prefix_caching]",
        workload=SYSTEM_PROMPT,
        load="{concurrency: 4, requests: 40}",
    )

    off = runs["prefix_caching=off"]
    assert off["bottleneck"] == "cache_unused"
    assert "0% of the prompt tokens were found" in finding(off, "cache_unused")["evidence"]
    assert "begins as an earlier one for 1,600" in finding(off, "cache_unused")["evidence"]
    assert finding(off, "cache_unused")["next"] == "turn prefix_caching on"
    assert "cache_unused" not in names(runs["baseline"])


def test_a_cache_that_forgets_is_told_apart(tmp_path: Path) -> None:
    """It is on, but more tenants take turns than it has room for."""
    run = diagnosed(tmp_path, base=TIGHT, workload=TENANTS, load="{concurrency: 2, requests: 80}")[
        "baseline"
    ]

    assert run["bottleneck"] == "cache_unused"
    assert "blocks were dropped to make room" in finding(run, "cache_unused")["evidence"]
    assert "KV cache room" in finding(run, "cache_unused")["next"]


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
def test_a_prompt_that_differs_at_its_front_is_named(tmp_path: Path, own_first: bool) -> None:
    """Three shared blocks behind one of its own are found by no cache; before it they are."""
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
        assert "begins as an earlier one for 0 tokens" in found["evidence"]
        assert "put what changes" in found["next"]


@pytest.mark.parametrize(("acceptance", "named"), [(0.2, True), (0.9, False)])
def test_drafts_that_do_not_stand_are_named(tmp_path: Path, acceptance: float, named: bool) -> None:
    """Few accepted drafts, with what a verify step brings; many are no bottleneck."""
    toggles = f"[{{speculative: [off, {{method: ngram, tokens: 5, acceptance: {acceptance}}}]}}]"
    runs = diagnosed(tmp_path, toggles=toggles, load="{concurrency: 4, requests: 40}")

    [drafting] = [run for arm, run in runs.items() if arm.startswith("speculative")]
    assert ("drafts" in names(drafting)) is named
    assert "drafts" not in names(runs["baseline"])
    assert runs["baseline"]["measured"]["drafts"] is None
    if named:
        assert drafting["bottleneck"] == "drafts"
        assert "drafted tokens were accepted" in finding(drafting, "drafts")["evidence"]


@pytest.mark.parametrize(
    ("model", "toggle"), [("llama-3-8b", "cuda_graphs"), ("llama-3.2-1b", "overlap_scheduling")]
)
def test_steps_that_wait_for_the_host_are_named(tmp_path: Path, model: str, toggle: str) -> None:
    """Without graphs, or without overlap, one user's tokens come at the host's pace."""
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


def test_many_users_are_not_held_against_the_floor_of_one(tmp_path: Path) -> None:
    """With more than a few decoding at once other things than the host lengthen a step."""
    runs = diagnosed(
        tmp_path,
        hardware="{gpu: h100-80gb, count: 1}",
        toggles="[cuda_graphs]",
        load="{concurrency: 32, requests: 128}",
    )

    assert "launches" not in names(runs["cuda_graphs=off"])


@pytest.mark.parametrize(("model", "named"), [("qwen2.5-0.5b", True), ("llama-3-8b", False)])
def test_a_model_too_small_for_its_gpu_is_named(tmp_path: Path, model: str, named: bool) -> None:
    """With graphs and overlap on, the host still leads a model of half a billion on an H200."""
    run = diagnosed(tmp_path, model=model, hardware="{gpu: h200, count: 1}")["baseline"]

    assert (run["bottleneck"] == "far_from_floor") is named
    if named:
        assert "graphs and overlap are on" in finding(run, "far_from_floor")["evidence"]


def test_an_idle_engine_has_no_bottleneck(tmp_path: Path) -> None:
    """One user, short prompts, everything on: nothing is named, and nothing is unknown."""
    run: dict[str, Any] = diagnosed(tmp_path)["baseline"]

    assert (run["bottleneck"], run["findings"], run["unjudged"]) == (None, [], {})


@pytest.mark.parametrize(("toggle", "advised"), [("on", False), ("off", True)])
def test_nothing_is_advised_that_is_done_already(
    tmp_path: Path, toggle: str, advised: bool
) -> None:
    """Where prefixes are cached, caching them is no next step; where they are not, it is."""
    run = diagnosed(
        tmp_path,
        base=f"{{max_model_len: 8192, prefix_caching: {toggle}}}",
        workload=LONG_PROMPTS,
        load="{concurrency: 16, requests: 64}",
    )["baseline"]

    for name in ("queue", "prefill_stalls"):
        assert ("turn prefix_caching on" in finding(run, name)["next"]) is advised
