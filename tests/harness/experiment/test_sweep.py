"""A sweep on the embedded engine: every toggle moves what it must, and nothing is made up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.adapters import ENGINES
from harness.adapters.base import EngineError, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import EmbeddedAdapter, EmbeddedEndpoint
from harness.adapters.endpoint import EngineAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import Plan, PlannedArm, PlannedRun
from harness.results.analysis import summarize
from harness.results.store.sweep_folder import read_runs
from harness.sweep_file import load_sweep

SWEEP = """
name: small
model: llama-3-70b
hardware: {{gpu: a100-80gb, count: 4}}
engines: [embedded]
base: {{max_model_len: 4096, max_num_seqs: 64{base}}}
toggles:
{toggles}
workloads:
  - kind: shared-prefix
    name: bot
    prefix_tokens: 1000
    suffix_tokens: {{uniform: {{low: 80, high: 120}}}}
    output_tokens: 60
load:
{load}
blocks: 1
slo: {{ttft: 2 s, tpot: 80 ms}}
"""
BUSY = "  - {concurrency: 40, requests: 160}"
ALONE = "  - {concurrency: 1, requests: 8}"
FEW = "  - {concurrency: 4, requests: 16}"


class Quiet:
    """Wants to know nothing, but may interrupt."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self._left = interrupt_after
        self.statuses: list[str] = []

    def starting(self, arm: PlannedArm) -> None:
        assert arm.reason is None

    def started(self, run: PlannedRun, requests: int) -> None:
        assert requests > 0

    def requests_done(self, requests: int) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == -1:  # once, as Ctrl-C does
                signal.raise_signal(signal.SIGINT)

    def ended(self, run: PlannedRun, status: str) -> None:
        self.statuses.append(status)


def sweep_file(folder: Path, toggles: str, load: str = BUSY, base: str = "") -> Path:
    path = folder / "sweep.yaml"
    lines = "\n".join(f"  - {toggle}" for toggle in toggles.split(";"))
    text = SWEEP.format(toggles=lines, load=load, base=f", {base}" if base else "")
    path.write_text(text, encoding="utf-8")
    return path


def adapters(embedded: EngineAdapter | None = None) -> dict[str, EngineAdapter]:
    made: dict[str, EngineAdapter] = {name: kind() for name, kind in ENGINES.items()}
    return made if embedded is None else {**made, "embedded": embedded}


def planned(path: Path, engines: Mapping[str, EngineAdapter]) -> Plan:
    return make_plan(load_sweep(path), engines)


def summary_of(
    folder: Path,
    toggles: str,
    load: str = BUSY,
    base: str = "",
    engine: EngineAdapter | None = None,
) -> dict[str, Any]:
    engines = adapters(engine)
    plan = planned(sweep_file(folder, toggles, load, base), engines)
    SweepRunner(plan, engines, folder / "out").run(Quiet())
    return summarize(folder / "out").document()


def metric(summary: Mapping[str, Any], arm: str, name: str) -> float:
    (row,) = (one for one in summary["arms"] if one["arm"] == arm)
    value: float = row["metrics"][name]
    return value


BATCHING = "{batching: [continuous, static, none]}"
QUANTIZED = "{quantization: [none, int8, int4]}"
PARALLEL = "{tensor_parallel: [4, 8]}"
DRAFTING = "{speculative: [off, ngram, draft, eagle]}"
# Sweeps that many tests read: toggles, load, base
SWEEPS = {
    "busy": (f"prefix_caching;paged_kv;{BATCHING};{{kv_cache_dtype: [auto, fp8]}}", BUSY, ""),
    # a cached prefix leaves prompts too short to be cut
    "uncached": ("chunked_prefill", BUSY, "prefix_caching: off"),
    "alone": (f"cuda_graphs;overlap_scheduling;{QUANTIZED};{PARALLEL};{DRAFTING}", ALONE, ""),
}
# arm → (sweep, metric, least and most ratio of the arm to the baseline)
DIRECTIONS = {
    "prefix_caching=off": ("busy", "ttft_ms.p50", 3, 1000),
    "chunked_prefill=off": ("uncached", "chunk_gap_ms.p99", 2, 100),
    "batching=static": ("busy", "ttft_ms.p50", 5, 1000),
    "batching=none": ("busy", "output_tokens_per_s", 0.01, 0.2),
    "paged_kv=off": ("busy", "output_tokens_per_s", 0.1, 0.9),
    "cuda_graphs=off": ("alone", "tpot_ms.p50", 1.1, 2),
    "overlap_scheduling=off": ("alone", "tpot_ms.p50", 1.01, 1.2),
    "kv_cache_dtype=fp8": ("busy", "tpot_ms.p50", 0.8, 0.995),
    "quantization=int8": ("alone", "tpot_ms.p50", 0.5, 0.8),
    "quantization=int4": ("alone", "tpot_ms.p50", 0.3, 0.6),
    "tensor_parallel=8": ("alone", "tpot_ms.p50", 0.5, 0.8),
    "speculative=ngram": ("alone", "tpot_ms.p50", 0.4, 0.8),
    "speculative=draft": ("alone", "tpot_ms.p50", 0.2, 0.6),
    "speculative=eagle": ("alone", "tpot_ms.p50", 0.2, 0.5),
}


