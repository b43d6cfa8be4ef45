"""Tests of the capability matrix of a plan, which comes from the adapters."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from stand_in import settings
from sweep_files import FakeEngine, plan

from harness.adapters import ENGINES
from harness.adapters.base import (
    TOGGLES,
    EngineError,
    EngineSettings,
    ToggleValue,
    UnsupportedToggleError,
)
from harness.adapters.vllm.adapter import VllmAdapter
from harness.cli import main
from harness.plan.capability import Capability, capabilities
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.plan.printed.document import plan_document
from harness.plan.printed.launch_lines import launch_difference, launch_lines
from harness.plan.printed.plan import print_plan
from harness.plan.shared_settings import baseline_settings
from harness.sweep_file import load_sweep

REFUSED: dict[str, EngineError] = {
    "paged_kv=off": UnsupportedToggleError("paged_kv: off is not offered: it always pages"),
    "kv_cache_dtype=fp8": UnsupportedToggleError("kv_cache_dtype: fp8 needs a newer GPU"),
    "batching=none": EngineError("max_num_seqs must be 1"),
}
DRAGGED = {
    "speculative=ngram": {"overlap_scheduling": ToggleValue("off")},
    "cuda_graphs=on": {"cuda_graphs": ToggleValue("off")},
}


def printed(plan: Plan) -> str:
    text = io.StringIO()
    print_plan(plan, Console(file=text))
    return text.getvalue()


def capability_of(plan: Plan) -> dict[tuple[str, str], Capability]:
    return {(one.toggle, one.value): one for one in plan.capabilities}


@pytest.fixture
def answers(tmp_path: Path) -> Plan:
    engine = FakeEngine(refused=REFUSED, dragged=DRAGGED)
    return plan(tmp_path, engine, toggles="[prefix_caching, {quantization: [none, fp8]}]")


def test_each_value_of_each_toggle_gets_the_adapters_own_answer(answers: Plan) -> None:
    """Each status has the adapter's reason."""
    found = capability_of(answers)

    assert found["prefix_caching", "off"].status == "offered"
    assert found["paged_kv", "on"].status == "always"
    assert found["paged_kv", "off"].status == "not offered"
    assert found["paged_kv", "off"].reason == "is not offered: it always pages"
    assert (found["kv_cache_dtype", "fp8"].status, found["kv_cache_dtype", "fp8"].reason) == (
        "needs",
        "needs a newer GPU",
    )
    assert found["batching", "none"].status == "needs"
    assert found["cuda_graphs", "on"].status == "implied"
    assert found["cuda_graphs", "on"].reason == "stays off: the engine has it so"
    assert found["speculative", "ngram"].drags == {"overlap_scheduling": "off"}


def test_no_toggle_and_no_kind_is_left_out(answers: Plan) -> None:
    """The matrix also has toggles that the sweep does not flip."""
    found = capability_of(answers)

    for toggle, kinds in TOGGLES.items():
        assert {value for name, value in found if name == toggle} >= set(kinds)
    assert ("tensor_parallel", "2") in found


def test_the_matrix_names_each_reason_below(answers: Plan) -> None:
    """A number in a cell refers to its reason; a supported value without a reason has none."""
    lines = printed(answers).splitlines()

    [row] = [line for line in lines if line.startswith("paged_kv ") and "always" in line]
    number = row.partition("off[")[2].partition("]")[0]
    assert "on (always)" in row
    assert f"  [{number}] embedded, paged_kv off: is not offered: it always pages" in lines
    assert max(map(len, lines)) <= 100


def test_the_matrix_is_in_the_document_too(answers: Plan) -> None:
    """The JSON document contains the matrix."""
    document = json.loads(json.dumps(plan_document(answers)))

    assert {
        "label": "embedded",
        "toggle": "paged_kv",
        "value": "off",
        "status": "not offered",
        "reason": "is not offered: it always pages",
        "drags": {},
    } in document["capabilities"]


def test_baselines_that_differ_are_marked(tmp_path: Path) -> None:
    """A setting of only one engine has the mark; equal settings have none."""
    engines = "[embedded, {engine: embedded, label: other, extra_args: [--fast], env: {KEY: s3}}]"
    two = plan(tmp_path, engines=engines)

    shared = {one.name: one.shared for one in baseline_settings(two.arms)}
    lines = printed(two).splitlines()

    assert (shared["max_num_seqs"], shared["extra_args"], shared["env"]) == (True, False, False)
    [row] = [line for line in lines if "extra_args" in line]
    assert row.split() == ["≠", "extra_args", "–", "--fast"]
    assert not any(line.startswith("≠") and "max_num_seqs" in line for line in lines)
    assert "s3" not in printed(two)


