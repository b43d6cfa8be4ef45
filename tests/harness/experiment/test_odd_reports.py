"""What an engine reports of itself may have any type: it costs at most the run that it is in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway import Gateway, serving

from harness.adapters.base import EngineSettings
from harness.adapters.embedded.adapter import EmbeddedAdapter, EmbeddedEndpoint
from harness.adapters.reported_values import version_text, whole, word
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.results.analysis import summarize
from harness.sweep_file import load_sweep
from tests.harness.experiment.test_sweep import FEW, Quiet, adapters, summary_of


class Odd(EmbeddedAdapter):
    """An engine that reports something else than expected with one value of a toggle."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        super().__init__()
        self.report = report

    @contextmanager
    def start(self, settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
        endpoint = EmbeddedEndpoint(settings)
        if settings.toggles["cuda_graphs"].kind == "off":
            for name, value in self.report.items():
                setattr(endpoint, name, value)
        yield endpoint


@pytest.mark.parametrize(
    "report",
    [
        {"engine_version": 7},
        {"engine_version": ["1.0"], "engine_kind": {"a": 1}},
        {"facts": lambda: {"max_model_len": [4096], "block_size": 16}},
        {"facts": lambda: {"running_limit": "many"}},
        {"facts": lambda: {"assumptions": 3}},
        {"effective": lambda: {"prefix_caching": ["on"]}},
    ],
)
def test_an_odd_report_costs_one_run(tmp_path: Path, report: Mapping[str, Any]) -> None:
    """The run is stored as failed, with its records and the reason; the others are measured."""
    summary = summary_of(tmp_path, "cuda_graphs;prefix_caching", FEW, engine=Odd(report))

    by_arm = {run["arm"]: run for run in summary["runs"]}
    assert by_arm["cuda_graphs=off"]["status"] == "failed"
    assert "cannot be stored" in by_arm["cuda_graphs=off"]["reason"]
    assert by_arm["prefix_caching=off"]["status"] == by_arm["baseline"]["status"] == "ok"
    (manifest,) = (
        found
        for path in tmp_path.glob("out/*/manifest.json")
        if (found := json.loads(path.read_text()))["arm"] == "cuda_graphs=off"
    )
    assert manifest["clock"] == "virtual"
    assert len(manifest["records_sha256"]) == 64


@pytest.mark.parametrize("version", [b'{"version": 3.5}', b'{"version": [1]}', b'"1"'])
def test_a_sweep_over_a_server_with_an_odd_version_is_measured(
    tmp_path: Path, version: bytes
) -> None:
    """It is read as text where it can be."""
    with serving(Gateway(version=version, entry={"max_model_len": {"tokens": 4096}})) as gateway:
        summary = _of_a_server(tmp_path, gateway.url)

    assert {run["status"] for run in summary["runs"]} == {"ok", "skipped"}


def _of_a_server(folder: Path, url: str) -> dict[str, Any]:
    path = folder / "sweep.yaml"
    path.write_text(
        f"""
name: odd
model: m
hardware: {{gpu: h100-80gb, count: 1}}
engines: [{{engine: url, url: "{url}"}}]
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 16, suffix_tokens: 16, output_tokens: 2}}
load: [{{concurrency: 2, requests: 8}}]
blocks: 1
""",
        encoding="utf-8",
    )
    engines = adapters()
    plan = make_plan(load_sweep(path, engines=tuple(engines)), engines)
    SweepRunner(plan, engines, folder / "out").run(Quiet())
    return summarize(folder / "out").document()


@pytest.mark.parametrize(
    ("value", "count"),
    [(7, 7), ("16", 16), (4096.0, 4096), (0, 0), (True, None), ([1], None), ("²", None),
     ("9" * 5000, None), (10**400, None), (float("nan"), None), (1.5, None), (None, None)],
)  # fmt: skip
def test_a_count_is_read_where_it_is_one(value: object, count: int | None) -> None:
    """Absent where it is not."""
    assert whole(value) == count


def test_names_and_versions_are_short_texts() -> None:
    """Of one line; a list is none."""
    assert version_text(0.5) == "0.5"
    assert version_text(" 1.0\n+cu128 ") == "1.0 +cu128"
    assert version_text({"a": 1}) is None
    assert len(version_text("9" * 5000) or "") == 200
    assert (word("real"), word(7), word(["real"])) == ("real", None, None)
