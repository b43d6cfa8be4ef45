"""Every command line is one that SGLang's parser takes, and says each toggle outright."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace

import pytest
from repository import STAND_INS
from sglang_settings import settings
from stand_in_sglang import parse

from harness.adapters.base import EngineError, EngineSettings, ToggleValue, UnsupportedToggleError
from harness.adapters.checks import check_toggles
from harness.adapters.extra_args import check_extra_args
from harness.adapters.sglang.checks import CHECKS, forced_off, owner
from harness.adapters.sglang.flags import SglangBuild, serve_words
from harness.adapters.sglang.versions import release_of

NGRAM = ToggleValue("ngram", (("tokens", 3),))
GPU = SglangBuild(release=release_of("0.5.23"))
CPU = replace(GPU, cpu=True, verifies_on_cpu=True)
PLAIN_CPU = replace(GPU, cpu=True)
# Toggle, value, and the options that it must set.
FLIPS: list[tuple[str, ToggleValue, dict[str, object]]] = [
    ("prefix_caching", ToggleValue("off"), {"disable_radix_cache": True}),
    ("chunked_prefill", ToggleValue("off"), {"chunked_prefill_size": "-1"}),
    ("batching", ToggleValue("none"), {"max_running_requests": "1"}),
    (
        "cuda_graphs",
        ToggleValue("off"),
        {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"},
    ),
    ("overlap_scheduling", ToggleValue("off"), {"disable_overlap_schedule": True}),
    ("kv_cache_dtype", ToggleValue("fp8"), {"kv_cache_dtype": "fp8_e4m3"}),
    ("quantization", ToggleValue("fp8"), {"quantization": "fp8"}),
    ("attention_backend", ToggleValue("FlashInfer"), {"attention_backend": "flashinfer"}),
    ("tensor_parallel", ToggleValue("4"), {"tp_size": "4"}),
    ("block_size", ToggleValue("64"), {"page_size": "64"}),
    (
        "speculative",
        NGRAM,
        {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": "4"},
    ),
    (
        "speculative",
        ToggleValue("draft", (("tokens", 2), ("draft", "some/small"))),
        {
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": "some/small",
            "speculative_num_steps": "2",
            "speculative_eagle_topk": "1",
            "speculative_num_draft_tokens": "3",
        },
    ),
    (
        "speculative",
        ToggleValue("eagle", (("draft", "some/head"),)),
        {"speculative_algorithm": "EAGLE", "speculative_num_steps": None},
    ),
    (
        "speculative",
        ToggleValue("eagle3", (("tokens", 5), ("draft", "some/head"))),
        {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": "6"},
    ),
]


def parsed(asked: EngineSettings, build: SglangBuild = GPU) -> Namespace:
    return parse(serve_words(asked, 8000, build))


def settled(build: SglangBuild, **toggles: str | ToggleValue) -> EngineSettings:
    asked = settings(**toggles)
    off = dict.fromkeys(forced_off(asked, build), ToggleValue("off"))
    return replace(asked, toggles={**asked.toggles, **off})


def test_the_baseline_says_what_there_is_a_flag_for() -> None:
    """No size is left to a default that another version or another GPU may change."""
    options = parsed(settings())

    assert options.disable_radix_cache is options.disable_overlap_schedule is False
    assert options.chunked_prefill_size == "512"
    assert options.max_prefill_tokens is None
    assert options.max_running_requests == options.cuda_graph_max_bs_decode == "8"
    assert options.context_length == "2048"
    assert options.mem_fraction_static == "0.9"
    assert options.kv_cache_dtype == "auto"
    assert (options.dtype, options.tp_size, options.port) == ("bfloat16", "1", "8000")
    assert options.host == "127.0.0.1"
    assert options.enable_metrics is options.enable_cache_report is True
    assert options.sampling_defaults == "openai"
    assert options.quantization is options.speculative_algorithm is options.page_size is None
    assert options.device is options.attention_backend is None


@pytest.mark.parametrize(("toggle", "value", "expected"), FLIPS)
def test_each_value_reaches_the_command_line(
    toggle: str, value: ToggleValue, expected: dict[str, object]
) -> None:
    """A flipped toggle changes its own options, so that no two arms are the same server."""
    flipped = settings(**{toggle: value})

    check_toggles(flipped, CHECKS, GPU)
    options, base = vars(parsed(flipped)), vars(parsed(settings()))

    assert {name: options[name] for name in expected} == expected
    assert any(options[name] != base[name] for name in expected)


def test_on_a_cpu_the_device_is_named_and_graphs_are_off() -> None:
    """SGLang would look for a GPU otherwise."""
    options = parsed(settled(CPU), CPU)

    assert options.device == "cpu"
    assert options.cuda_graph_backend_decode == "disabled"
    assert options.disable_overlap_schedule is False


def test_without_chunks_a_whole_prompt_is_one_piece() -> None:
    """What is prefilled with it is limited all the same, and no less than by the longest prompt."""
    off = settings(chunked_prefill="off")

    assert parsed(off).max_prefill_tokens == "2048"
    assert parsed(replace(off, max_batched_tokens=4096)).max_prefill_tokens == "4096"


@pytest.mark.parametrize(
    ("version", "graphs_off", "largest", "sampling"),
    [
        ("0.4.6.post5", {"--disable-cuda-graph"}, "--cuda-graph-max-bs", False),
        ("0.4.10.post2", {"--disable-cuda-graph"}, "--cuda-graph-max-bs", False),
        ("0.5.6.post2", {"--disable-cuda-graph"}, "--cuda-graph-max-bs", True),
        (
            "0.5.10",
            {"--disable-cuda-graph", "--disable-piecewise-cuda-graph"},
            "--cuda-graph-max-bs",
            True,
        ),
        (
            "0.5.16",
            {"--cuda-graph-backend-decode", "--cuda-graph-backend-prefill"},
            "--cuda-graph-max-bs-decode",
            True,
        ),
        (
            None,
            {"--cuda-graph-backend-decode", "--cuda-graph-backend-prefill"},
            "--cuda-graph-max-bs-decode",
            True,
        ),
    ],
)
def test_older_versions_are_told_in_their_own_words(
    version: str | None, graphs_off: set[str], largest: str, sampling: bool
) -> None:
    """A flag that a version does not have would end it at once."""
    build = SglangBuild(release=release_of(version))

    on = set(serve_words(settings(), 1, build))
    off = set(serve_words(settings(cuda_graphs="off"), 1, build))

    assert {word for word in off - on if word.startswith("--")} == graphs_off
    assert largest in on
    assert ("--sampling-defaults" in on) == sampling


@pytest.mark.parametrize(("version", "offered"), [("0.4.10", False), ("0.5.6", True)])
def test_n_gram_drafts_came_later(version: str, offered: bool) -> None:
    """And older versions speculate without overlap only, on a GPU as well."""
    build = SglangBuild(release=release_of(version))
    asked = settled(build, speculative=NGRAM)

    assert "this version" in forced_off(asked, build)["overlap_scheduling"]
    if offered:
        check_toggles(asked, CHECKS, build)
    else:
        with pytest.raises(UnsupportedToggleError, match="not offered by this version"):
            check_toggles(asked, CHECKS, build)


def test_extra_args_come_last() -> None:
    """What no toggle and no limit of a sweep sets is passed through."""
    given = replace(settings(), extra_args=("--schedule-policy", "lpm", "--enable-mixed-chunk"))

    check_extra_args(given.extra_args, owner)

    assert serve_words(given, 8000, GPU)[-3:] == list(given.extra_args)
    assert parsed(given).schedule_policy == "lpm"


@pytest.mark.parametrize(
    "word",
    [
        "--port",
        "--host=0.0.0.0",
        "--tp",
        "--tensor-parallel-size",
        "--disable-overlap",
        "--disable-radix-cache",
        "--max-running-requests=4",
        "--speculative-algo",
        "--disable-cuda-graph",
        "--attention-backend=fa3",
        "--enable-metrics",
        "--config",
        "--stream-interval",
    ],
)
def test_extra_args_cannot_contradict_the_sweep(word: str) -> None:
    """The last of two wins in SGLang, and a beginning stands for the whole: all in silence."""
    with pytest.raises(EngineError, match=r"extra_args: .* cannot be set there: "):
        check_extra_args(("--random-seed", "1", word), owner)


def test_no_other_flag_of_sglang_is_taken_for_one_of_ours() -> None:
    """A flag may be the beginning of another; those that are flags themselves are the author's."""
    file = STAND_INS / "sglang_flags.json"
    names = [name for flag in json.loads(file.read_text())["flags"] for name in flag["names"]]
    refused = set()
    for name in names:
        try:
            check_extra_args((name,), owner)
        except EngineError:
            refused.add(name)

    assert len(names) > 500
    assert len(refused) < 90
    assert not {"--schedule-policy", "--max-total-tokens", "--enable-mixed-chunk"} & refused
    assert {"--model", "--model-path", "--page-size", "--dtype"} <= refused


