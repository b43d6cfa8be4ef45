from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from sweep_files import FakeEngine, PredictingEngine, plan

from harness.adapters.base import EngineError, ToggleValue, UnsupportedToggleError
from harness.plan.planned import Plan
from harness.workloads.base import WorkloadError

TOGGLES = "[prefix_caching, paged_kv, {quantization: [none, int8, fp8]}]"
LOADS = "[{concurrency: 1, requests: 5}, {concurrency: 4, requests: 40}]"
OFF = ToggleValue("off")
DRAGS = {"paged_kv=off": {"prefix_caching": OFF}}


def names(plan: Plan, block: int) -> list[str]:
    """Return the arms of a block in the order of their starts."""
    return [run.arm.name for run in plan.planned if run.block == block and run.load.value == 1]


def test_every_arm_runs_every_workload_load_and_block_once(tmp_path: Path) -> None:
    """6 arms, 2 loads and 3 blocks are 36 different runs."""
    planned = plan(tmp_path, toggles=TOGGLES, load=LOADS)

    cells = Counter((run.arm.name, run.load.label, run.block) for run in planned.runs)
    assert len(cells) == 36
    assert set(cells.values()) == {1}
    assert len({run.key for run in planned.runs}) == 36


def test_runs_of_one_arm_share_a_start_within_a_block(tmp_path: Path) -> None:
    """A server starts once for all its loads, and again in the next block; A/A is two starts."""
    planned = plan(tmp_path, toggles=TOGGLES, load=LOADS)

    starts = [
        {(run.arm.name, run.block) for run in runs}
        for _, runs in groupby(planned.runs, key=lambda run: run.group)
    ]
    assert len(starts) == planned.starts == 18
    assert all(len(start) == 1 for start in starts)
    assert [run.group for run in planned.runs] == sorted(run.group or 0 for run in planned.runs)


def test_blocks_follow_one_another_each_in_its_own_order(tmp_path: Path) -> None:
    """Each block starts the same arms in another order, so that drift is not an effect."""
    planned = plan(tmp_path, toggles=TOGGLES, load=LOADS, blocks="5")

    assert [run.block for run in planned.runs] == sorted(run.block for run in planned.runs)
    orders = [names(planned, block) for block in range(5)]
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert len({tuple(order) for order in orders}) > 1


def test_the_seed_gives_the_order(tmp_path: Path) -> None:
    """The same seed gives the same order of runs, another seed another order."""
    first, again = (plan(tmp_path, toggles=TOGGLES, load=LOADS) for _ in range(2))
    other = plan(tmp_path, toggles=TOGGLES, load=LOADS, seed="1")

    assert [run.key for run in first.runs] == [run.key for run in again.runs]
    assert [names(first, block) for block in range(3)] != [names(other, b) for b in range(3)]
    assert {run.seed for run in first.runs}.isdisjoint({run.seed for run in other.runs})


def test_all_arms_of_a_block_get_the_same_requests(tmp_path: Path) -> None:
    """Seeds are equal for all arms and engines, and different for each block and load."""
    planned = plan(
        tmp_path,
        toggles=TOGGLES,
        load=LOADS,
        engines="[embedded, {engine: embedded, label: other}]",
    )

    seeds: dict[tuple[int, str], set[int]] = {}
    for run in planned.runs:
        seeds.setdefault((run.block, run.load.label), set()).add(run.seed)
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 6


def test_the_seed_of_a_run_does_not_depend_on_the_rest_of_the_sweep(tmp_path: Path) -> None:
    """Adding a toggle, load or block does not change the seeds of other runs."""
    few = plan(tmp_path, load="[{concurrency: 4, requests: 40}]", blocks="2")
    many = plan(tmp_path, load=LOADS, toggles=TOGGLES, blocks="3")

    assert {run.seed for run in few.runs} < {run.seed for run in many.runs}