@pytest.fixture(scope="module")
def summary_named(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The summary of one of `SWEEPS`, each of which is run once."""
    return cache(lambda name: summary_of(tmp_path_factory.mktemp(name), *SWEEPS[name]))


@pytest.mark.parametrize("arm", DIRECTIONS)
def test_each_toggle_moves_its_metric_the_right_way(
    arm: str, summary_named: Callable[[str], dict[str, Any]]
) -> None:
    """What an optimization is for shows in the figure that it is for, and not beyond reason."""
    sweep, name, least, most = DIRECTIONS[arm]
    summary = summary_named(sweep)

    ratio = metric(summary, arm, name) / metric(summary, "baseline", name)
    assert least < ratio < most
    assert {run["status"] for run in summary["runs"]} == {"ok"}


def test_one_user_decodes_between_the_roof_and_twice_the_roof(
    summary_named: Callable[[str], dict[str, Any]],
) -> None:
    """140 GB over 4 × 2.039 TB/s is 17.2 ms a token: nothing can be faster."""
    assert 17.2 <= metric(summary_named("alone"), "baseline", "tpot_ms.p50") <= 34.4


def test_every_provable_toggle_is_proven(tmp_path: Path) -> None:
    """Under a busy load the counters tell of each switch that the engine counts."""
    toggles = f"prefix_caching;chunked_prefill;{BATCHING};cuda_graphs;"
    summary = summary_of(
        tmp_path, toggles + "{speculative: [off, ngram]}", base="max_batched_tokens: 256"
    )

    arms = {run["arm"]: run["evidence"] for run in summary["runs"]}
    assert arms["prefix_caching=off"]["prefix_caching"]["verdict"] == "verified"
    assert arms["batching=static"]["batching"]["verdict"] == "verified"
    assert arms["batching=none"]["batching"]["verdict"] == "verified"
    assert arms["cuda_graphs=off"]["cuda_graphs"]["verdict"] == "verified"
    assert arms["speculative=ngram"]["speculative"]["verdict"] == "verified"
    assert arms["chunked_prefill=off"]["chunked_prefill"]["verdict"] == "verified"


def test_two_sweeps_with_one_seed_are_the_same_to_the_byte(tmp_path: Path) -> None:
    """Records of equal runs are equal files; another seed gives others."""
    engines = adapters()
    path = sweep_file(tmp_path, "prefix_caching;{speculative: [off, eagle]}", FEW)
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text(encoding="utf-8") + "seed: 7\n", encoding="utf-8")

    stored = []
    for name, file in (("one", path), ("two", path), ("three", other)):
        SweepRunner(planned(file, engines), engines, tmp_path / name).run(Quiet())
        stored.append(
            sorted(run.read_bytes() for run in (tmp_path / name).glob("*/records.parquet"))
        )

    assert stored[0] == stored[1]
    assert not set(stored[0]) & set(stored[2])


def test_the_baseline_again_is_exactly_the_baseline(
    summary_named: Callable[[str], dict[str, Any]],
) -> None:
    """On virtual time the A/A control differs by nothing."""
    summary = summary_named("busy")

    ratios = [one["ratio"] for one in summary["effects"] if one["arm"] == "baseline-again"]
    assert ratios
    assert set(ratios) == {1.0}


class Deaf(EmbeddedAdapter):
    """An engine that takes every value of prefix_caching, says so, and ignores it."""

    @contextmanager
    def start(self, settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
        always = {**settings.toggles, "prefix_caching": ToggleValue("on")}
        endpoint = EmbeddedEndpoint(replace(settings, toggles=always))
        said = {name: value.label for name, value in settings.toggles.items()}
        endpoint.effective = lambda: said  # type: ignore[method-assign]
        yield endpoint


def test_a_flag_that_is_taken_and_ignored_voids_the_run(tmp_path: Path) -> None:
    """The counter speaks against the label: the run is void and in no comparison."""
    summary = summary_of(tmp_path, "prefix_caching", FEW, engine=Deaf())

    status = {run["arm"]: run["status"] for run in summary["runs"]}
    assert status == {"baseline": "ok", "baseline-again": "ok", "prefix_caching=off": "void"}
    assert "prefix_caching=off" not in {one["arm"] for one in summary["effects"]}


class Broken(EmbeddedAdapter):
    """An engine that does not come up with one value."""

    @contextmanager
    def start(self, settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
        if settings.toggles["cuda_graphs"].kind == "off":
            raise EngineError("out of memory while starting")
        yield EmbeddedEndpoint(settings)


def test_an_engine_that_does_not_start_ends_its_runs_and_not_the_sweep(tmp_path: Path) -> None:
    """The other arms are measured; the failed one is stored with the reason."""
    summary = summary_of(tmp_path, "cuda_graphs;prefix_caching", FEW, engine=Broken())

    by_arm = {run["arm"]: run for run in summary["runs"]}
    assert by_arm["cuda_graphs=off"]["status"] == "failed"
    assert by_arm["cuda_graphs=off"]["reason"] == "out of memory while starting"
    assert by_arm["prefix_caching=off"]["status"] == "ok"


class Dead(EmbeddedAdapter):
    """An engine that never comes up."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = 0

    @contextmanager
    def start(self, settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
        self.tried += 1
        raise EngineError("unrecognized arguments: --fast")
        yield EmbeddedEndpoint(settings)


def test_what_is_wrong_with_every_arm_is_not_tried_with_every_arm(tmp_path: Path) -> None:
    """A start takes minutes: after two arms that failed, the others fail with the same reason."""
    engine = Dead()
    summary = summary_of(tmp_path, "cuda_graphs;prefix_caching;chunked_prefill", engine=engine)

    assert engine.tried == 2
    reasons = [run["reason"] for run in summary["runs"]]
    assert len(reasons) == 5
    assert all("unrecognized arguments: --fast" in reason for reason in reasons)
    assert sum("not started, since no arm of embedded was" in reason for reason in reasons) == 3


class Confused(EmbeddedAdapter):
    """An engine with one value of which the harness's own code stumbles."""

    @contextmanager
    def start(self, settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
        endpoint = EmbeddedEndpoint(settings)
        if settings.toggles["cuda_graphs"].kind == "off":
            endpoint.effective = lambda: dict(None)  # type: ignore[method-assign,call-overload]
        yield endpoint


def test_a_bug_in_one_run_is_told_with_it_and_not_the_end_of_the_sweep(tmp_path: Path) -> None:
    """It is a failed run with its traceback; the other arms are measured."""
    summary = summary_of(tmp_path, "cuda_graphs;prefix_caching", FEW, engine=Confused())

    by_arm = {run["arm"]: run for run in summary["runs"]}
    assert by_arm["cuda_graphs=off"]["status"] == "failed"
    assert "a bug of the harness" in by_arm["cuda_graphs=off"]["reason"]
    assert by_arm["prefix_caching=off"]["status"] == "ok"
    manifests = [path.read_text() for path in tmp_path.glob("**/manifest.json")]
    assert sum("TypeError: 'NoneType' object is not iterable" in text for text in manifests) == 1


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path) -> None:
    """Ctrl-C in the second run leaves the first, whole, and nothing half."""
    engines = adapters()
    plan = planned(sweep_file(tmp_path, "prefix_caching"), engines)
    watcher = Quiet(interrupt_after=200)  # 160 requests a run

    with pytest.raises(KeyboardInterrupt):
        SweepRunner(plan, engines, tmp_path / "out").run(watcher)

    assert watcher.statuses == ["ok"]
    assert len(list(read_runs(tmp_path / "out"))) == 1
    statuses = [run["status"] for run in summarize(tmp_path / "out").document()["runs"]]
    assert sorted(statuses) == ["interrupted", "interrupted", "ok"]


def test_open_loop_keeps_its_schedule_whatever_the_engine_does(tmp_path: Path) -> None:
    """Requests are sent when they are due, also to an engine that has fallen far behind."""
    load = "  - {rate: 20, duration: 5 s, arrivals: constant}"
    summary_of(tmp_path, "{batching: [continuous, none]}", load)

    for run in read_runs(tmp_path / "out"):
        columns = run.records.columns
        assert list(columns["scheduled_ns"]) == [i * 50_000_000 for i in range(100)]
        assert list(columns["sent_ns"]) == list(columns["scheduled_ns"])
