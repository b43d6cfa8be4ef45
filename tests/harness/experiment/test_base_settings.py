"""Base settings that an engine did not take void the run; those it does not report are named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_sweeps import settings_of, swept

from harness.adapters.base import AS_IT_IS, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.reported_config import Labels, base_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang import reported as sglang
from harness.adapters.tensorrt_llm import reported as tensorrt_llm
from harness.adapters.vllm import reported as vllm
from harness.experiment.evidence import Exercise, Triple, contradictions, examine
from harness.results.analysis import summarize
from harness.results.report.notes import unreported_settings
from harness.results.store import Evidence

STAND_INS = Path(__file__).parents[2] / "support" / "stand_ins"
LOAD = Exercise(prefix_hit_ceiling=None, longest_prompt_tokens=10, most_in_flight=1)
SETTINGS = settings_of()  # 4096 tokens, 256 sequences, 512 tokens a step, share 0.9
STARTED = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16, "
    "max_seq_len=4096, tensor_parallel_size=1"
)


def triples(reported: dict[str, str], settings: EngineSettings = SETTINGS) -> dict[str, Triple]:
    """Return the triples of the base settings; `reported` has what the engine reports of them."""
    found = examine(settings, reported, ServerCounters(), LOAD, "real")
    return {name: found[name] for name in SETTINGS.base() if name in found}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "float16"),
        ("max_model_len", "2048"),
        ("max_num_seqs", "64"),
        ("max_batched_tokens", "64"),
        ("memory_utilization", "0.5"),
    ],
)
def test_a_base_setting_that_was_not_taken_voids_the_run(name: str, value: str) -> None:
    """The reason names the setting, what was requested, and what the engine reports."""
    requested = SETTINGS.base()

    found = triples({**requested, name: value})

    assert [one for one, triple in found.items() if triple.verdict == "contradicted"] == [name]
    assert contradictions(found) == [
        f"{name}: {requested[name]} was requested, the server reports {value}"
    ]


def test_what_an_engine_reports_as_requested_is_verified_and_silence_is_not() -> None:
    """No counter shows a base setting; of a stand-in nothing is verified."""
    found = triples({"dtype": "bfloat16"})
    imitated = examine(SETTINGS, SETTINGS.base(), ServerCounters(), LOAD, "stand-in")

    assert found["dtype"].verdict == "verified"
    assert {found[name].verdict for name in found if name != "dtype"} == {"unverifiable"}
    assert {imitated[name].verdict for name in SETTINGS.base()} == {"unverifiable"}


def test_a_server_that_somebody_else_started_was_requested_nothing() -> None:
    """Its base settings are in no triple."""
    attached = replace(SETTINGS, toggles=dict.fromkeys(SETTINGS.toggles, AS_IT_IS))
    loaded = replace(SETTINGS, toggles={})  # by `harness load`

    assert triples({"dtype": "float16"}, attached) == {}
    assert examine(loaded, {"dtype": "float16"}, ServerCounters(), LOAD, "real") == {}


@pytest.mark.parametrize(
    ("toggle", "value", "name", "requested"),
    [
        ("batching", "none", "max_num_seqs", "1"),
        ("chunked_prefill", "off", "max_batched_tokens", "4096"),
        ("chunked_prefill", "on", "max_batched_tokens", "512"),
    ],
)
def test_what_a_toggle_changes_is_what_was_requested(
    toggle: str, value: str, name: str, requested: str
) -> None:
    """An arm without batching requests one sequence; one without chunks a whole prompt a step."""
    assert settings_of(**{toggle: ToggleValue(value)}).base()[name] == requested


def of_vllm(values: dict[str, Any]) -> dict[str, Labels]:
    info = {
        "model_config": {"dtype": values["dtype"], "max_model_len": values["max_model_len"]},
        "scheduler_config": {
            "max_num_seqs": values["max_num_seqs"],
            "max_num_batched_tokens": values["max_batched_tokens"],
        },
        "cache_config": {"gpu_memory_utilization": values["memory_utilization"]},
    }
    return vllm.base_sources(vllm.VllmConfig(info, {}, ""))


def of_sglang(values: dict[str, Any]) -> dict[str, Labels]:
    info = {
        "dtype": values["dtype"],
        "context_length": values["max_model_len"],
        "max_running_requests": values["max_num_seqs"],
        "chunked_prefill_size": values["max_batched_tokens"],
        "mem_fraction_static": values["memory_utilization"],
    }
    return sglang.base_sources(sglang.SglangConfig(info, {}))


def of_tensorrt_llm(values: dict[str, Any]) -> dict[str, Labels]:
    arguments = (
        f"dtype={values['dtype']!r} max_seq_len={values['max_model_len']} "
        f"max_batch_size={values['max_num_seqs']} max_num_tokens={values['max_batched_tokens']} "
        f"kv_cache_config=KvCacheConfig(free_gpu_memory_fraction={values['memory_utilization']})"
    )
    config = tensorrt_llm.reported_config(f"LLM Args:\n{arguments}", ServerMetrics(""), None)
    return tensorrt_llm.base_sources(config)


READS: dict[str, Callable[[dict[str, Any]], dict[str, Labels]]] = {
    "vllm": of_vllm,
    "sglang": of_sglang,
    "tensorrt-llm": of_tensorrt_llm,
}
TAKEN: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "max_batched_tokens": 512,
    "memory_utilization": 0.9,
}


@pytest.mark.parametrize("engine", list(READS))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "float32"),
        ("max_model_len", 1024),
        ("max_num_seqs", 8),
        ("max_batched_tokens", 64),
        ("memory_utilization", 0.75),
    ],
)
def test_each_engine_reports_each_base_setting(engine: str, name: str, value: Any) -> None:
    """Taken as requested it gives the requested text back, else what is in force."""
    wanted = SETTINGS.base()

    assert base_labels(READS[engine](TAKEN), wanted) == wanted
    assert base_labels(READS[engine]({**TAKEN, name: value}), wanted) == wanted | {name: str(value)}


def test_a_log_line_and_labels_report_what_no_route_does() -> None:
    """Of two sources the one against the request counts."""
    labels = {"gpu_memory_utilization": "0.9"}
    config = vllm.VllmConfig({}, labels, STARTED)
    against = vllm.VllmConfig({"model_config": {"dtype": "torch.float16"}}, labels, STARTED)

    assert base_labels(vllm.base_sources(config), SETTINGS.base()) == {
        "dtype": "bfloat16",
        "max_model_len": "4096",
        "memory_utilization": "0.9",
    }
    assert base_labels(vllm.base_sources(against), SETTINGS.base())["dtype"] == "float16"


def test_a_step_of_sglang_without_chunks_takes_whole_prompts() -> None:
    """`chunked_prefill_size` is then -1, and `max_prefill_tokens` counts."""
    whole = settings_of(chunked_prefill=ToggleValue("off"))
    info = {"chunked_prefill_size": -1, "max_prefill_tokens": 4096}

    found = base_labels(sglang.base_sources(sglang.SglangConfig(info, {})), whole.base())

    assert found == {"max_batched_tokens": "4096"}


CAPPED = """
import os, sys
flag, value, script, *words = sys.argv[1:]
words[words.index(flag) + 1] = value
os.execv(sys.executable, [sys.executable, script, *words])
"""
SWEEP = """
model: {model}
hardware: {{gpu: h200, count: 1}}
engines:
  - engine: {engine}
    runtime: {{command: ["{python}", "{wrapper}", "{flag}", "{value}", "{script}", "-"]}}
    start_timeout: 60 s
