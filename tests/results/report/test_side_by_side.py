"""Several engines in one sweep: beside each other where that is fair, marked or left out else."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from summaries import Fixture, make_summary, only

from harness.results.plots import draw_all
from harness.results.report.page import write_report
from harness.results.report.plot_list import planned_figures
from harness.results.report.side_by_side import compared_engines, side_by_side
from harness.results.report.terminal import print_summary
from harness.results.summary import parsed_summary

THREE = ("vllm", "sglang", "tensorrt-llm")
ARMS = ("baseline", "baseline-again", "prefix_caching=off", "paged_kv=off")


def three(**changes: Any) -> dict[str, Any]:
    fixture = Fixture(labels=THREE, blocks=5, simulated=False, void=None, **changes)
    return only(make_summary(fixture), ARMS)


def of_kind(summary: dict[str, Any], **kinds: str) -> dict[str, Any]:
    """Say of engines that they are of other kinds."""
    for run in summary["runs"]:
        run["engine_kind"] = kinds.get(run["label"].replace("-", "_"), run["engine_kind"])
    summary["stand_in"] = "stand-in" in kinds.values()
    summary["simulated"] = "simulated" in kinds.values()
    return summary


def printed(summary: dict[str, Any]) -> str:
    text = io.StringIO()
    print_summary(parsed_summary(summary), Console(file=text))
    return text.getvalue()


def heads(text: str) -> list[tuple[str, ...]]:
    """Return the heads of the tables of engines: words after "baseline", no figures."""
    words = [tuple(line.split()) for line in text.splitlines() if line.startswith("baseline  ")]
    return [line for line in words if not any(letter.isdigit() for letter in line[1])]


def test_each_workload_and_load_sets_the_baselines_side_by_side() -> None:
    """A column an engine: throughput, TTFT and TPOT with P99, certificate, and cost where known."""
    summary = three()
    for arm in summary["arms"]:
        if arm["label"] == "sglang":
            arm["metrics"]["output_tokens_per_s"] *= 2
            arm["metrics"]["cost_per_million_output_tokens"] = 1.5

    first = side_by_side(parsed_summary(summary))[0]
    rows = dict(first.values)

    assert len(side_by_side(parsed_summary(summary))) == 4
    assert first.heads == THREE
    assert rows["output tok/s"] == ("48.9", "97.8", "48.9")
    assert rows["TTFT p50, ms"] == ("71.0",) * 3
    assert rows["TPOT p99, ms"][0].startswith("~")
    assert rows["client"] == ("TRUSTED",) * 3
    assert rows["cost per million tokens"] == ("–", "1.50", "–")
    assert first.notes == ()


def test_each_toggle_has_ratio_verdict_and_proof_of_each_engine() -> None:
    """What one engine cannot follow, or what nothing proves, stands where its ratio would."""
    summary = three()
    for run in summary["runs"]:
        if run["label"] == "sglang" and run["arm"] == "prefix_caching=off" and run["block"] == 3:
            run["evidence"]["prefix_caching"]["verdict"] = "unverifiable"
    gone = [a for a in summary["arms"] if (a["label"], a["arm"]) == ("tensorrt-llm", ARMS[2])]
    for arm in gone:
        arm["status"] = "void"

    toggles = dict(side_by_side(parsed_summary(summary))[1].toggles)

    vllm, sglang, trtllm = toggles["prefix_caching off (on/off)"]
    assert vllm.ratios == ("1.82▲", "0.085▲", "0.72▲")
    assert (vllm.proof, sglang.proof, trtllm.proof) == ("verified", "unverifiable", "VOID")
    assert trtllm.ratios == ()
    assert toggles["paged_kv off (on/off)"][0].proof == "verified; drags prefix_caching"


def test_terminal_and_page_show_the_same(tmp_path: Path) -> None:
    """Both set the engines side by side, the terminal within 100 columns."""
    summary = three()

    text = printed(summary)
    page = write_report(parsed_summary(summary), [], tmp_path / "report.html").read_text(
        encoding="utf-8"
    )

    assert max(map(len, text.splitlines())) <= 100
    assert text.count("\nengines · ") == 4
    assert set(heads(text)) == {("baseline", *THREE)}
    assert '<section id="engines">' in page
    for name, _ in side_by_side(parsed_summary(summary))[0].values:
        assert name in page
        assert name in text


@pytest.mark.parametrize("labels", [("vllm",), ("a", "b", "c", "d", "e", "f")])
def test_one_engine_and_many_fit(labels: tuple[str, ...]) -> None:
    """One has nothing beside it; six need two tables."""
    summary = only(make_summary(Fixture(labels=labels)), ARMS)

    text = printed(summary)

    assert ("\nengines · " in text) == (len(labels) > 1)
    assert max(map(len, text.splitlines())) <= 100
    if len(labels) > 1:
        assert set(heads(text)) == {("baseline", *labels[:4]), ("baseline", *labels[4:])}


def test_a_stand_in_is_beside_no_real_engine(tmp_path: Path) -> None:
    """Its times are nobody's: in no table, no figure of engines, and that is said."""
    summary = of_kind(three(), sglang="stand-in")

    text = printed(summary)
    page = write_report(parsed_summary(summary), [], tmp_path / "report.html").read_text(
        encoding="utf-8"
    )

    assert compared_engines(parsed_summary(summary)) == ["vllm", "tensorrt-llm"]
    assert all(
        one.engines == ("vllm", "tensorrt-llm") for one in side_by_side(parsed_summary(summary))
    )
    for shown in (text, page):
        told = "in no comparison of engines: sglang (STAND-IN: its times are nobody's)"
        assert told in html.unescape(shown)


