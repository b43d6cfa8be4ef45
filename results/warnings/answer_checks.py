"""Checks of the answers: whether what the server reported of them is possible."""

from __future__ import annotations

from harness.results.metrics import RunMetrics
from harness.results.store import RunManifest
from harness.results.summary import RunWarning
from harness.results.units import significant

_FORMS = {
    "ids": "token ids",
    "completions": "text",
    "chat": "a chat",
    "responses": "a text",
    "messages": "a chat",
}


def longer_than_asked(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    """Warn about answers of more tokens than were asked for: `max_tokens` is a limit."""
    answered = metrics.requests[metrics.requests["ok"]]
    long = answered[answered["output_tokens"] > answered["asked_tokens"]]
    if long.empty:
        return None
    got, asked = int(long["output_tokens"].sum()), int(long["asked_tokens"].sum())
    return RunWarning(
        name="longer_than_asked",
        message=f"{len(long)} of {len(answered)} answers are longer than asked "
        f"({got:,} tokens of {asked:,})",
        remedy="look whether the server keeps to max_tokens, and what its usage counts",
    )


def usage_unbelieved(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    """Warn about counts of the server that are impossible, and say what was counted instead."""
    answered = metrics.requests[metrics.requests["ok"]]
    odd = int(answered["count_unbelieved"].sum())
    if odd == 0:
        return None
    return RunWarning(
        name="usage_unbelieved",
        message=f"the server's count of output tokens is impossible for {odd} of {len(answered)} "
        "answers: fewer than the events with text, or far more than requested; the events were "
        "counted instead",
        remedy="check what the server, or a gateway before it, counts in usage.completion_tokens: "
        "some leave reasoning tokens out",
    )


def no_finish_reason(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    """Warn about answers of which the server did not say why they ended: they may have been cut."""
    answered = metrics.requests[metrics.requests["ok"]]
    silent = int((~answered["finished"]).sum())
    if silent == 0:
        return None
    return RunWarning(
        name="no_finish_reason",
        message=f"{silent} of {len(answered)} answers ended without a finish_reason: nothing tells "
        "whether they were whole",
        remedy="look into the server's log for errors, and whether a proxy changes its answers",
    )


def prompt_tokens_untold(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Say where the server counts answers but not prompts, or counts what they cannot have."""
    counts = manifest.prompts
    if counts is None or not counts.untold:
        return None
    return RunWarning(
        name="prompt_tokens_untold",
        message=f"the server told no number of prompt tokens that can be, for {counts.untold} of "
        f"{counts.untold + counts.requests} answers: totals with prompt tokens are not known",
        remedy="look what the server, or a proxy before it, writes into usage.prompt_tokens",
    )


def prompt_tokens_differ(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    """Warn about a run whose prompts the server counts otherwise than they were sent."""
    counts = manifest.prompts
    if counts is None or not counts.differing or not counts.requests:
        return None
    sent, counted = (
        significant(tokens / counts.requests)
        for tokens in (counts.sent_tokens, counts.counted_tokens)
    )
    form = _FORMS.get(counts.form, counts.form)
    return RunWarning(
        name="prompt_tokens_differ",
        message=f"prompts of {sent} tokens on average went out as {form}, and the server counted "
        f"{counted} on average ({counts.differing} of {counts.requests} differ)",
        remedy="look whether it cuts prompts, puts a text of its own before them, or counts others",
    )
