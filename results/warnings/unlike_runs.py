"""Runs that were to be asked the same and were not: a difference between them is no effect."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results.effects import BASELINE
from harness.results.summary import RunRow, RunWarning

NAME = "unlike_runs"
_TOLERANCE = 0.02  # of prompt tokens a request: what a server counts may miss the last turn's
_REMEDY = "what differs between them may be the requests: run both from one sweep file"


def find_unlike_runs(runs: Sequence[RunRow]) -> dict[str, RunWarning]:
    """Return a warning per run key where a run got other requests than its baseline.

    Give the runs of one engine, workload, load and block. Prompts are compared where all requests
    of both runs were answered: those that fail may be the long ones.
    """
    good = [run for run in runs if run.status == "ok"]
    base = next((run for run in good if run.arm == BASELINE), None)
    if base is None:
        return {}
    found = {}
    for run in good:
        if run is not base and (why := _difference(base, run)):
            message = f"not asked the same as the baseline, so not compared with it: {why}"
            found[run.key] = RunWarning(name=NAME, message=message, remedy=_REMEDY)
    return found


def _difference(base: RunRow, run: RunRow) -> str | None:
    if base.seed != run.seed:
        return f"seed {run.seed} against {base.seed}"
    whole = all(one.counts and not one.counts.failed for one in (base, run))
    own, other = prompt_tokens_each([run]), prompt_tokens_each([base])
    if not whole or not own or not other or abs(own / other - 1) <= _TOLERANCE:
        return None
    return f"input_tokens (prompt tokens a request) {own:.0f} against {other:.0f}"


def prompt_tokens_each(runs: Sequence[RunRow]) -> float | None:
    """Return the prompt tokens of an answered request, over these runs; None: not known."""
    counts = [run.counts for run in runs if run.counts is not None]
    known = [one.prompt_tokens for one in counts if one.prompt_tokens is not None]
    answered = sum(one.ok for one in counts)
    return sum(known) / answered if answered and len(known) == len(runs) else None
