"""Extra arguments, variables and commands that would add GPUs or lock the harness out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sglang_settings
import stand_in
import trtllm_settings
from sweep_files import write

from harness.adapters import (
    BASELINE,
    ENGINES,
    GPU_TOGGLES,
    EngineError,
    EngineSettings,
    Runtime,
    ToggleValue,
    UnsupportedToggleError,
)
from harness.adapters.reported_config import effective_labels
from harness.adapters.sglang.reported import READERS as SGLANG_READERS
from harness.adapters.sglang.reported import SglangConfig
from harness.adapters.vllm.reported import READERS as VLLM_READERS
from harness.adapters.vllm.reported import VllmConfig
from harness.plan import Plan, make_plan
from harness.sweep_file import load_sweep

SETTINGS: dict[str, Callable[[], EngineSettings]] = {
    "vllm": stand_in.settings,
    "sglang": sglang_settings.settings,
    "tensorrt-llm": trtllm_settings.settings,
}
STAND_INS = Path(stand_in.__file__).parent
_PARALLEL = re.compile(r"parallel|^-?-?(tp|pp|dp|ep|cp)[-_]size$|nnodes")
_TUNING = ("loading-workers", "hybrid-lb", "backend")  # named so, and no number of GPUs


def refused(engine: str, **changes: Any) -> str | None:
    """Return why an adapter refuses settings with `changes`; None: it takes them."""
    try:
        ENGINES[engine]().check(replace(SETTINGS[engine](), **changes))
    except EngineError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("engine", "words", "toggle"),
    [
        ("vllm", ["--data_parallel_size=4"], "data_parallel"),
        ("vllm", ["--data-parallel-s", "2"], "data_parallel"),
        ("vllm", ["-dp2"], "data_parallel"),
        ("vllm", ["-dp 2"], "data_parallel"),
        ("vllm", ["--pipeline-par", "2"], "pipeline_parallel"),
        ("vllm", ["-pp", "4"], "pipeline_parallel"),
        ("vllm", ["-tp=2"], "tensor_parallel"),
        ("vllm", ["-ep"], "expert_parallel"),
        ("vllm", ["--no-enable-expert-parallel"], "expert_parallel"),
        ("vllm", ["--additional-config", '{"parallel": {"data_parallel_size": 2}}'], "data_par"),
        ("vllm", ['--additional-config={"pipeline-parallel-size": 2}'], "pipeline_parallel"),
        ("vllm", ["--parallel-config.data_parallel_size=2"], "data_parallel"),
        ("sglang", ["--pipeline_parallel_size", "2"], "pipeline_parallel"),
        ("sglang", ["--dp-s=2"], "data_parallel"),
        ("sglang", ["--ep", "2"], "expert_parallel"),
        ("tensorrt-llm", ["--pipeline_parallel_size=2"], "pipeline_parallel"),
        ("tensorrt-llm", ["--pp-size", "2"], "pipeline_parallel"),
        ("tensorrt-llm", ["--ep_size", "2"], "expert_parallel"),
        ("tensorrt-llm", ["--set", "pipeline_parallel_size=2"], "pipeline_parallel"),
        ("tensorrt-llm", ["--set", 'moe_config={"pp_size": 2}'], "pipeline_parallel"),
    ],
)
def test_flags_that_a_toggle_sets_are_refused_with_its_name(
    engine: str, words: list[str], toggle: str
) -> None:
    """However a parser takes it: beginnings, short forms, underscores, JSON, one word or two."""
    reason = refused(engine, extra_args=tuple(words))

    assert reason is not None
    assert re.search(rf"extra_args: .* cannot be set there: set the toggle {toggle}", reason)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ["--prefill-context-parallel-size", "2"]),
        ("vllm", ["-dcp=2"]),
        ("vllm", ["-dpl", "1"]),
        ("vllm", ["-n2"]),
        ("vllm", ["--nnodes", "2"]),
        ("vllm", ["--additional-config", '[{"moe_dp_size": 2}]']),
        ("sglang", ["--attn-dp-size", "2"]),
        ("sglang", ["--moe-data-parallel-size=2"]),
        ("sglang", ["--dcp_size", "2"]),
        ("sglang", ["--nnodes", "2"]),
        ("tensorrt-llm", ["--cp_size", "2"]),
        ("tensorrt-llm", ["--set", "enable_attention_dp=true"]),
        ("tensorrt-llm", ["--set", "context_parallel_size=2"]),
    ],
)
def test_kinds_of_parallelism_that_no_toggle_sets_are_refused(
    engine: str, words: list[str]
) -> None:
    """The GPUs that they take would be in no metric."""
    assert "GPUs are counted as" in (refused(engine, extra_args=tuple(words)) or "")


@pytest.mark.parametrize(("engine", "table"), [("vllm", "vllm_flags"), ("sglang", "sglang_flags")])
def test_no_flag_of_parallelism_of_a_recorded_version_is_passed_on(engine: str, table: str) -> None:
    """Of the whole list of flags, each that names a kind of parallelism is refused."""
    flags = json.loads((STAND_INS / f"{table}.json").read_text(encoding="utf-8"))["flags"]
    named = [name for flag in flags for name in flag["names"] if _PARALLEL.search(name)]
    named = [name for name in named if not any(word in name for word in _TUNING)]

    assert len(named) > 8
    assert [name for name in named if refused(engine, extra_args=(name, "2")) is None] == []


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("vllm", {"extra_args": ("--ssl-keyfile=k.pem",)}),
        ("vllm", {"extra_args": ("--ssl_certfile", "c.pem")}),
        ("vllm", {"extra_args": ("--api-k", "secret")}),
        ("vllm", {"extra_args": ("--config=more.yaml",)}),
        ("vllm", {"extra_args": ("--headless",)}),
        ("vllm", {"env": {"VLLM_API_KEY": "secret"}}),
        ("vllm", {"env": {"VLLM_DP_SIZE": "2"}}),
        ("sglang", {"extra_args": ("--ssl-keyfile-password", "p")}),
        ("sglang", {"extra_args": ("--ssl-certf=c.pem",)}),
        ("sglang", {"extra_args": ("--config", "more.yaml")}),
        ("sglang", {"env": {"SGLANG_API_KEY": "secret"}}),
        ("sglang", {"env": {"SGLANG_ADMIN_API_KEY": "secret"}}),
        ("tensorrt-llm", {"env": {"TRTLLM_API_KEY": "secret"}}),
        ("tensorrt-llm", {"extra_args": ("--extra_llm_api_options=more.yaml",)}),
    ],
)
def test_what_locks_the_harness_out_is_refused_without_its_value(
    engine: str, changes: dict[str, Any]
) -> None:
    """TLS, keys, and files of options that nobody checks; a secret is not repeated."""
    reason = refused(engine, **changes)

    assert reason is not None
    assert "cannot be set there" in reason
    assert "secret" not in reason


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("vllm", {"extra_args": ("--hf-overrides", '{"rope": {"factor": 2.0}}')}),
        ("vllm", {"extra_args": ("-cc.mode=0", "-O3", "-asc", "2", "--max-loras", "2")}),
        ("vllm", {"extra_args": ('--kv-transfer-config={"kv_parallel_size": 1}',)}),
        ("vllm", {"env": {"VLLM_LOGGING_LEVEL": "INFO", "OPENAI_API_KEY": "k"}}),
        ("sglang", {"extra_args": ("--moe-dense-tp-size", "1", "--base-gpu-id", "1")}),
        ("tensorrt-llm", {"extra_args": ("--set", "moe_config.backend=CUTLASS")}),
        ("tensorrt-llm", {"extra_args": ("--tokenizer", "a/b")}),
    ],
)
def test_what_adds_no_gpus_is_passed_on(engine: str, changes: dict[str, Any]) -> None:
    """Other flags, JSON and variables are the author's."""
    assert refused(engine, **changes) is None


