"""A toggle is believed when a counter moved, and only then; the opposite voids the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.adapters.base import BASELINE, EngineSettings, ServerCounters, ToggleValue
from harness.experiment.evidence import Exercise, contradictions, examine

SETTINGS = EngineSettings(
    model="m", gpu="g", gpu_count=1, max_model_len=4096, toggles=dict(BASELINE)
)
BUSY = Exercise(prefix_hit_ceiling=0.8, longest_prompt_tokens=2000, most_in_flight=10)
COUNTERS = ServerCounters(
    prompt_tokens=1000,
    cached_prompt_tokens=700,
    split_prefills=3,
    late_admissions=5,
    peak_running=8,
    graph_steps=90,
    drafted_tokens=None,
    evicted_blocks=0,
)


def verdict(
    toggle: str, kind: str, counters: Mapping[str, int | None], exercise: Exercise = BUSY
) -> str:
    value = ToggleValue(kind)
    settings = replace(SETTINGS, toggles={**BASELINE, toggle: value})
    seen = replace(COUNTERS, **counters)
    return examine(settings, {toggle: value.label}, seen, exercise)[toggle].verdict


@pytest.mark.parametrize(
    ("toggle", "kind", "counters", "expected"),
    [
        ("prefix_caching", "on", {}, "verified"),
        ("prefix_caching", "on", {"cached_prompt_tokens": 0}, "contradicted"),
        ("prefix_caching", "on", {"cached_prompt_tokens": 0, "evicted_blocks": 9}, "not exercised"),
        ("prefix_caching", "off", {"cached_prompt_tokens": 0}, "verified"),
        ("prefix_caching", "off", {}, "contradicted"),
        ("prefix_caching", "on", {"cached_prompt_tokens": None}, "unverifiable"),
        ("chunked_prefill", "on", {}, "verified"),
        ("chunked_prefill", "on", {"split_prefills": 0}, "not exercised"),
        ("chunked_prefill", "on", {"split_prefills": 0, "cached_prompt_tokens": 0}, "contradicted"),
        ("chunked_prefill", "off", {"split_prefills": 0}, "verified"),
        ("chunked_prefill", "off", {}, "contradicted"),
        ("batching", "continuous", {}, "verified"),
        ("batching", "static", {}, "contradicted"),
        ("batching", "static", {"late_admissions": 0}, "verified"),
        ("batching", "none", {"late_admissions": 0}, "contradicted"),
        ("batching", "none", {"late_admissions": 0, "peak_running": 1}, "verified"),
        ("cuda_graphs", "on", {}, "verified"),
        ("cuda_graphs", "off", {}, "contradicted"),
        ("cuda_graphs", "off", {"graph_steps": 0}, "verified"),
        ("speculative", "ngram", {"drafted_tokens": 40}, "verified"),
        ("speculative", "ngram", {"drafted_tokens": 0}, "not exercised"),
        ("speculative", "off", {"drafted_tokens": 40}, "contradicted"),
        ("speculative", "off", {"drafted_tokens": 0}, "verified"),
        ("speculative", "off", {"drafted_tokens": None}, "unverifiable"),
        ("preemption", "swap", {"preemptions": 3, "swapped_tokens": 400}, "verified"),
        ("preemption", "swap", {"preemptions": 3, "swapped_tokens": 0}, "not exercised"),
        ("preemption", "swap", {"preemptions": 0, "swapped_tokens": 0}, "not exercised"),
        ("preemption", "recompute", {"preemptions": 3, "swapped_tokens": 0}, "verified"),
        ("preemption", "recompute", {"preemptions": 0, "swapped_tokens": 0}, "not exercised"),
        ("preemption", "recompute", {"preemptions": 3, "swapped_tokens": 400}, "contradicted"),
        ("preemption", "recompute", {"preemptions": 3}, "unverifiable"),
        ("quantization", "int8", {}, "unverifiable"),
    ],
)
def test_counters_decide(
    toggle: str, kind: str, counters: dict[str, int | None], expected: str
) -> None:
    """Each counter that moved, or did not, gives the verdict that it must."""
    assert verdict(toggle, kind, counters) == expected


# What vLLM counts: no evictions, no splits, no peak; but whether the cache was looked into.
REAL = ServerCounters(
    prompt_tokens=1000,
    cached_prompt_tokens=700,
    looked_up_prompt_tokens=1000,
    output_tokens=500,
    steps=100,
    sequence_steps=500,
    split_prefills_at_least=3,
    drafted_tokens=0,
)


@pytest.mark.parametrize(
    ("toggle", "kind", "counters", "expected"),
    [
        ("prefix_caching", "on", {}, "verified"),
        ("prefix_caching", "on", {"cached_prompt_tokens": 0}, "contradicted"),
        ("prefix_caching", "off", {"cached_prompt_tokens": 0}, "contradicted"),
        (
            "prefix_caching",
            "off",
            {"cached_prompt_tokens": 0, "looked_up_prompt_tokens": 0},
            "verified",
        ),
        ("chunked_prefill", "on", {}, "verified"),
        ("chunked_prefill", "on", {"split_prefills_at_least": 0}, "unverifiable"),
        ("chunked_prefill", "off", {}, "contradicted"),
        ("chunked_prefill", "off", {"split_prefills_at_least": 0}, "unverifiable"),
        ("chunked_prefill", "on", {"split_prefills_at_least": None}, "unverifiable"),
        ("batching", "continuous", {}, "verified"),
        ("batching", "continuous", {"sequence_steps": 100}, "not exercised"),
        ("batching", "none", {"sequence_steps": 100}, "verified"),
        ("batching", "none", {}, "contradicted"),
        ("batching", "none", {"steps": None}, "unverifiable"),
        ("cuda_graphs", "off", {}, "unverifiable"),
    ],
)
def test_what_a_real_server_counts_decides_as_far_as_it_goes(
    toggle: str, kind: str, counters: dict[str, int | None], expected: str
) -> None:
    """Totals of a server that keeps no peaks and no splits still tell on from off."""
    value = ToggleValue(kind)
    settings = replace(SETTINGS, toggles={**BASELINE, toggle: value})
    seen = replace(REAL, **counters)

    triples = examine(settings, {toggle: value.label}, seen, BUSY)

    assert triples[toggle].verdict == expected


# What SGLang counts: parts of prompts that were not the last; no lookups; evictions once there are.
PARTS = replace(
    REAL, looked_up_prompt_tokens=None, split_prefills_at_least=None, partial_prefill_steps=4
)


@pytest.mark.parametrize(
    ("kind", "counters", "expected"),
    [
        ("on", {}, "verified"),
        ("off", {}, "contradicted"),
        ("off", {"partial_prefill_steps": 0}, "verified"),
        ("on", {"partial_prefill_steps": 0}, "not exercised"),
        ("on", {"partial_prefill_steps": 0, "cached_prompt_tokens": 0}, "contradicted"),
    ],
)
def test_parts_of_prompts_tell_whether_any_was_cut(
    kind: str, counters: dict[str, int | None], expected: str
) -> None:
    """A prompt that was cut has a part or more before its last, one that was not has none."""
    settings = replace(SETTINGS, toggles={**BASELINE, "chunked_prefill": ToggleValue(kind)})

    triples = examine(settings, {"chunked_prefill": kind}, replace(PARTS, **counters), BUSY)

    assert triples["chunked_prefill"].verdict == expected


@pytest.mark.parametrize(
    ("kv_tokens", "evicted", "expected"),
    [
        (1499, None, "not exercised"),
        (1500, None, "contradicted"),
        (1499, 0, "contradicted"),
        (1500, 3, "not exercised"),
        (None, None, "contradicted"),
    ],
)
def test_lookups_that_are_not_counted_may_have_been(
    kv_tokens: int | None, evicted: int | None, expected: str
) -> None:
    """No hit is held against a cache where all fitted into it, or nothing was thrown out."""
    settings = replace(SETTINGS, toggles={**BASELINE, "prefix_caching": ToggleValue("on")})
    seen = replace(PARTS, cached_prompt_tokens=0, evicted_blocks=evicted)

    triples = examine(settings, {}, seen, replace(BUSY, kv_tokens=kv_tokens))

    assert triples["prefix_caching"].verdict == expected


@pytest.mark.parametrize(
    ("kv_tokens", "expected"), [(1499, "not exercised"), (1500, "contradicted")]
)
def test_a_cache_can_only_forget_what_does_not_fit(kv_tokens: int, expected: str) -> None:
    """No hit in a cache that had room for all that went through it voids the run."""
    settings = replace(SETTINGS, toggles={**BASELINE, "prefix_caching": ToggleValue("on")})
    seen = replace(REAL, cached_prompt_tokens=0)

    triples = examine(settings, {}, seen, replace(BUSY, kv_tokens=kv_tokens))

    assert triples["prefix_caching"].verdict == expected


@pytest.mark.parametrize(
    ("toggle", "kind", "exercise"),
    [
        ("prefix_caching", "off", replace(BUSY, prefix_hit_ceiling=0.0)),
        ("chunked_prefill", "off", replace(BUSY, longest_prompt_tokens=100)),
        ("batching", "continuous", replace(BUSY, most_in_flight=1)),
    ],
)
def test_a_load_that_cannot_move_the_counter_proves_nothing(
    toggle: str, kind: str, exercise: Exercise
) -> None:
    """No shared prefix, no long prompt, no second request: kept, and said so."""
    idle = {"cached_prompt_tokens": 0, "split_prefills": 0, "late_admissions": 0}

    assert verdict(toggle, kind, idle, exercise) == "not exercised"


def test_the_same_holds_for_what_a_real_server_counts() -> None:
    """One request at a time shows no batch, and a short prompt no chunk."""
    seen = replace(REAL, sequence_steps=100, split_prefills_at_least=0)
    quiet = replace(BUSY, longest_prompt_tokens=100, most_in_flight=1)
    toggles = {"batching": ToggleValue("none"), "chunked_prefill": ToggleValue("on")}

    triples = examine(replace(SETTINGS, toggles={**BASELINE, **toggles}), {}, seen, quiet)

    assert {triples[name].verdict for name in toggles} == {"not exercised"}


def test_the_servers_own_word_against_ours_voids_the_run() -> None:
    """A flag that was not applied is contradicted, whatever the counters say."""
    settings = replace(SETTINGS, toggles={**BASELINE, "quantization": ToggleValue("int8")})

    triples = examine(settings, {"quantization": "none"}, COUNTERS, BUSY)

    assert triples["quantization"].verdict == "contradicted"
    assert "int8 was requested, the server reports none" in contradictions(triples)[0]


def test_a_stand_in_verifies_nothing_and_may_contradict() -> None:
    """Its counters are not those of the engine whose name the run has."""
    kinds = {"prefix_caching": "on", "batching": "continuous", "speculative": "off"}
    toggles = {name: ToggleValue(kind) for name, kind in kinds.items()}
    settings = replace(SETTINGS, toggles={**BASELINE, **toggles})
    said = {"speculative": "ngram"}

    real = examine(settings, said, replace(REAL, drafted_tokens=4), BUSY, "real")
    stand_in = examine(settings, said, replace(REAL, drafted_tokens=4), BUSY, "stand-in")

    assert [real[name].verdict for name in kinds] == ["verified"] * 2 + ["contradicted"]
    assert [stand_in[name].verdict for name in kinds] == ["unverifiable"] * 2 + ["contradicted"]
    assert stand_in["prefix_caching"].observed == real["prefix_caching"].observed
