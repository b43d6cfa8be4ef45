"""Measure the speed of the embedded engine end to end: prompts, event loop, records, storage.

    python benchmarks/simulator.py [--repeats 5]

Prints two rates as medians over the repeats: simulated output tokens per second of real time with
100 running sequences, and simulated decode steps per second with one. Both include computing the
prompt ids, the load generator, the event loop, the engine, and writing the records to disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.adapters import ENGINES
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import PlannedArm, PlannedRun
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import load_sweep

SWEEP = """
name: speed
model: llama-3-70b
hardware: {{gpu: a100-80gb, count: 4}}
engines: [embedded]
base: {{max_model_len: 8192}}
toggles: [prefix_caching]
workloads: [{{kind: shared-prefix, name: prompts, prefix_tokens: 500, suffix_tokens: 100,
             output_tokens: {output_tokens}}}]
load: [{{concurrency: {concurrency}, requests: {requests}}}]
blocks: 1
"""


@dataclass(frozen=True)
class Case:
    """One rate to measure."""

    name: str
    concurrency: int
    requests: int
    output_tokens: int
    counter: str  # server counter to divide by the time
    goal: float


CASES = (
    Case("output tokens/s, 100 running", 100, 4000, 256, "output_tokens", 1_000_000),
    Case("steps/s, 1 running", 1, 400, 512, "steps", 50_000),
)


class Stopwatch:
    """A timer of the baseline's run, from its start until it is stored."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def starting(self, arm: PlannedArm) -> None:
        """Do nothing, because the start of the engine is not timed."""

    def started(self, run: PlannedRun, requests: int) -> None:
        """Start the timer."""
        self._since = time.perf_counter()

    def requests_done(self, requests: int) -> None:
        """Do nothing, because the engine counts requests."""

    def ended(self, run: PlannedRun, status: str) -> None:
        """Stop the timer when the baseline's run ends."""
        if run.arm.name == "baseline":
            self.seconds = time.perf_counter() - self._since


def measure(case: Case, folder: Path) -> float:
    """Run one sweep and return the rate of `case` per second of real time."""
    folder.mkdir()
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.format(**case.__dict__), encoding="utf-8")
    adapters: dict[str, Any] = {name: kind() for name, kind in ENGINES.items()}
    watch = Stopwatch()
    SweepRunner(make_plan(load_sweep(path), adapters), adapters, folder / "out").run(watch)
    manifests = [run.manifest for run in read_runs(folder / "out")]
    baseline = next(one for one in manifests if one.arm == "baseline")
    done: float = getattr(baseline.counters, case.counter)
    return done / watch.seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="number of repeats (default: 5)")
    repeats = parser.parse_args().repeats
    print(f"{'rate':32} {'median':>12} {'lowest':>12} {'highest':>12} {'goal':>10}")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            rates = [measure(case, Path(folder) / str(number)) for number in range(repeats)]
        middle = statistics.median(rates)
        print(
            f"{case.name:32} {middle:12,.0f} {min(rates):12,.0f} {max(rates):12,.0f}"
            f" {case.goal:10,.0f}"
        )


if __name__ == "__main__":
    main()