base: {{max_model_len: 2048, max_num_seqs: 8, max_batched_tokens: 1024}}
workloads: [{{kind: shared-prefix, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 4}}]
load: [{{concurrency: 2, requests: 4}}]
blocks: 1
"""


EMBEDDED = """
model: llama-3-8b
hardware: {gpu: a100-80gb, count: 1}
engines: [embedded]
workloads: [{kind: shared-prefix, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 4}]
load: [{concurrency: 2, requests: 4}]
blocks: 1
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines are started on Linux")
@pytest.mark.parametrize(
    ("engine", "script", "flag", "value", "name"),
    [
        ("vllm", "stand_in_vllm.py", "--max-num-batched-tokens", "64", "max_batched_tokens"),
        ("vllm", "stand_in_vllm.py", "--dtype", "float16", "dtype"),
        ("sglang", "stand_in_sglang.py", "--mem-fraction-static", "0.4", "memory_utilization"),
    ],
)
def test_a_wrapper_that_caps_a_flag_voids_every_run(
    tmp_path: Path, engine: str, script: str, flag: str, value: str, name: str
) -> None:
    """The run's reason and its evidence name the setting; the others are left alone."""
    wrapper = tmp_path / "capped.py"
    wrapper.write_text(CAPPED, encoding="utf-8")
    model = tmp_path / f"model-{os.getpid()}"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 4096}), encoding="utf-8")

    runs = swept(
        tmp_path,
        SWEEP.format(
            model=model,
            engine=engine,
            python=sys.executable,
            wrapper=wrapper,
            flag=flag,
            value=value,
            script=STAND_INS / script,
        ),
    )

    run = runs["baseline"]
    assert run["status"] == "void"
    assert run["reason"].startswith(f"{name}: ")
    assert f"the server reports {value}" in run["reason"]
    assert run["evidence"][name]["effective"] == value


def test_a_report_names_the_settings_that_an_engine_does_not_report(tmp_path: Path) -> None:
    """One line an engine; the embedded one reports all of them."""
    swept(tmp_path, EMBEDDED)
    summary = summarize(tmp_path / "out")
    silent = Evidence(requested="bfloat16", effective=None, observed=None, verdict="unverifiable")
    runs = [replace(run, evidence={**run.evidence, "dtype": silent}) for run in summary.runs]

    assert unreported_settings(summary) == []
    assert unreported_settings(replace(summary, runs=tuple(runs))) == [
        "unverifiable, since embedded does not report it: dtype"
    ]
