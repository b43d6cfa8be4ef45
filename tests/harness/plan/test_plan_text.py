from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from sweep_files import FakeEngine, PredictingEngine, plan

from harness.adapters.base import EngineSettings, ToggleValue, UnsupportedToggleError
from harness.plan.make import make_plan
from harness.plan.planned import Plan
from harness.plan.printed.document import plan_document
from harness.plan.printed.plan import print_plan
from harness.plan.selection import select
from harness.quickstart import quickstart
from harness.sweep_file import SpecError, load_sweep

TWO = (
    "[{kind: shared-prefix, name: bot, prefix_tokens: 9, suffix_tokens: 9, output_tokens: 9}, "
    "{kind: multi-turn, name: chat, turns: 2, first_tokens: 9, turn_tokens: 9, output_tokens: 9}]"
)
LOADS = "[{concurrency: 1, requests: 5}, {concurrency: 4, requests: 40}]"
TOGGLES = "[prefix_caching, paged_kv, {quantization: [none, fp8]}]"
REFUSED = {"quantization=fp8": UnsupportedToggleError("fp8 needs other hardware")}


def two_by_two(folder: Path, engine: FakeEngine | None = None) -> Plan:
    engine = engine or FakeEngine(refused=REFUSED)
    return plan(folder, engine, workloads=TWO, load=LOADS, toggles=TOGGLES, blocks="2")


def printed(plan: Plan, width: int | None = None) -> str:
    """Return the printed plan: in a pipe, or on a terminal with this width."""
    text = io.StringIO()
    print_plan(plan, Console(file=text, width=width, force_terminal=width is not None))
    return text.getvalue()


def test_a_plan_prints_arms_requests_order_and_skipped_arms(tmp_path: Path) -> None:
    """The text has counts, arms with implied values, requests, order and reasons."""
    engine = PredictingEngine(
        refused=REFUSED, dragged={"paged_kv=off": {"prefix_caching": ToggleValue("off")}}
    )

    text = printed(two_by_two(tmp_path, engine))

    assert "32 runs = 4 arms × 2 workloads × 2 loads × 2 blocks; 8 server starts" in text
    assert "skipped: embedded: quantization=fp8: fp8 needs other hardware" in text
    [row] = [line for line in text.splitlines() if line.startswith("paged_kv=off")]
    assert "prefix_caching=off" in row
    assert "baseline: fake some/model --attention_backend=auto" in text
    assert "bot: shared prefix 9 + suffix 9" in text
    assert "bot, concurrency=1: P99 is not reliable: 4 measured requests, needs 299" in text
    assert [line for line in text.splitlines() if line.startswith("  block 1: ")]
    assert "a plan starts nothing" in text
    assert "of simulated time, which takes about 1 s" in text


def test_a_plan_without_a_prediction_has_no_estimate(tmp_path: Path) -> None:
    """Without a prediction of the speed the estimate is unknown, with the reason."""
    text = printed(plan(tmp_path))

    assert "estimate: unknown, because the speed of an engine is unknown" in text


def test_a_launch_line_shows_where_it_differs(tmp_path: Path) -> None:
    """Words that only repeat the flip are left out; added and removed words are shown."""

    class Flags(FakeEngine):
        def launch_line(self, settings: EngineSettings) -> list[str]:
            toggles = settings.toggles
            on = ["--graphs"] if toggles["cuda_graphs"].kind == "on" else []
            off = ["--no-prefix"] if toggles["prefix_caching"].kind == "off" else []
            return ["fake", *on, *off]

    text = printed(plan(tmp_path, Flags(), toggles="[cuda_graphs, prefix_caching]"))

    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["prefix_caching=off"].rstrip().endswith("--no-prefix")
    assert rows["cuda_graphs=off"].rstrip().endswith("without --graphs")


@pytest.mark.parametrize("width", [None, 60, 80, 200])
def test_lines_fit(tmp_path: Path, width: int | None) -> None:
    """A plan of 180 runs fits into 100 columns, or the width of a narrower terminal."""
    planned = make_plan(load_sweep(quickstart()), {"embedded": FakeEngine()})

    lines = printed(planned, width).splitlines()

    assert max(Text.from_ansi(line).cell_len for line in lines) <= min(width or 100, 100)
    assert len(lines) < 170