def test_a_stand_in_leaves_no_comparison_for_one_real_engine() -> None:
    """Two engines of which one is a stand-in are one engine."""
    summary = of_kind(make_summary(Fixture(labels=("vllm", "sglang"))), sglang="stand-in")

    assert side_by_side(parsed_summary(summary)) == []
    assert "engines" not in {figure.kind for figure in planned_figures(parsed_summary(summary))}


def test_engines_of_other_kinds_carry_a_mark() -> None:
    """Computed times stand beside measured ones with their kind in the head, and a warning."""
    summary = of_kind(three(), sglang="simulated")

    first = side_by_side(parsed_summary(summary))[0]

    assert first.heads == ("vllm (real)", "sglang (SIMULATED)", "tensorrt-llm (real)")
    assert "not of one kind" in first.notes[0]
    assert "not of one kind" in " ".join(printed(summary).split())
    [figure, _] = [one for one in planned_figures(parsed_summary(summary)) if one.kind == "engines"]
    assert "Not of one kind" in figure.caption


def test_engines_that_were_not_asked_the_same_are_marked() -> None:
    """Other prompts, other seeds or another baseline are named with their values."""
    summary = three()
    for run in summary["runs"]:
        longer = 1024 if run["label"] == "sglang" else 512
        run["counts"] = {**run["counts"], "prompt_tokens": longer * run["counts"]["ok"]}
        run["toggles"] = {"overlap_scheduling": "off" if run["label"] == "vllm" else "on"}

    remarks = " ".join(side_by_side(parsed_summary(summary))[0].notes)

    assert "prompt tokens a request: 512 (vllm), 1,024 (sglang), 512 (tensorrt-llm)" in remarks
    assert "baseline overlap_scheduling: off (vllm), on (sglang), on (tensorrt-llm)" in remarks
    assert "seeds" not in remarks


def test_a_figure_shows_the_baselines_of_all_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One figure a workload, first of all; an engine with other figures gives other pixels."""
    summary = three()
    monkeypatch.setattr(
        "harness.results.plots.draw.planned_figures", lambda of: planned_figures(of)[:2]
    )

    plots = draw_all(parsed_summary(summary), {}, tmp_path)
    before = plots[0].read_bytes()
    for arm in summary["arms"]:
        if arm["label"] == "sglang":
            arm["metrics"]["output_tokens_per_s"] *= 3
    again = draw_all(parsed_summary(summary), {}, tmp_path)

    assert [plot.name for plot in plots] == ["engines-support-bot.png", "engines-chat.png"]
    with Image.open(plots[0]) as picture:
        assert picture.size[0] == 1600
    assert again[0].read_bytes() != before
