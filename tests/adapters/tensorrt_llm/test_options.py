"""Every options file and command line is one that each version takes, and says each toggle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from trtllm_settings import VERSIONS, settings
from trtllm_strict import (
    FAMILIES,
    RefusedError,
    check_options,
    family_of,
    parse_flags,
    resolved,
)

from harness.adapters.base import EngineError, EngineSettings, ToggleValue, UnsupportedToggleError
from harness.adapters.checks import check_toggles
from harness.adapters.tensorrt_llm.adapter import TensorRtLlmAdapter
from harness.adapters.tensorrt_llm.checks import CHECKS, check_args, forced_off
from harness.adapters.tensorrt_llm.options import (
    option_names,
    options_lines,
    serve_words,
    served_name,
)

NGRAM = ToggleValue("ngram", (("tokens", 3),))
DRAFT = ToggleValue("draft", (("draft", "some/small"),))
EAGLE3 = ToggleValue("eagle3", (("tokens", 2), ("draft", "some/head")))
SPELLED = {"1.1": "DraftTarget", "1.3": "DraftTarget", "main": "Draft_Target"}
FLIPS: list[tuple[str, str | ToggleValue, str, Any]] = [
    ("prefix_caching", "off", "kv_cache_config.enable_block_reuse", False),
    ("chunked_prefill", "off", "enable_chunked_prefill", False),
    ("batching", "static", "scheduler_config.capacity_scheduler_policy", "STATIC_BATCH"),
    ("batching", "none", "max_batch_size", 1),
    ("cuda_graphs", "off", "cuda_graph_config", None),
    ("overlap_scheduling", "off", "disable_overlap_scheduler", True),
    ("kv_cache_dtype", "fp8", "kv_cache_config.dtype", "fp8"),
    ("attention_backend", "flashinfer", "attn_backend", "FLASHINFER"),
    ("attention_backend", "VANILLA", "attn_backend", "VANILLA"),
    ("tensor_parallel", "4", "tensor_parallel_size", 4),
    ("block_size", "64", "kv_cache_config.tokens_per_block", 64),
    ("speculative", NGRAM, "speculative_config.max_draft_len", 3),
    ("speculative", DRAFT, "speculative_config.speculative_model_dir", "some/small"),
    ("speculative", EAGLE3, "speculative_config.speculative_model_dir", "some/head"),
]


def options(asked: EngineSettings, family: str) -> dict[str, Any]:
    """Return the options file as a YAML reader reads it."""
    read = yaml.safe_load("\n".join(options_lines(asked, option_names(VERSIONS[family]))))
    assert isinstance(read, dict)
    return read


def at(mapping: Any, path: str) -> Any:
    for key in path.split("."):
        mapping = (mapping or {}).get(key)
    return mapping


@pytest.mark.parametrize("family", FAMILIES)
def test_the_baseline_says_every_toggle_outright(family: str) -> None:
    """No toggle is left to a default that another version may change."""
    asked = settings()
    read = options(asked, family)

    check_options(read, family)
    parse_flags(serve_words(asked, 8000, "file"), family)
    assert read["kv_cache_config"] == {
        "enable_block_reuse": True,
        "enable_partial_reuse": False,
        "free_gpu_memory_fraction": 0.9,
        "dtype": "auto",
    }
    assert read["enable_chunked_prefill"] is True
    assert read["disable_overlap_scheduler"] is False
    assert read["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}
    assert read["cuda_graph_config"] == {"enable_padding": True, "max_batch_size": 8}
    assert (read["max_batch_size"], read["max_num_tokens"], read["max_seq_len"]) == (8, 512, 2048)
    assert (read["tensor_parallel_size"], read["dtype"]) == (1, "bfloat16")
    assert read["enable_iter_perf_stats"] is read["return_perf_metrics"] is True
    assert "speculative_config" not in read  # an empty one breaks the start
    assert "attn_backend" not in read


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("toggle", "value", "path", "expected"), FLIPS)
def test_each_value_reaches_the_file_and_is_taken(
    toggle: str, value: str | ToggleValue, path: str, expected: Any, family: str
) -> None:
    """A flipped toggle changes its own option in each version, and no version refuses it."""
    flipped = settings(**{toggle: value})

    check_toggles(flipped, CHECKS, option_names(VERSIONS[family]))
    read = options(flipped, family)

    check_options(read, family)
    assert at(read, path) == expected
    assert at(options(settings(), family), path) != expected or "cuda_graph" in path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_model_is_spelled_as_the_version_spells_it(family: str) -> None:
    """One took the name of the class, the next that of the mode."""
    read = options(settings(speculative=DRAFT), family)

    assert read["speculative_config"]["decoding_type"] == SPELLED[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_does_not_matter_whether_file_or_flag_wins(family: str) -> None:
    """What is said stands in one place only, so that all versions run the same."""
    asked = settings(prefix_caching="off", chunked_prefill="off")
    flags = parse_flags(serve_words(asked, 8000, "file"), family)
    read = options(asked, family)

    assert {name for name in flags if name.startswith("--")} == {
        "--host",
        "--port",
        "--backend",
        "--extra_llm_api_options",
    }
    found = resolved(flags, read, family)
    assert all(found[key] == value for key, value in read.items() if not isinstance(value, dict))
    for section in ("kv_cache_config", "scheduler_config"):
        assert read[section].items() <= found[section].items()


@pytest.mark.parametrize(
    ("version", "draft_type", "keeps_records"),
    [
        ("1.1.0", "DraftTarget", False),
        ("1.2.1", "DraftTarget", False),
        ("1.3.0rc3", "DraftTarget", True),
        ("1.3.0rc25", "Draft_Target", True),
        ("1.3.0", "Draft_Target", True),
        ("1.4.0rc1", "Draft_Target", True),
        (None, None, False),
        ("nightly", None, False),
    ],
)
def test_the_installed_version_decides_how_it_is_spoken_to(
    version: str | None, draft_type: str | None, keeps_records: bool
) -> None:
    """One that cannot be told gets what all of them take."""
    names = option_names(version)

    assert (names.draft_type, names.keeps_records) == (draft_type, keeps_records)


def test_versions_before_those_that_were_read_are_refused() -> None:
    """Their options were other ones."""
    with pytest.raises(EngineError, match=r"1\.0\.0 is too old: it must be 1\.1 or newer"):
        option_names("1.0.0")


def test_without_chunks_a_step_holds_a_whole_prompt() -> None:
    """A prompt that does not fit into one step would be refused; it is part of what it costs."""
    off = settings(chunked_prefill="off")

    assert options(off, "1.3")["max_num_tokens"] == 2048
    assert options(replace(off, max_batched_tokens=4096), "1.3")["max_num_tokens"] == 4096


def test_a_folder_is_served_under_its_last_name(tmp_path: Path) -> None:
    """Requests must say what the server calls its model."""
    (tmp_path / "llama").mkdir()

    assert served_name(replace(settings(), model=str(tmp_path / "llama"))) == "llama"
    assert served_name(replace(settings(), model="meta/llama")) == "meta/llama"
    home = serve_words(replace(settings(), model="~/llama"), 1, "file")
    assert home[1] == str(Path.home() / "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_authors_own_options_join_the_file_in_every_version(family: str) -> None:
    """`--set` exists in the newest version only, so that it is read here."""
    words = (
        "--set",
        "kv_cache_config.host_cache_size=1024",
        "--set=attn_backend2=x",
        "--tokenizer",
    )
    asked = replace(settings(), extra_args=(*words[:2], words[3], "some/tokenizer"))

    check_args(asked)
    read = options(asked, family)

    check_options(read, family)
    assert read["kv_cache_config"]["host_cache_size"] == 1024
    assert read["kv_cache_config"]["enable_block_reuse"] is True
    assert serve_words(asked, 8000, "file")[-2:] == ["--tokenizer", "some/tokenizer"]
    with pytest.raises(RefusedError, match=r"attn_backend2\n  Extra inputs are not permitted"):
        check_options(options(replace(settings(), extra_args=words[2:3]), family), family)


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "1"),
        ("--host=0.0.0.0",),
        ("--extra_llm_api_options", "mine.yaml"),
        ("--config", "mine.yaml"),
        ("--tp_size", "2"),
        ("--max-num-tokens", "9"),
        ("--enable_chunked_prefill",),
        ("--kv_cache_free_gpu_memory_fraction", "0.5"),
        ("--grpc",),
        ("--set", "kv_cache_config.enable_block_reuse=false"),
        ("--set", "kv_cache_config={}"),
        ("--set", "cuda_graph_config.batch_sizes=[1]"),
        ("--set=max_batch_size=4",),
        ("--set", "speculative_config.decoding_type=NGram"),
        ("--set", "enable_iter_perf_stats=false"),
    ],
)
def test_extra_args_cannot_contradict_the_sweep(words: tuple[str, ...]) -> None:
    """Which of two opinions wins depends on the version: there is one only."""
    with pytest.raises(EngineError, match=r"extra_args: .* cannot be set there: "):
        check_args(replace(settings(), extra_args=words))


@pytest.mark.parametrize("words", [("--set",), ("--set", "no value"), ("--set", "=1")])
def test_a_setting_without_key_or_value_is_none(words: tuple[str, ...]) -> None:
    """It is refused by the plan, not taken for something else."""
    with pytest.raises(EngineError, match="is not KEY=VALUE"):
        check_args(replace(settings(), extra_args=words))


@pytest.mark.parametrize(
    ("toggle", "value", "reason"),
    [
        ("paged_kv", ToggleValue("off"), "always pages"),
        ("kv_cache_dtype", ToggleValue("int8"), "it takes auto and fp8"),
        ("quantization", ToggleValue("fp8"), "another checkpoint"),
        ("speculative", ToggleValue("eagle", (("draft", "m"),)), "those of eagle3 do"),
        ("speculative", ToggleValue("eagle3"), "add draft: MODEL"),
        ("speculative", ToggleValue("draft"), "add draft: MODEL"),
        ("speculative", ToggleValue("ngram", (("draft", "m"),)), "leave draft out"),
        ("speculative", ToggleValue("ngram", (("acceptance", 0.6),)), "embedded engine"),
        ("speculative", ToggleValue("eagle3", (("tree", "2x3"),)), "drafts a tree"),
        ("attention_backend", ToggleValue("FLASH_ATTN"), "would silently be TRTLLM"),
        ("block_size", ToggleValue("many"), "whole number"),
        ("tensor_parallel", ToggleValue("0"), "whole number"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(
    toggle: str, value: ToggleValue, reason: str
) -> None:
    """No value is dropped in silence or run under a label that it does not have."""
    with pytest.raises(UnsupportedToggleError, match=f"{toggle}: .*{reason}"):
        check_toggles(settings(**{toggle: value}), CHECKS, option_names("1.3.0rc3"))


def test_what_depends_on_another_value_is_refused_with_it() -> None:
    """A spelling that the version decides needs a version; VANILLA attention has its own blocks."""
    with pytest.raises(UnsupportedToggleError, match="give runtime a venv or path"):
        check_toggles(settings(speculative=DRAFT), CHECKS, option_names(None))
    vanilla = settings(attention_backend="VANILLA", block_size="64")
    with pytest.raises(UnsupportedToggleError, match="whose blocks hold max_num_tokens"):
        check_toggles(vanilla, CHECKS, option_names("1.3.0rc3"))


def test_values_that_turn_others_off_are_part_of_the_effect() -> None:
    """N-gram drafts go without overlap; FLASHINFER and determinism without the reuse of blocks."""
    strict = replace(settings(), env={"FORCE_DETERMINISTIC": "1"})

    assert set(forced_off(settings(speculative=NGRAM))) == {"overlap_scheduling"}
    assert set(forced_off(settings(attention_backend="flashinfer"))) == {"prefix_caching"}
    assert set(forced_off(strict)) == {"prefix_caching"}
    assert not forced_off(settings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "cpu"}, "needs an NVIDIA GPU"),
        ({"max_num_seqs": 1}, "set the toggle batching to none"),
        ({"max_num_seqs": 600}, "must be at most max_batched_tokens 512"),
        ({"gpu_count": 0}, "tensor_parallel 1 needs 1 GPUs, but hardware.count is 0"),
    ],
)
def test_sizes_that_the_engine_refuses_are_refused_by_the_plan(
    changes: dict[str, Any], message: str
) -> None:
    """Nothing is started to find out what the settings alone tell."""
    TensorRtLlmAdapter().check(settings())
    with pytest.raises(EngineError, match=message):
        TensorRtLlmAdapter().check(replace(settings(), **changes))


@pytest.mark.parametrize(
    ("words", "family", "text"),
    [
        (["serve", "m", "--bogus"], "1.3", "Error: No such option: --bogus"),
        (["serve", "m", "--config", "f"], "1.1", "No such option: --config"),
        (["serve", "m", "--set", "a=1"], "1.3", "No such option: --set"),
        (["serve", "m", "--backend", "tensorrt"], "main", "Invalid value for '--backend'"),
        (["serve", "m", "--port", "x"], "1.3", "'x' is not valid"),
        (["serve"], "1.3", "Missing argument 'MODEL'"),
    ],
)
def test_the_tables_refuse_bad_flags_as_click_does(
    words: list[str], family: str, text: str
) -> None:
    """A stand-in that took everything would prove nothing."""
    with pytest.raises(RefusedError, match=text) as caught:
        parse_flags(words, family)

    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("given", "family", "text"),
    [
        ({"enable_blok_reuse": True}, "1.3", "Extra inputs are not permitted"),
        ({"kv_cache_config": {"block_reuse": True}}, "1.3", "Extra inputs are not permitted"),
        ({"max_stats_len": 10}, "1.1", "Extra inputs are not permitted"),
        ({"max_batch_size": "8"}, "1.3", "valid int"),
        ({"enable_chunked_prefill": 1}, "1.3", "valid bool"),
        ({"speculative_config": None}, "1.3", "AttributeError"),
        ({"speculative_config": {"decoding_type": "Draft_Target"}}, "1.3", "Invalid decoding"),
        ({"speculative_config": {"decoding_type": "DraftTarget"}}, "main", "Invalid decoding"),
        (
            {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3}},
            "1.3",
            "ngram_size",
        ),
        ({"max_batch_size": 64, "max_num_tokens": 32}, "1.3", "should be less"),
        ({"scheduler_config": {"capacity_scheduler_policy": "ANY"}}, "1.3", "should be one of"),
    ],
)
def test_the_tables_refuse_bad_keys_as_pydantic_does(
    given: dict[str, Any], family: str, text: str
) -> None:
    """Each version its own."""
    with pytest.raises(RefusedError, match=text) as caught:
        check_options(given, family)

    assert caught.value.code == 1


def test_a_version_belongs_to_one_column() -> None:
    """Finals sort after their candidates."""
    versions = ("1.1.0", "1.2.1", "1.3.0rc3", "1.3.0rc29", "1.3.0", "1.4.0rc1")

    assert [family_of(one) for one in versions] == ["1.1", "1.3", "1.3", "main", "main", "main"]