@pytest.mark.parametrize("word", ["--data-parallel-size=2", "--pp-size", "--tensor_parallel_size"])
@pytest.mark.parametrize("engine", list(SETTINGS))
def test_a_command_of_the_author_sets_no_parallelism(engine: str, word: str) -> None:
    """Words of `runtime.command` reach the engine as `extra_args` do."""
    command = Runtime(command=(sys.executable, "-m", "program", word, "2"))

    assert "runtime.command: " in (refused(engine, runtime=command) or "")


def planned(folder: Path, base: str, toggles: str | None = None) -> Plan:
    """Return the plan of a sweep of 8 GPUs and one vLLM, whose program is not on this machine."""
    sections = {
        "hardware": "{gpu: a100-80gb, count: 8}",
        "engines": "[{engine: vllm, runtime: {command: [no-such-vllm]}}]",
        "base": f"{{max_num_seqs: 8, {base}}}",
        **({} if toggles is None else {"toggles": toggles}),
    }
    spec = load_sweep(write(folder, **sections), engines=("vllm",), environment={})
    return make_plan(spec, {"vllm": ENGINES["vllm"]()})


@pytest.mark.parametrize(
    ("base", "gpus", "words"),
    [
        ("data_parallel: 2", 8, ["--tensor-parallel-size 4", "--data-parallel-size 2"]),
        ("tensor_parallel: 1, pipeline_parallel: 3", 3, ["--pipeline-parallel-size 3"]),
        ("tensor_parallel: 2, data_parallel: 2, pipeline_parallel: 2", 8, ["--data-par"]),
        ("tensor_parallel: 2, expert_parallel: on", 2, ["--enable-expert-parallel"]),
        ("tensor_parallel: 4", 4, ["--tensor-parallel-size 4"]),
    ],
)
def test_the_gpus_of_an_arm_are_tensor_times_pipeline_times_data(
    tmp_path: Path, base: str, gpus: int, words: list[str]
) -> None:
    """The hardware's count gives tensor_parallel what the other two leave."""
    plan = planned(tmp_path, base)

    assert plan.arms[0].gpus == plan.runs[0].facts()["gpus"] == gpus
    assert all(word in " ".join(plan.arms[0].launch_line) for word in words)


