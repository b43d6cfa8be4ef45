"""Sweep files for tests, and an engine that follows them without being one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.adapters.base import EngineError, EngineSettings, ToggleValue
from harness.adapters.endpoint import Endpoint
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.sweep_file import SpecError, SweepSpec, load_sweep

SMALLEST = """\
model: some/model
hardware: {gpu: g, count: 2}
engines: [embedded]
workloads:
  - {kind: shared-prefix, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 8}
load:
  - {concurrency: 4, requests: 40}
"""


def write(folder: Path, text: str = SMALLEST, **sections: str) -> Path:
    """Write a sweep file: `text` with some of its sections replaced, or added."""
    for key, value in sections.items():
        text = "\n".join(_without(text, key)) + f"\n{key}: {value}\n"
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _without(text: str, key: str) -> list[str]:
    """Return the lines of `text` without the section `key`."""
    kept, inside = [], False
    for line in text.splitlines():
        inside = line.startswith(f"{key}:") or (inside and line.startswith(" "))
        kept += [] if inside else [line]
    return kept


def sweep(folder: Path, text: str = SMALLEST, **sections: str) -> SweepSpec:
    """Return the sweep of such a file."""
    return load_sweep(write(folder, text, **sections), environment={})


def problems(folder: Path, text: str = SMALLEST, **sections: str) -> list[str]:
    """Return the problems of a sweep file, without the name of the file."""
    path = write(folder, text, **sections)
    with pytest.raises(SpecError) as caught:
        load_sweep(path, environment={})
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: line ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def only_problem(folder: Path, **sections: str) -> str:
    """Return the one problem of a sweep file, without its line."""
    [line] = problems(folder, **sections)
    return line.split(": ", 1)[1]


@dataclass
class FakeEngine:
    """An adapter whose answers are given; it can start nothing."""

    name: str = "embedded"
    installed: str = "1.0"
    engine_kind: str = "simulated"
    refused: Mapping[str, EngineError] = field(default_factory=dict)  # toggle=label → why
    dragged: Mapping[str, Mapping[str, ToggleValue]] = field(default_factory=dict)

    def check(self, settings: EngineSettings) -> None:
        for toggle, value in settings.toggles.items():
            if error := self.refused.get(f"{toggle}={value.label}"):
                raise error

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        found: dict[str, ToggleValue] = {}
        for toggle, value in settings.toggles.items():
            found |= self.dragged.get(f"{toggle}={value.label}", {})
        return found

    def version_of(self, settings: EngineSettings) -> str | None:
        return self.installed

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        return dict.fromkeys(self.implied(settings), "the engine has it so")

    def launch_line(self, settings: EngineSettings) -> list[str]:
        toggles = [f"--{toggle}={value.label}" for toggle, value in settings.toggles.items()]
        return ["fake", settings.model, *sorted(toggles)]

    def start(self, settings: EngineSettings) -> AbstractContextManager[Endpoint]:
        raise AssertionError("a plan starts nothing")


class PredictingEngine(FakeEngine):
    """A fake that knows how fast it would be: 1 ms a prompt token, 10 ms an output token."""

    def predict(self, settings: EngineSettings) -> tuple[float, float]:
        return 0.001, 0.010


def plan(folder: Path, engine: FakeEngine | None = None, **sections: str) -> Plan:
    """Return the plan of such a file on a fake engine."""
    return make_plan(sweep(folder, **sections), {"embedded": engine or FakeEngine()})
