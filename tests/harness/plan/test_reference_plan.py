"""The reference set-up, planned on a machine that has none of its engines.

After a change that is meant, renew the golden file from the project's folder, with no engine on the
path, and read the difference:

    PATH=/nowhere "$(command -v harness)" plan examples/llama-3-70b-4xa100.yaml \
        > tests/support/sweeps/golden/llama-3-70b-plan.txt
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repository import ROOT

from harness.cli import main

SWEEP = ROOT / "examples" / "llama-3-70b-4xa100.yaml"
GOLDEN = ROOT / "tests" / "support" / "sweeps" / "golden" / "llama-3-70b-plan.txt"
ENGINES = ("vllm", "sglang", "tensorrt-llm")


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_plan_of_the_reference_set_up_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """Every launch line, options file, reason and order, to the letter; see above to renew it."""
    assert main(["plan", str(SWEEP)]) == 0

    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_it_flips_what_it_is_for_on_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    """Each engine runs with each toggle flipped, or says why not; the traffic is of both kinds."""
    assert main(["plan", "--json", str(SWEEP)]) == 0
    plan = json.loads(capsys.readouterr().out)

    assert plan["hardware"] == {"gpu": "a100-80gb", "count": 4}
    assert {one["kind"] for one in plan["workloads"]} == {"shared-prefix", "multi-turn"}
    assert {one["load"]["value"] for one in plan["demands"]} == {1, 100}
    assert plan["blocks"] >= 5
    for label in ENGINES:
        arms = [arm for arm in plan["engines"] if arm["label"] == label]
        flipped = {toggle for arm in arms for toggle in arm["flipped"]}
        assert flipped >= {
            "prefix_caching", "chunked_prefill", "batching", "cuda_graphs", "overlap_scheduling",
            "kv_cache_dtype", "quantization", "speculative", "attention_backend", "block_size",
        }  # fmt: skip
        assert {arm["toggles"]["tensor_parallel"] for arm in arms} == {"4"}
        assert all(arm["launch_line"] and arm["engine_version"] is None for arm in arms)
        methods = {arm["toggles"]["speculative"].partition("(")[0] for arm in arms}
        assert methods >= {"off", "ngram", "draft", "eagle3"}
    assert {arm["gpus"] for arm in plan["engines"]} == {4}