@pytest.mark.parametrize(
    ("toggles", "build", "reason"),
    [
        ({"batching": "static"}, GPU, "batching: static is not offered"),
        ({"paged_kv": "off"}, GPU, "always pages"),
        ({"quantization": "int8"}, GPU, "quantized already"),
        ({"kv_cache_dtype": "int8"}, GPU, "it takes auto and fp8"),
        ({"kv_cache_dtype": "fp8"}, CPU, "needs a GPU"),
        ({"quantization": "fp8"}, CPU, "needs a GPU"),
        ({"cuda_graphs": "on"}, CPU, "a CPU has no CUDA graphs"),
        ({"attention_backend": "fa3"}, CPU, "needs a GPU: on a CPU SGLang has intel_amx and"),
        ({"attention_backend": "intel_amx"}, PLAIN_CPU, "would become torch_native"),
        ({"speculative": NGRAM}, PLAIN_CPU, "would end the server at its first draft"),
        (
            {"speculative": NGRAM, "attention_backend": "torch_native"},
            CPU,
            "would end the server at its first draft",
        ),
        ({"speculative": NGRAM, "overlap_scheduling": "on"}, CPU, "without overlap only"),
        ({"block_size": "many"}, GPU, "whole number"),
        ({"block_size": "48"}, GPU, "does not divide max_batched_tokens 512"),
        ({"block_size": "64", "speculative": NGRAM}, GPU, "only with flashinfer attention"),
        ({"tensor_parallel": "0"}, GPU, "whole number"),
        ({"speculative": ToggleValue("eagle3")}, GPU, "add draft: MODEL"),
        ({"speculative": ToggleValue("ngram", (("draft", "m"),))}, GPU, "leave draft out"),
        ({"speculative": ToggleValue("ngram", (("acceptance", 0.6),))}, GPU, "embedded engine"),
        ({"speculative": ToggleValue("eagle", (("tree", "2x3"),))}, GPU, "drafts a tree"),
    ],
)
def test_what_sglang_cannot_follow_is_refused_with_the_reason(
    toggles: dict[str, str | ToggleValue], build: SglangBuild, reason: str
) -> None:
    """No value is dropped in silence or run under a label that it does not have."""
    asked = settled(build, **toggles)
    insisted = {
        name: ToggleValue(value) if isinstance(value, str) else value
        for name, value in toggles.items()
    }
    asked = replace(asked, toggles={**asked.toggles, **insisted})

    with pytest.raises(UnsupportedToggleError, match=reason):
        check_toggles(asked, CHECKS, build)


def refusal(asked: EngineSettings, build: SglangBuild = GPU) -> str | None:
    """Return why SGLang cannot follow these settings; None where it can."""
    try:
        check_toggles(asked, CHECKS, build)
    except UnsupportedToggleError as error:
        return str(error)
    return None


def test_n_gram_drafts_go_with_blocks_where_they_do_not_branch() -> None:
    """SGLang refuses trees of drafts in blocks of several tokens, chains it takes."""
    blocks = settings(block_size="64", speculative=NGRAM)
    chain = replace(blocks, extra_args=("--speculative-ngram-max-bfs-breadth", "1"))

    assert "flashinfer" in (refusal(blocks) or "")
    assert refusal(chain) is None
    assert refusal(settings(block_size="1", speculative=NGRAM)) is None
    flashinfer = settings(block_size="64", speculative=NGRAM, attention_backend="flashinfer")
    assert refusal(flashinfer) is None


def test_the_common_baseline_can_be_followed() -> None:
    """Nothing of the baseline that all engines share is refused, on a GPU as it stands."""
    assert refusal(settings()) is None
    assert refusal(settled(PLAIN_CPU), PLAIN_CPU) is None
    assert refusal(settings(), PLAIN_CPU) is not None  # there some of it is off all the same
