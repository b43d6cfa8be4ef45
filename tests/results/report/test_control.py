"""A control that differs by more than 10 % is announced, whatever the number of blocks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from summaries import Fixture, make_summary

from harness.results.panels import panels
from harness.results.report.notes import control_alarms
from harness.results.report.page import write_report
from harness.results.report.terminal import print_summary
from harness.results.summary import Summary, parsed_summary


def summary_with(blocks: int, metric: str, ratio: float) -> Summary:
    """Return a summary whose control differs by `ratio` in one metric of every panel."""
    document: dict[str, Any] = make_summary(Fixture(blocks=blocks))
    for effect in document["effects"]:
        if effect["arm"] == "baseline-again":
            effect["ratio"] = ratio if effect["metric"] == metric else 1.0
    return parsed_summary(document)


def printed(summary: Summary) -> str:
    file = io.StringIO()
    print_summary(summary, Console(file=file, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("blocks", "metric", "ratio"),
    [
        (1, "output_tokens_per_s", 0.85),
        (3, "ttft_ms.p50", 1.4),
        (2, "tpot_ms.p50", 1.12),
        (5, "output_tokens_per_s", 1 / 1.2),
    ],
)
def test_a_control_that_is_off_is_announced_and_dims_the_ratios(
    tmp_path: Path, blocks: int, metric: str, ratio: float
) -> None:
    """A line in capitals, ratios in parentheses, and on the page a banner over grey rows."""
    summary = summary_with(blocks, metric, ratio)

    text = printed(summary)
    page = write_report(summary, [], tmp_path / "report.html").read_text(encoding="utf-8")

    assert len(control_alarms(summary)) == len(panels(summary))
    assert "UNRELIABLE RATIOS: embedded, " in text
    assert "by more than 10%" in " ".join(text.split())
    assert "(~" in text or "(0." in text or "(1." in text
    assert page.count('<p class="banner">UNRELIABLE RATIOS') == len(panels(summary))
    assert '<li class="unreliable">' in page
    assert '<tr class="unreliable">' in page


@pytest.mark.parametrize(
    ("metric", "ratio"),
    [
        ("output_tokens_per_s", 0.93),
        ("tpot_ms.p50", 1.09),
        ("ttft_ms.p99", 3.0),
        ("goodput_rps", 0),
    ],
)
def test_a_control_within_10_percent_of_its_primary_metrics_is_not(
    tmp_path: Path, metric: str, ratio: float
) -> None:
    """A P99 of few requests differs more than that on any machine."""
    summary = summary_with(3, metric, ratio)

    page = write_report(summary, [], tmp_path / "report.html").read_text(encoding="utf-8")

    assert control_alarms(summary) == []
    assert "UNRELIABLE" not in printed(summary)
    assert 'class="unreliable"' not in page
