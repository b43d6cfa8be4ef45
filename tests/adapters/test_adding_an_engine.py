"""docs/adding-an-engine.md, followed to the letter: its code, its line, and a sweep with both."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest
from repository import ROOT, STAND_INS
from stand_in import processes_with

from harness import adapters
from harness.adapters.endpoint import EngineAdapter
from harness.cli import main

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

PAGE = ROOT / "docs" / "adding-an-engine.md"
PROGRAM = STAND_INS / "tiny_engine.py"
SWEEP = """\
name: fourth
model: {model}
hardware: {{gpu: some-gpu, count: 1}}
engines:
  - {{engine: tinyserve, runtime: {{command: ["{python}", "{program}"]}}, start_timeout: 60 s}}
toggles: [prefix_caching, chunked_prefill]
workloads:
  - {{kind: shared-prefix, prefix_tokens: 300, suffix_tokens: 20, output_tokens: 6}}
load:
  - {{concurrency: 2, requests: 8}}
blocks: 1
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sweep of the page's engine, which is in the table by the page's line."""
    page = PAGE.read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    [(name, adapter)] = re.findall(r'^```text\n    "(\w+)": (\w+),\n```', page, re.MULTILINE)
    module = types.ModuleType("harness.adapters.tinyserve")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)  # noqa: S102  that is what is tested
    fourth: type[EngineAdapter] = getattr(module, adapter)
    table = {**adapters.ENGINES, name: fourth}
    monkeypatch.setattr(adapters, "ENGINES", table)
    monkeypatch.setattr("harness.commands.plan.ENGINES", table)
    path = tmp_path / "sweep.yaml"
    path.write_text(
        SWEEP.format(model=f"tiny-{tmp_path.name}", python=sys.executable, program=PROGRAM),
        encoding="utf-8",
    )
    return path


def test_the_page_and_one_line_make_an_engine(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned, started, flipped, measured, reported and stopped; what it lacks is told as such."""
    out = sweep.parent / "out"

    code = main(["run", str(sweep), "--out", str(out), "--json"])

    summary = json.loads(capsys.readouterr().out)
    runs = {run["arm"]: run for run in summary["runs"]}
    assert {run["engine_version"] for run in runs.values() if run["metrics"]} == {"7.1"}
    assert summary["stand_in"] is True
    for arm in ("baseline", "baseline-again", "prefix_caching=off"):
        assert runs[arm]["counts"]["ok"] == 8, runs[arm]["reason"]
    told = runs["prefix_caching=off"]["evidence"]["prefix_caching"]
    assert (told["requested"], told["effective"]) == ("off", "off")
    assert runs["baseline"]["metrics"]["prefix_hit_rate"] > 0.5
    assert runs["prefix_caching=off"]["metrics"]["prefix_hit_rate"] == 0
    assert runs["chunked_prefill=off"]["status"] == "skipped"
    assert "chunked_prefill: off is not offered" in runs["chunked_prefill=off"]["reason"]
    assert code == 0
    assert (out / "report.html").exists()
    assert not processes_with(f"tiny-{sweep.parent.name}")


def test_the_plan_knows_what_the_fourth_engine_follows(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The matrix asks the new adapter, and needs no entry anywhere."""
    assert main(["plan", str(sweep), "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    found = {(one["toggle"], one["value"]): one["status"] for one in plan["capabilities"]}
    assert found["prefix_caching", "off"] == "offered"
    assert found["chunked_prefill", "on"] == "always"
    assert found["chunked_prefill", "off"] == "not offered"