@pytest.mark.parametrize(
    ("base", "product"),
    [
        ("tensor_parallel: 4, data_parallel: 3", "tensor_parallel 4 × data_parallel 3 needs 12"),
        ("pipeline_parallel: 16", "pipeline_parallel 16 needs 16"),
        ("tensor_parallel: 2, pipeline_parallel: 5", "2 × pipeline_parallel 5 needs 10"),
    ],
)
def test_more_gpus_than_the_hardware_has_are_refused(
    tmp_path: Path, base: str, product: str
) -> None:
    """The message names each factor and the place in the file."""
    with pytest.raises(EngineError, match=rf"line \d+: base.*{product} GPUs, but"):
        planned(tmp_path, base)


def test_an_arm_that_takes_too_many_gpus_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """A flip of data_parallel beside a baseline that fills the hardware cannot run."""
    arms = planned(tmp_path, "tensor_parallel: 4", "[{data_parallel: [1, 2, 4]}]").arms
    reasons = {arm.name: arm.reason for arm in arms if arm.flipped}

    assert reasons["data_parallel=2"] is None
    assert "needs 16 GPUs" in (reasons["data_parallel=4"] or "")


@pytest.mark.parametrize(
    ("toggle", "value"),
    [("pipeline_parallel", "2"), ("data_parallel", "4"), ("expert_parallel", "on")],
)
def test_the_embedded_engine_refuses_what_its_step_times_do_not_model(
    toggle: str, value: str
) -> None:
    """A simulated run that leaves a kind of parallelism out would carry a wrong label."""
    given = {**BASELINE, "tensor_parallel": ToggleValue("4"), toggle: ToggleValue(value)}
    settings = EngineSettings(
        model="llama-3-70b", gpu="a100-80gb", gpu_count=16, max_model_len=8192, toggles=given
    )

    with pytest.raises(UnsupportedToggleError, match=f"{toggle}: {value} is not offered"):
        ENGINES["embedded"]().check(settings)


@pytest.mark.parametrize("toggle", ["data_parallel", "pipeline_parallel", "expert_parallel"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_a_server_reports_of_its_parallelism_is_read(engine: str, toggle: str) -> None:
    """SGLang shows its experts' ranks, vLLM a switch; one GPU shows nothing of them in SGLang."""
    two = {name: ToggleValue("2") for name in ("tensor_parallel", "data_parallel")}
    toggles = {**BASELINE, **two, "pipeline_parallel": ToggleValue("2")}
    toggles["expert_parallel"] = ToggleValue("on")
    if engine == "vllm":
        sizes = {f"{name}_size": int(toggles[name].kind) for name in GPU_TOGGLES}
        info: dict[str, Any] = {"parallel_config": {**sizes, "enable_expert_parallel": True}}
        labels = effective_labels(VllmConfig(info, {}, ""), VLLM_READERS, toggles)
    else:
        info = {"tp_size": 2, "dp_size": 2, "pp_size": 2, "ep_size": 2}
        labels = effective_labels(SglangConfig(info, {}), SGLANG_READERS, toggles)

    assert labels[toggle] == toggles[toggle].label
