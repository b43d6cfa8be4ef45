"""Every command line is one that vLLM's parser takes, and says each toggle outright."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import pytest
from stand_in import settings
from stand_in_vllm import parse

from harness.adapters.base import BASELINE, EngineError, ToggleValue, UnsupportedToggleError
from harness.adapters.checks import check_toggles
from harness.adapters.extra_args import check_extra_args
from harness.adapters.vllm.checks import CHECKS, owner
from harness.adapters.vllm.flags import serve_words

NGRAM = ToggleValue("ngram", (("tokens", 3),))
EAGLE3 = ToggleValue("eagle3", (("tokens", 2), ("draft", "some/head")))
FLIPS: list[tuple[str, ToggleValue, str, Any]] = [
    ("prefix_caching", ToggleValue("off"), "enable_prefix_caching", False),
    ("chunked_prefill", ToggleValue("off"), "enable_chunked_prefill", False),
    ("batching", ToggleValue("none"), "max_num_seqs", "1"),
    ("cuda_graphs", ToggleValue("off"), "compilation_config", {"cudagraph_mode": "NONE"}),
    ("overlap_scheduling", ToggleValue("off"), "async_scheduling", False),
    ("kv_cache_dtype", ToggleValue("fp8"), "kv_cache_dtype", "fp8"),
    ("kv_cache_dtype", ToggleValue("int8"), "kv_cache_dtype", "int8_per_token_head"),
    ("kv_cache_dtype", ToggleValue("int4"), "kv_cache_dtype", "int4_per_token_head"),
    ("quantization", ToggleValue("fp8"), "quantization", "fp8"),
    ("quantization", ToggleValue("int8"), "quantization", "int8_per_channel_weight_only"),
    ("attention_backend", ToggleValue("FLASHINFER"), "attention_backend", "FLASHINFER"),
    ("tensor_parallel", ToggleValue("4"), "tensor_parallel_size", "4"),
    ("block_size", ToggleValue("32"), "block_size", "32"),
    (
        "speculative",
        NGRAM,
        "speculative_config",
        {"method": "ngram", "num_speculative_tokens": 3},
    ),
    (
        "speculative",
        EAGLE3,
        "speculative_config",
        {"method": "eagle3", "num_speculative_tokens": 2, "model": "some/head"},
    ),
    (
        "speculative",
        ToggleValue("draft", (("draft", "some/small"),)),
        "speculative_config",
        {"method": "draft_model", "num_speculative_tokens": 5, "model": "some/small"},
    ),
    (
        "speculative",
        ToggleValue("eagle", (("draft", "some/head"),)),
        "speculative_config",
        {"method": "eagle", "num_speculative_tokens": 5, "model": "some/head"},
    ),
]


def parsed(words: list[str]) -> Namespace:
    return parse(words[words.index("serve") :])


def told(options: Namespace, name: str) -> Any:
    value = getattr(options, name)
    is_json = isinstance(value, str) and value.startswith("{")
    return json.loads(value) if is_json else value


def test_the_baseline_says_every_toggle_outright() -> None:
    """No toggle is left to a default that another version or another GPU may change."""
    options = parsed(serve_words(settings(), 8000))

    assert options.enable_prefix_caching is True
    assert options.enable_chunked_prefill is True
    assert options.async_scheduling is True
    assert options.compilation_config == {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    assert options.kv_cache_dtype == "auto"
    assert options.max_num_seqs == "8"
    assert options.max_num_batched_tokens == "512"
    assert options.tensor_parallel_size == "1"
    assert options.host == "127.0.0.1"
    assert options.port == "8000"
    assert options.quantization is options.speculative_config is options.block_size is None


@pytest.mark.parametrize(("toggle", "value", "option", "expected"), FLIPS)
def test_each_value_reaches_the_command_line(
    toggle: str, value: ToggleValue, option: str, expected: Any
) -> None:
    """A flipped toggle changes its own option, so that no two arms are the same server."""
    flipped = settings(**{toggle: value})

    check_toggles(flipped, CHECKS, None)
    options = parsed(serve_words(flipped, 8000))

    assert told(options, option) == expected
    assert told(parsed(serve_words(settings(), 8000)), option) != expected


def test_booleans_nothing_and_mappings_are_written_as_vllm_reads_them() -> None:
    """A switch is --flag or --no-flag, what is not set is left out, a mapping is JSON."""
    words = serve_words(settings(prefix_caching="off", speculative=NGRAM), 8000)

    assert "--no-enable-prefix-caching" in words
    assert "--enable-chunked-prefill" in words
    assert "--quantization" not in words
    assert not {"True", "False", "None"} & set(words)
    assert not any(word.endswith(("=True", "=False", "=None")) for word in words)
    assert not any("_" in word.partition(".")[0] for word in words if word.startswith("--"))


def test_without_chunks_a_step_holds_a_whole_prompt() -> None:
    """A smaller step would be refused; it is part of what the toggle costs."""
    off = settings(chunked_prefill="off")

    assert parsed(serve_words(off, 8000)).max_num_batched_tokens == "2048"
    assert off.step_tokens == 2048
    assert replace(off, max_batched_tokens=4096).step_tokens == 4096
    assert settings().step_tokens == 512


def test_extra_args_come_last_and_are_merged_where_they_can_be() -> None:
    """The author's dotted options join the toggle's own."""
    given = replace(settings(), extra_args=("--enforce-eager", "-cc.mode=0"))

    check_extra_args(given.extra_args, owner)
    words = serve_words(given, 8000)

    assert words[-2:] == ["--enforce-eager", "-cc.mode=0"]
    assert parsed(words).compilation_config == {
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "mode": "0",
    }


@pytest.mark.parametrize(
    "word",
    [
        "--port",
        "--host=0.0.0.0",
        "--no-enable-prefix-caching",
        "--enable_prefix_caching",
        "--enable-prefix",
        "--max-num-seqs=4",
        "--max_model_len",
        "-tp",
        "-q",
        "-sc",
        "-cc",
        "-cc.cudagraph_mode=NONE",
        "--compilation-config.cudagraph_mode=NONE",
        "--spec-method",
        "--disable-log-stats",
        "--served-model-name",
    ],
)
def test_extra_args_cannot_contradict_the_sweep(word: str) -> None:
    """The last of two wins in vLLM, a beginning stands for the whole, _ for -: all in silence."""
    with pytest.raises(EngineError, match=r"extra_args: .* cannot be set there: "):
        check_extra_args(("--seed", "1", word), owner)


@pytest.mark.parametrize(
    "word",
    ["--enforce-eager", "--seed", "--model-impl", "-cc.mode=0", "--kv-cache-memory-bytes", "-O1"],
)
def test_other_extra_args_are_the_authors_own(word: str) -> None:
    """What no toggle and no limit of a sweep sets is passed through."""
    asked = replace(settings(), extra_args=(word, "1"))

    check_extra_args(asked.extra_args, owner)
    assert serve_words(asked, "PORT")[-2:] == [word, "1"]


@pytest.mark.parametrize(
    ("toggle", "value", "cpu", "reason"),
    [
        ("batching", ToggleValue("static"), False, "not offered"),
        ("paged_kv", ToggleValue("off"), False, "always pages"),
        ("preemption", ToggleValue("swap"), False, "computes anew"),
        ("quantization", ToggleValue("int4"), False, "quantized already"),
        ("quantization", ToggleValue("fp8"), True, "needs a GPU"),
        ("cuda_graphs", ToggleValue("on"), True, "needs a GPU"),
        ("overlap_scheduling", ToggleValue("on"), True, "needs a GPU"),
        ("attention_backend", ToggleValue("FLASHINFER"), True, "would be ignored"),
        ("block_size", ToggleValue("16"), True, "multiples of 32"),
        ("block_size", ToggleValue("many"), False, "whole number"),
        ("speculative", ToggleValue("eagle3"), False, "add draft: MODEL"),
        ("speculative", ToggleValue("ngram", (("draft", "m"),)), False, "leave draft out"),
        ("speculative", ToggleValue("ngram", (("acceptance", 0.6),)), False, "embedded engine"),
        ("speculative", ToggleValue("eagle", (("tree", "2x3"),)), False, "drafts a tree"),
    ],
)
def test_what_vllm_cannot_follow_is_refused_with_the_reason(
    toggle: str, value: ToggleValue, cpu: bool, reason: str
) -> None:
    """No value is dropped in silence or run under a label that it does not have."""
    followed = {"cuda_graphs": ToggleValue("off"), "overlap_scheduling": ToggleValue("off")}
    asked = replace(settings(**{**followed, toggle: value}), gpu="cpu" if cpu else "h200")

    with pytest.raises(UnsupportedToggleError, match=f"{toggle}: .*{reason}"):
        check_toggles(asked, CHECKS, None)


def test_the_common_baseline_can_be_followed_on_a_gpu() -> None:
    """Nothing of the baseline that all engines share is refused."""
    assert {toggle.kind for toggle in BASELINE.values()} >= {"on", "auto", "continuous"}

    check_toggles(settings(), CHECKS, None)