def test_what_one_engine_implies_sets_its_baseline_apart(tmp_path: Path) -> None:
    """The settings include implied values, not the requested ones."""

    class Odd(FakeEngine):
        def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
            return {"prefix_caching": ToggleValue("off")} if "--odd" in settings.extra_args else {}

    odd = plan(
        tmp_path,
        Odd(),
        engines="[{engine: embedded, label: a}, {engine: embedded, label: b, extra_args: [--odd]}]",
    )

    values = {one.name: dict(one.values) for one in baseline_settings(odd.arms)}
    assert values["prefix_caching"] == {"a": "on", "b": "off"}


def test_a_flag_is_compared_with_its_value() -> None:
    """A changed value is shown with its flag, even if it appears elsewhere in the line."""
    base = ["run", "--most", "8", "--step", "4", "--quiet"]

    assert launch_difference(["run", "--most", "8", "--step", "8", "--quiet"], base, ()) == (
        "--step 8"
    )
    assert launch_difference(["run", "--most", "8", "--step", "-1", "--quiet"], base, ()) == (
        "--step -1"
    )
    assert launch_difference(["run", "--most", "8", "--step", "4"], base, ()) == "without --quiet"


def test_an_options_file_keeps_its_lines() -> None:
    """The command is in shell syntax; the lines of the file are unchanged."""
    line = ["serve", "a model", "# FILE:", "cache:", "  on: true"]

    assert launch_lines(line) == ["serve 'a model'", "# FILE:", "cache:", "  on: true"]


REAL = """\
model: some/model
hardware: {{gpu: a100-80gb, count: 1}}
engines: [{{engine: {engine}{runtime}}}]
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 8}}
load:
  - {{concurrency: 4, requests: 40}}
"""


@pytest.mark.parametrize(
    ("engine", "runtime", "command"),
    [
        ("vllm", "", "vllm serve some/model"),
        ("sglang", "", "python -m sglang.launch_server --model-path some/model"),
        ("sglang", ", runtime: {path: /nowhere/sglang}", "/nowhere/sglang serve --model-path"),
        ("tensorrt-llm", "", "trtllm-serve serve some/model"),
        ("vllm", ", runtime: {venv: /nowhere}", "/nowhere/bin/vllm serve some/model"),
        ("vllm", ", runtime: {command: [nowhere, vllm]}", "nowhere vllm serve some/model"),
    ],
)
def test_a_missing_program_stops_a_run_but_not_a_plan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: str,
    runtime: str,
    command: str,
) -> None:
    """The plan shows the launch line; a run raises an error that names the program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "sweep.yaml"
    path.write_text(REAL.format(engine=engine, runtime=runtime), encoding="utf-8")

    assert main(["plan", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"  baseline: {command}" in text
    assert "not found on this machine: " in text
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert f"{path}: line 3: engines[0]" in errors
    assert "there is no program" in errors
    assert not (tmp_path / "out").exists()


def test_real_adapters_give_their_own_reasons(tmp_path: Path) -> None:
    """Each engine has the reasons of its own adapter."""
    path = tmp_path / "sweep.yaml"
    path.write_text(
        REAL.format(engine="vllm", runtime="").replace(
            "engines: [{engine: vllm}]", "engines: [vllm, tensorrt-llm]"
        ),
        encoding="utf-8",
    )
    adapters = {name: adapter() for name, adapter in ENGINES.items()}
    both = make_plan(load_sweep(path, engines=tuple(adapters)), adapters)
    found = {(one.label, one.toggle, one.value): one for one in both.capabilities}

    assert found["vllm", "batching", "static"].status == "not offered"
    assert found["tensorrt-llm", "batching", "static"].status == "offered"
    assert found["vllm", "paged_kv", "on"].status == "always"
    assert found["vllm", "speculative", "eagle3"].status == "needs"


@pytest.mark.parametrize(
    ("gpu", "lacks"), [("a100-80gb", True), ("A10G", True), ("h100-80gb", False), ("l40s", False)]
)
def test_fp8_is_weights_only_where_a_gpu_has_no_fp8_arithmetic(gpu: str, lacks: bool) -> None:
    """The value is offered, with a remark that the arithmetic is not fp8."""
    asked = replace(settings(), gpu=gpu)

    found = {(one.toggle, one.value): one for one in capabilities("vllm", VllmAdapter(), asked, {})}

    for toggle in ("quantization", "kv_cache_dtype"):
        one = found[toggle, "fp8"]
        assert one.status == "offered"
        assert ("no FP8 arithmetic" in (one.reason or "")) is lacks
    assert found["quantization", "none"].reason is None
