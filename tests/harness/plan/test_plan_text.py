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
    """Return what is printed: piped, or on a terminal of so many columns."""
    text = io.StringIO()
    print_plan(plan, Console(file=text, width=width, force_terminal=width is not None))
    return text.getvalue()


def test_a_plan_tells_what_is_run_asked_and_skipped(tmp_path: Path) -> None:
    """Counts, arms with what they drag along, requests, order, reasons: nothing stays a guess."""
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
    assert "bot, concurrency=1: P99 not reliable: 4 measured requests, 299 needed" in text
    assert [line for line in text.splitlines() if line.startswith("  block 1: ")]
    assert "nothing is started by a plan" in text
    assert "of simulated time, played in about 1 s" in text


def test_a_plan_without_a_prediction_says_so(tmp_path: Path) -> None:
    """An estimate that nobody can make is not made."""
    assert "estimate: unknown; the engine does not predict its speed" in printed(plan(tmp_path))


def test_a_launch_line_shows_where_it_differs(tmp_path: Path) -> None:
    """Words that only repeat the flip are left out; others are shown, also those that go."""

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
    """180 runs can be read in 100 columns, and on a narrower terminal in what it has."""
    planned = make_plan(load_sweep(quickstart()), {"embedded": FakeEngine()})

    lines = printed(planned, width).splitlines()

    assert max(Text.from_ansi(line).cell_len for line in lines) <= min(width or 100, 100)
    assert len(lines) < 170


def test_the_document_holds_every_run_and_number(tmp_path: Path) -> None:
    """`--json` says all that the text says, and is plain JSON."""
    planned = two_by_two(tmp_path, PredictingEngine(refused=REFUSED))

    document = json.loads(json.dumps(plan_document(planned), allow_nan=False))

    assert len(document["planned"]) == len(planned.runs) == 40
    assert document["arms"][:2] == ["baseline", "baseline-again"]
    assert document["planned"][0] == planned.runs[0].facts()
    assert {run["status"] for run in document["planned"]} == {"planned", "skipped"}
    assert [item["doubts"] for item in document["demands"]] == [
        demand.warnings() for demand in planned.demands
    ]
    assert document["estimate"]["engine_hours"] > 0
    assert document["hardware"] == {"gpu": "g", "count": 2}
    assert plan_document(plan(tmp_path))["estimate"] == {"engine_hours": None, "wall_hours": None}


def left(plan: Plan) -> set[tuple[str, str, str]]:
    return {(run.arm.name, run.workload.name, run.load.label) for run in plan.runs}


def test_a_pattern_keeps_an_arm_and_its_baselines(tmp_path: Path) -> None:
    """A ratio needs its baseline, under the same workloads and loads."""
    chosen = select(two_by_two(tmp_path), "prefix*")

    assert {arm for arm, _, _ in left(chosen)} == {
        "baseline", "baseline-again", "prefix_caching=off",
    }  # fmt: skip
    assert len(chosen.runs) == 3 * 2 * 2 * 2
    assert [arm.name for arm in chosen.arms] == [
        "baseline", "baseline-again", "prefix_caching=off",
    ]  # fmt: skip


def test_a_pattern_may_name_all_four(tmp_path: Path) -> None:
    """With slashes it is engine, arm, workload and load at once."""
    chosen = select(two_by_two(tmp_path), "embedded/paged_kv=*/chat/concurrency=4")

    assert left(chosen) == {
        (arm, "chat", "concurrency=4") for arm in ("baseline", "baseline-again", "paged_kv=off")
    }
    assert [(demand.workload, demand.load.label) for demand in chosen.demands] == [
        ("chat", "concurrency=4")
    ]


@pytest.mark.parametrize(("pattern", "runs"), [("chat", 20), ("concurrency=1", 20), ("*", 40)])
def test_a_pattern_may_name_a_workload_or_a_load(tmp_path: Path, pattern: str, runs: int) -> None:
    """Then all arms stay, in their order, with their seeds and keys."""
    whole = two_by_two(tmp_path)

    chosen = select(whole, pattern)

    assert len(chosen.runs) == runs
    assert list(chosen.runs) == [run for run in whole.runs if run in chosen.runs]


def test_a_pattern_that_matches_nothing_lists_the_names(tmp_path: Path) -> None:
    """A typo is no empty sweep."""
    with pytest.raises(SpecError, match="--only 'nothing' matches no run") as caught:
        select(two_by_two(tmp_path), "nothing")

    assert "workloads: bot, chat" in caught.value.__notes__
    assert "loads: concurrency=1, concurrency=4" in caught.value.__notes__


def test_a_pattern_that_only_matches_skipped_runs_gives_the_reason(tmp_path: Path) -> None:
    """Running the baselines alone would look like a result."""
    with pytest.raises(SpecError, match="skipped runs only; quantization=fp8: fp8 needs other"):
        select(two_by_two(tmp_path), "quantization=*")


def test_the_heading_counts_the_baselines_gpus(tmp_path: Path) -> None:
    """A baseline on 8 of the GPUs is not said to run on the 2 of `hardware.count`."""
    text = printed(plan(tmp_path, toggles="[{tensor_parallel: [8, 4]}]"))

    assert "some/model on 8 × g; engine: embedded" in text


def test_a_rate_is_of_conversations_and_tokens_are_whole(tmp_path: Path) -> None:
    """A chat has several requests, so a bare 8/s would be another load; 20.0 stands beside none."""
    text = printed(plan(tmp_path, workloads=TWO, load="[{rate: 8, duration: 100 s}]"))

    assert "open loop, 8 conversations/s (poisson)" in text
    [row] = [line for line in text.splitlines() if line.startswith("bot ")]
    assert row.split()[-5:] == ["800", "18", "9", "50%", "800"]