def test_a_key_depends_on_what_the_records_depend_on(tmp_path: Path) -> None:
    """Another engine version, launch line or request changes the key; other blocks do not."""
    base = {run.key for run in plan(tmp_path).runs}

    assert base < {run.key for run in plan(tmp_path, blocks="4").runs}
    assert base < {run.key for run in plan(tmp_path, toggles="[paged_kv]").runs}
    for other in (
        plan(tmp_path, FakeEngine(installed="1.1")),
        plan(tmp_path, base="{max_num_seqs: 7}"),
        plan(tmp_path, base="{paged_kv: off}"),
        plan(tmp_path, load="[{concurrency: 4, requests: 41}]"),
        plan(tmp_path, seed="3"),
        plan(tmp_path, model="other"),
    ):
        assert base.isdisjoint({run.key for run in other.runs})


def test_settings_are_the_baseline_with_the_flipped_values(tmp_path: Path) -> None:
    """An arm's settings have every toggle, the flipped value and the matching GPUs."""
    planned = plan(
        tmp_path, toggles="[{tensor_parallel: [2, 4]}]", base="{max_model_len: 99, dtype: float16}"
    )

    arms = {arm.name: arm for arm in planned.arms}
    flipped = arms["tensor_parallel=4"]
    assert flipped.settings.toggles["tensor_parallel"] == ToggleValue("4")
    assert flipped.settings.toggles["batching"] == ToggleValue("continuous")
    assert (flipped.gpus, arms["baseline"].gpus, flipped.settings.gpu_count) == (4, 2, 2)
    assert (flipped.settings.max_model_len, flipped.settings.dtype) == (99, "float16")
    assert arms["baseline"].settings == arms["baseline-again"].settings


def test_implied_values_are_part_of_a_flip(tmp_path: Path) -> None:
    """Paged KV off implies prefix caching off in the settings, the flip and the manifest."""
    planned = plan(tmp_path, FakeEngine(dragged=DRAGS), toggles="[paged_kv, chunked_prefill]")

    facts = {run.arm.name: run.facts() for run in planned.runs}
    assert facts["paged_kv=off"]["toggles"]["prefix_caching"] == "off"
    assert facts["paged_kv=off"]["flipped"] == {
        "paged_kv": {"value": "off", "base": "on", "implied": {"prefix_caching": "off"}}
    }
    assert facts["chunked_prefill=off"]["flipped"]["chunked_prefill"]["implied"] == {}
    assert facts["baseline"]["flipped"] == {}


def test_an_arm_with_the_settings_of_another_is_skipped(tmp_path: Path) -> None:
    """Equal settings are not measured twice under two names."""
    planned = plan(
        tmp_path, FakeEngine(dragged=DRAGS), toggles="[prefix_caching, paged_kv]", design="pairs"
    )

    reasons = {arm.name: arm.reason for arm in planned.arms}
    assert reasons["prefix_caching=off+paged_kv=off"] == "has the same settings as paged_kv=off"
    assert reasons["paged_kv=off"] is None


def test_a_flip_that_the_baseline_overrules_is_skipped(tmp_path: Path) -> None:
    """The skipped arm has the reason, and a note lists the changed value of the baseline."""
    planned = plan(
        tmp_path, FakeEngine(dragged=DRAGS), base="{paged_kv: off}", toggles="[prefix_caching]"
    )

    [note] = planned.notes
    assert note.startswith("embedded: the baseline's prefix_caching is off, not on")
    assert planned.arms[2].reason == "has the same settings as baseline"
    assert planned.arms[0].settings.toggles["prefix_caching"] == OFF


def test_an_unsupported_arm_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """Arms that are not supported or do not fit are planned as skipped, never dropped."""
    no_fit = EngineError("does not fit by 3 GiB")
    no_fit.add_note("use 4 GPUs")
    engine = FakeEngine(
        refused={
            "quantization=fp8": UnsupportedToggleError("fp8 needs other hardware"),
            "paged_kv=off": no_fit,
        }
    )

    planned = plan(tmp_path, engine, toggles=TOGGLES, blocks="2")

    skipped = [run for run in planned.runs if run.status == "skipped"]
    assert {(run.arm.name, run.facts()["reason"]) for run in skipped} == {
        ("quantization=fp8", "fp8 needs other hardware"),
        ("paged_kv=off", "does not fit by 3 GiB; use 4 GPUs"),
    }
    assert {run.group for run in skipped} == {None}
    assert len(skipped) == 4
    assert planned.starts == 8


