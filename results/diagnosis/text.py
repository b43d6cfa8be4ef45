"""The diagnosis as text: a few lines for each workload and load."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.results.diagnosis.document import Diagnosis, PanelDiagnosis, SharedFinding
from harness.results.diagnosis.limits import LIMIT_BY_NAME
from harness.results.panels import unmeasured
from harness.results.units import count

_WIDTH = 100
_NAMED = 4  # arms listed by name
_INDENT = "  "


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lines of a sweep's diagnosis, at most 100 columns wide."""
    summary = diagnosis.summary
    mark = f" · {found}" if (found := unmeasured(summary)) else ""
    yield from _wrapped(f"{summary.name}: {count(len(summary.runs), 'run')}{mark}", "")
    for panel in diagnosis.panels:
        yield ""
        yield from _wrapped(panel.title, "")
        yield from _panel(panel)
    yield from _unjudged(diagnosis)


def _panel(panel: PanelDiagnosis) -> Iterator[str]:
    arms = len(panel.clear_arms) + len(
        {one for found in panel.findings for one in found.bottleneck_of}
    )
    for found in panel.findings:
        yield from _wrapped(f"{_title(found)}: {_whose(found, arms)}", _INDENT)
        yield from _wrapped(f"{found.evidence_of}: {found.finding.evidence}", 2 * _INDENT)
        yield from _wrapped(f"try: {found.finding.next}", 2 * _INDENT)
    if panel.clear_arms:
        yield from _wrapped(f"no bottleneck found: {_names(panel.clear_arms)}", _INDENT)
    if panel.not_judged_arms:
        skipped = f"not diagnosed, no valid run: {_names(panel.not_judged_arms)}"
        yield from _wrapped(skipped, _INDENT)


def _title(found: SharedFinding) -> str:
    title = LIMIT_BY_NAME[found.finding.name].title
    return title.upper() if found.bottleneck_of else title


def _whose(found: SharedFinding, arms: int) -> str:
    """Return the arms whose bottleneck it is, and the arms that have another bottleneck."""
    first, also = found.bottleneck_of, found.also_in
    if arms == 1:
        return "the bottleneck" if first else "also found"
    parts = []
    if first:
        parts.append(f"the bottleneck of {len(first)} of {arms} arms ({_names(first)})")
    if also:
        parts.append(f"also found in {_names(also)}")
    return "; ".join(parts)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _unjudged(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield each rule that lacks data once, with the number of runs, then the runs left out."""
    runs, found = diagnosis.summary.runs, diagnosis.found
    judged = [found[run.key] for run in runs if run.key in found]
    whys = Counter((name, why) for one in judged for name, why in one.unjudged.items())
    statuses = Counter(run.status for run in runs if run.key not in found)
    if whys or statuses:
        yield ""
    for (name, why), number in whys.items():
        title = LIMIT_BY_NAME[name].title
        yield from _wrapped(f"not judged in {count(number, 'run')}, “{title}”: {why}", "")
    for status, number in statuses.items():
        yield from _wrapped(f"not diagnosed: {count(number, 'run')} {status}", "")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )
