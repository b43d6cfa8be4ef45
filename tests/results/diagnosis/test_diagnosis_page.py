"""Tests that docs/diagnosing.md agrees with the code."""

from __future__ import annotations

import re

from repository import ROOT

from harness.results.diagnosis.limits import LIMITS
from harness.results.diagnosis.run import diagnose_run

PAGE = (ROOT / "docs" / "diagnosing.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_code() -> None:
    """The table equals the limits in the code, and the page explains each limit in that order."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)

    assert rows == [(one.name, one.measures, one.limit_text, one.reason) for one in LIMITS]
    explained = re.findall(r"\*\*`(\w+)`\*\*", PAGE.partition("## What each bottleneck means")[2])
    assert explained == [one.name for one in LIMITS]


def test_each_explanation_has_a_remedy() -> None:
    """The explanation of every bottleneck contains a remedy."""
    explained = PAGE.partition("## What each bottleneck means")[2].partition("## Limitations")[0]
    parts = [part for part in explained.split("\n\n") if part.startswith("**`")]

    assert [part for part in parts if "*Try:*" not in part] == []


def test_every_limit_has_a_reason_and_a_rule() -> None:
    """Every limit has a unique name, a reason, a measured value and a title."""
    assert all(one.reason and one.measures and one.title for one in LIMITS)
    assert len({one.name for one in LIMITS}) == len(LIMITS)
    assert "limit" in (diagnose_run.__doc__ or "")