def test_a_baseline_that_cannot_start_ends_the_plan(tmp_path: Path) -> None:
    """A baseline that cannot start raises an error, with the engine's note."""
    error = EngineError("does not fit by 3 GiB")
    error.add_note("use 4 GPUs")

    with pytest.raises(EngineError, match="embedded: the baseline cannot start: does not") as seen:
        plan(tmp_path, FakeEngine(refused={"paged_kv=on": error}))
    assert seen.value.__notes__ == ["use 4 GPUs"]


def test_a_workload_without_requests_ends_the_plan(tmp_path: Path) -> None:
    """A trace without rows, or without the times that its load needs, raises an error."""
    (tmp_path / "t.jsonl").write_text('{"input_length": 5, "output_length": 5}\n')

    with pytest.raises(WorkloadError, match="needs times"):
        plan(tmp_path, workloads="[{kind: trace, path: t.jsonl}]", load="[{arrivals: trace}]")
    with pytest.raises(WorkloadError, match="longer than"):
        plan(tmp_path, base="{max_model_len: 20}")


def test_an_engine_that_predicts_nothing_has_no_estimate(tmp_path: Path) -> None:
    """An unknown duration is None, never 0."""
    assert plan(tmp_path).expected is None


def test_the_estimate_is_work_over_speed(tmp_path: Path) -> None:
    """1 user, 5 requests of 80 prompt and 8 output tokens: the prefix is cached after the first."""
    alone = plan(
        tmp_path, PredictingEngine(), load="[{concurrency: 1, requests: 5}]", blocks="1"
    ).planned[0]

    prefill_s = (5 * 80 - 4 * 64) * 0.001
    decode_s = 5 * 8 * 0.010
    assert alone.expected is not None
    assert alone.expected.engine_s == pytest.approx(prefill_s + decode_s)
    assert alone.expected.wall_s < 0.1


def test_an_open_loop_takes_at_least_its_time(tmp_path: Path) -> None:
    """A rate for 60 s takes 60 s plus one answer, even if the engine is idle."""
    run = plan(tmp_path, PredictingEngine(), load="[{rate: 1, duration: 60 s}]").planned[0]

    assert run.expected is not None
    assert run.expected.engine_s == pytest.approx(60 + 8 * 0.010)


def test_the_wall_time_of_a_real_engine_is_its_engine_time(tmp_path: Path) -> None:
    """Only simulated runs take less wall time than engine time."""
    run = plan(tmp_path, PredictingEngine(engine_kind="real")).planned[0]

    assert run.expected is not None
    assert run.expected.wall_s == run.expected.engine_s


@pytest.mark.parametrize(
    ("about", "sections", "where"),
    [
        ("model", {}, "line 1: model: "),
        ("gpu", {}, "line 2: hardware.gpu: "),
        ("max_model_len", {"base": "{max_model_len: 5}"}, "line 8: base.max_model_len: "),
        ("max_model_len", {}, "line 1: model: "),
        ("tensor_parallel", {}, "line 2: hardware.count: "),
        ("block_size", {"toggles": "[{block_size: [8, 16]}]"}, "line 8: toggles[0].block_size: "),
        (None, {}, "line 3: engines[0]: "),
    ],
)
def test_an_invalid_baseline_is_an_error_with_its_line(
    tmp_path: Path, about: str | None, sections: dict[str, str], where: str
) -> None:
    """The error has the line of the setting that the engine refuses."""
    error = EngineError("no")
    error.about = about

    with pytest.raises(EngineError) as caught:
        plan(tmp_path, FakeEngine(refused={"paged_kv=on": error}), **sections)
    assert str(caught.value) == (
        f"{tmp_path / 'sweep.yaml'}: {where}embedded: the baseline cannot start: no"
    )


def test_an_invalid_workload_is_an_error_with_its_line(tmp_path: Path) -> None:
    """Requests longer than the context raise an error with the line of the workload."""
    with pytest.raises(WorkloadError, match=r"sweep.yaml: line 5: workloads\[0\]: shared-prefix: "):
        plan(tmp_path, base="{max_model_len: 20}")