def test_the_document_holds_every_run_and_number(tmp_path: Path) -> None:
    """`--json` has all facts of the text, as plain JSON."""
    planned = two_by_two(tmp_path, PredictingEngine(refused=REFUSED))

    document = json.loads(json.dumps(plan_document(planned), allow_nan=False))

    assert len(document["planned"]) == len(planned.runs) == 40
    assert document["arms"][:2] == ["baseline", "baseline-again"]
    assert document["planned"][0] == planned.runs[0].facts()
    assert {run["status"] for run in document["planned"]} == {"planned", "skipped"}
    assert [item["warnings"] for item in document["demands"]] == [
        demand.warnings() for demand in planned.demands
    ]
    assert document["estimate"]["engine_hours"] > 0
    assert document["hardware"] == {"gpu": "g", "count": 2}
    assert plan_document(plan(tmp_path))["estimate"] == {"engine_hours": None, "wall_hours": None}


def left(plan: Plan) -> set[tuple[str, str, str]]:
    return {(run.arm.name, run.workload.name, run.load.label) for run in plan.runs}


def test_a_pattern_keeps_an_arm_and_its_baselines(tmp_path: Path) -> None:
    """The baselines of a selected arm are kept for the same workloads and loads."""
    chosen = select(two_by_two(tmp_path), "prefix*")

    assert {arm for arm, _, _ in left(chosen)} == {
        "baseline", "baseline-again", "prefix_caching=off",
    }  # fmt: skip
    assert len(chosen.runs) == 3 * 2 * 2 * 2
    assert [arm.name for arm in chosen.arms] == [
        "baseline", "baseline-again", "prefix_caching=off",
    ]  # fmt: skip


def test_a_pattern_may_name_all_four(tmp_path: Path) -> None:
    """A pattern with slashes matches engine, arm, workload and load."""
    chosen = select(two_by_two(tmp_path), "embedded/paged_kv=*/chat/concurrency=4")

    assert left(chosen) == {
        (arm, "chat", "concurrency=4") for arm in ("baseline", "baseline-again", "paged_kv=off")
    }
    assert [(demand.workload, demand.load.label) for demand in chosen.demands] == [
        ("chat", "concurrency=4")
    ]


@pytest.mark.parametrize(("pattern", "runs"), [("chat", 20), ("concurrency=1", 20), ("*", 40)])
def test_a_pattern_may_name_a_workload_or_a_load(tmp_path: Path, pattern: str, runs: int) -> None:
    """All arms of a selected workload or load keep their order, seeds and keys."""
    whole = two_by_two(tmp_path)

    chosen = select(whole, pattern)

    assert len(chosen.runs) == runs
    assert list(chosen.runs) == [run for run in whole.runs if run in chosen.runs]


def test_a_pattern_that_matches_nothing_lists_the_names(tmp_path: Path) -> None:
    """A pattern without a match raises an error instead of planning an empty sweep."""
    with pytest.raises(SpecError, match="--only 'nothing' matches no run") as caught:
        select(two_by_two(tmp_path), "nothing")

    assert "workloads: bot, chat" in caught.value.__notes__
    assert "loads: concurrency=1, concurrency=4" in caught.value.__notes__


def test_a_pattern_that_only_matches_skipped_runs_gives_the_reason(tmp_path: Path) -> None:
    """The error has the reason, instead of a plan with only the baselines."""
    with pytest.raises(SpecError, match="only skipped runs; quantization=fp8: fp8 needs other"):
        select(two_by_two(tmp_path), "quantization=*")


def test_the_heading_counts_the_baselines_gpus(tmp_path: Path) -> None:
    """The plan prints the 8 GPUs of the baseline, not the 2 of `hardware.count`."""
    text = printed(plan(tmp_path, toggles="[{tensor_parallel: [8, 4]}]"))

    assert "some/model on 8 × g; engine: embedded" in text


def test_a_rate_is_of_conversations_and_tokens_are_whole(tmp_path: Path) -> None:
    """A rate counts conversations, and the text has the unit and no trailing zero."""
    text = printed(plan(tmp_path, workloads=TWO, load="[{rate: 8, duration: 100 s}]"))

    assert "open loop, 8 conversations/s (poisson)" in text
    [row] = [line for line in text.splitlines() if line.startswith("bot ")]
    assert row.split()[-5:] == ["800", "18", "9", "50%", "800"]
