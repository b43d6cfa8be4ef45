"""Runs that were asked other things than their baseline are compared with nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from known_runs import known_row

from harness.results.analysis import summarize
from harness.results.summary import RequestCounts, RunRow
from harness.results.warnings.unlike_runs import find_unlike_runs
from tests.results.test_analysis import store_sweep


def counted(ok: int, failed: int, prompt_tokens: int | None) -> RequestCounts:
    return RequestCounts(
        sent=ok + failed,
        measured=ok,
        ok=ok,
        failed=failed,
        prompt_tokens=prompt_tokens,
        output_tokens=None,
        duration_s=None,
    )


def run(arm: str, **changes: Any) -> RunRow:
    counts = counted(8, 0, 8 * 512)
    return known_row(**{"key": arm, "arm": arm, "seed": 7, "counts": counts, **changes})


def test_other_prompts_are_named_with_both_lengths() -> None:
    """A gain that comes with prompts of another length is no gain of the toggle."""
    longer = counted(8, 0, 8 * 1024)

    found = find_unlike_runs([run("baseline"), run("prefix_caching=off", counts=longer)])

    assert list(found) == ["prefix_caching=off"]
    for word in ("input_tokens", "512", "1024", "not compared"):
        assert word in found["prefix_caching=off"].message


def test_another_seed_asked_something_else() -> None:
    """The seed of a run stands for its workload, load and block."""
    found = find_unlike_runs([run("baseline"), run("prefix_caching=off", seed=8)])

    assert "seed 8 against 7" in found["prefix_caching=off"].message


@pytest.mark.parametrize(
    "counts",
    [
        counted(8, 0, 8 * 512 + 8),  # a token of its own a prompt
        counted(4, 4, 4 * 1024),  # the short ones failed
        counted(8, 0, None),  # the server does not count them
        None,
    ],
)
def test_what_need_not_be_unlike_is_compared(counts: RequestCounts | None) -> None:
    """Nothing is held against a run that may well have been asked the same."""
    assert find_unlike_runs([run("baseline"), run("prefix_caching=off", counts=counts)]) == {}


def test_without_a_baseline_nothing_is_unlike() -> None:
    """There is nothing to be unlike to."""
    assert find_unlike_runs([run("prefix_caching=off"), run("x", seed=8)]) == {}


def test_unlike_runs_have_a_doubt_and_no_effect(tmp_path: Path) -> None:
    """The arm keeps its figures, with the reason; no ratio is made of them."""

    def other_seed(manifest: dict[str, Any]) -> dict[str, Any]:
        return {**manifest, "seed": 1} if manifest["arm"] == "prefix_caching=off" else manifest

    summary = summarize(store_sweep(tmp_path / "sweep", change=other_seed)).document()

    doubted = {
        r["arm"] for r in summary["runs"] if "unlike_runs" in {c["name"] for c in r["warnings"]}
    }
    assert doubted == {"prefix_caching=off"}
    assert {effect["arm"] for effect in summary["effects"]} == {"baseline-again"}
