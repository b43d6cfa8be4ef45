"""docs/*.schema.json are what the types say, and what sweeps write follows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT
from schema_checks import departures, validator

from harness.adapters import ENGINES
from harness.adapters.endpoint import EngineAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.results.analysis import write_summary
from harness.results.store.manifest import manifest_schema
from harness.results.summary import summary_schema
from harness.sweep_file import load_sweep
from tests.harness.experiment.test_sweep import Quiet

ROW = '{"timestamp": %d, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("name", "schema"), [("manifest", manifest_schema()), ("summary", summary_schema())]
)
def test_the_schemas_are_those_of_the_types(name: str, schema: dict[str, Any]) -> None:
    """`python benchmarks/schemas.py` was run after the last change of a type."""
    text = (ROOT / "docs" / f"{name}.schema.json").read_text(encoding="utf-8")

    assert json.loads(text) == schema


@pytest.mark.parametrize("example", ["quickstart", "trace"])
def test_what_an_example_writes_follows_the_schemas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    """One block of each example that needs no GPU: every manifest, and the summary."""
    (tmp_path / "t").write_text("".join(ROW % (1000 * i) for i in range(20)))
    monkeypatch.setenv("TRACE", str(tmp_path / "t"))
    engines: dict[str, EngineAdapter] = {name: kind() for name, kind in ENGINES.items()}
    plan = make_plan(load_sweep(ROOT / "examples" / f"{example}.yaml"), engines)
    first = replace(plan, runs=tuple(run for run in plan.runs if run.block == 0))

    SweepRunner(first, engines, tmp_path / "out").run(Quiet())
    write_summary(tmp_path / "out")

    assert departures(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["manifest", "summary"])
def test_a_schema_refuses_what_is_unknown_or_missing(name: str) -> None:
    """A check that passes everything would prove nothing."""
    assert not validator(name).is_valid({})
    assert not validator(name).is_valid([])
