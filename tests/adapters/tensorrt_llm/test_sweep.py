"""A sweep over the stand-in for TensorRT-LLM, from its file to its summary."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_in import processes_with
from trtllm_settings import PATIENCE, SCRIPT

from harness.adapters.tensorrt_llm.adapter import TensorRtLlmAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.results.analysis import summarize
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import load_sweep
from tests.harness.experiment.test_sweep import Quiet

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

SWEEP = """
name: stand-in
model: {model}
hardware: {{gpu: h200, count: 1}}
engines:
  - engine: tensorrt-llm
    runtime: {{command: ["{python}", "{script}", "{faults}"]}}
    start_timeout: 60 s
base: {{max_model_len: 2048, max_num_seqs: 8}}
toggles: [prefix_caching]
workloads:
  - {workload}
load: [{load}]
blocks: 1
max_failed_share: 0
"""
SHARED = "{kind: shared-prefix, prefix_tokens: 650, suffix_tokens: 40, output_tokens: 12}"
LIVE = (
    "{kind: multi-turn, turns: 3, first_tokens: 100, turn_tokens: 40, output_tokens: 70, "
    "history: live}"
)


ONE = "{concurrency: 4, requests: 16}"
TWO = f"{ONE}, {{concurrency: 2, requests: 8}}"  # two runs of each start


def summary_of(
    folder: Path, *faults: str, workload: str = SHARED, load: str = ONE
) -> dict[str, Any]:
    model = folder / f"model-{folder.name}-{os.getpid()}"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 4096}), encoding="utf-8")
    path = folder / "sweep.yaml"
    path.write_text(
        SWEEP.format(
            model=model,
            python=sys.executable,
            script=SCRIPT,
            faults=",".join((PATIENCE, *faults)),
            workload=workload,
            load=load,
        ),
        encoding="utf-8",
    )
    engines = {"tensorrt-llm": TensorRtLlmAdapter(poll_s=0.1)}
    plan = make_plan(load_sweep(path, engines=engines), engines)
    SweepRunner(plan, engines, folder / "out").run(Quiet())
    assert not processes_with(model.name)
    return summarize(folder / "out").document()


def test_a_stand_in_is_measured_told_apart_and_never_believed(tmp_path: Path) -> None:
    """Its toggles move what they must, and no verdict calls that proven of TensorRT-LLM.

    Both runs of a start find no more in the cache than they left there themselves, although nothing
    empties it.
    """
    summary = summary_of(tmp_path, load=TWO)

    runs = list(read_runs(tmp_path / "out"))
    assert len(runs) == 6
    for run in runs:
        manifest = run.manifest.model_dump()
        assert (manifest["status"], manifest["engine_kind"]) == ("ok", "stand-in")
        triples = manifest["evidence"]
        assert "verified" not in {triple["verdict"] for triple in triples.values()}
        triple, counted = triples["prefix_caching"], manifest["counters"]
        assert (triple["requested"], triple["effective"]) == (triple["effective"],) * 2
        assert triple["verdict"] == "unverifiable"
        share = counted["cached_prompt_tokens"] / counted["prompt_tokens"]
        if triple["requested"] == "on":
            assert 0.5 < share <= manifest["prefix_hit_ceiling"]
        else:
            assert share == 0
        assert manifest["facts"]["options"][0] == 'dtype: "bfloat16"'
    assert {one["engine_kind"] for one in summary["runs"]} == {"stand-in"}
    assert "warm_prefix_cache" not in json.dumps(summary)
    assert len(list((tmp_path / "out" / "logs").glob("*.options.yaml"))) == 3


def test_a_stand_in_that_ignores_an_option_voids_its_runs(tmp_path: Path) -> None:
    """That nothing is proven of a stand-in does not mean that nothing can be wrong with it."""
    summary = summary_of(tmp_path, "deaf-to-off", "lies")

    runs = [run.manifest.model_dump() for run in read_runs(tmp_path / "out")]
    status = {run["arm"]: run["status"] for run in runs}
    assert status == {"baseline": "ok", "baseline-again": "ok", "prefix_caching=off": "void"}
    assert "prefix_caching=off" not in {one["arm"] for one in summary["effects"]}


def test_live_chats_find_their_own_answers(tmp_path: Path) -> None:
    """Answers are told as ids, stand in the next prompt, and are found in the cache there."""
    summary_of(tmp_path, workload=LIVE)

    for run in read_runs(tmp_path / "out"):
        manifest = run.manifest.model_dump()
        counted = manifest["counters"]
        assert (manifest["status"], manifest["history"]) == ("ok", "live")
        assert not any("drawn answer" in note for note in manifest["notes"])
        assert set(run.records.columns["output_tokens"]) == {70}
        if manifest["arm"] != "prefix_caching=off":
            # Without answers a turn finds no more than the prompt before it.
            prompts, chats = counted["prompt_tokens"], len(run.records) // 3
            without = chats * (100 + (100 + 70 + 40)) / prompts
            share = counted["cached_prompt_tokens"] / prompts
            assert without < share <= manifest["prefix_hit_ceiling"]
