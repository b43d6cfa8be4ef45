"""A toggle is believed when a counter moved, and only then; the opposite voids the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from adapters.base import BASELINE, EngineSettings, ServerCounters, ToggleValue
from harness.evidence import Exercise, contradictions, examine

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
    settings = replace(SETTINGS, toggles={toggle: value})
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
        ("quantization", "int8", {}, "unverifiable"),
    ],
)
def test_counters_decide(
    toggle: str, kind: str, counters: dict[str, int | None], expected: str
) -> None:
    """Each counter that moved, or did not, gives the verdict that it must."""
    assert verdict(toggle, kind, counters) == expected


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


def test_the_servers_own_word_against_ours_voids_the_run() -> None:
    """A flag that was not applied is contradicted, whatever the counters say."""
    settings = replace(SETTINGS, toggles={"quantization": ToggleValue("int8")})

    triples = examine(settings, {"quantization": "none"}, COUNTERS, BUSY)

    assert triples["quantization"].verdict == "contradicted"
    assert "int8 was asked for, the server says none" in contradictions(triples)[0]
