"""What a reader must know of the clients of a sweep: footnotes, a table, the lines of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.results.client import DEGRADED, INVALID, LIMITS, WORST_FIRST, amount
from harness.results.panels import Panel, arm_key, arm_title, panels
from harness.results.summary import ArmRow, CertificateReason, RunRow, Summary
from harness.results.units import ABSENT, count

MARK = "†"  # of what rests on a DEGRADED client, where a word does not fit
_NAMED = 3  # arms with one reason that are named one by one
# What the table of a page shows of all limits; the reasons tell of the others.
_SHOWN = {
    "send_delay": "send delay p99",
    "turn_round": "turning round p99",
    "loop_lag": "loop lag p99",
    "cpu": "CPU of the busiest worker",
    "load_not_delivered": "starts that the schedule's rate lacks",
    "in_flight": "conversations that the concurrency lacks",
}


class ClientReason(NamedTuple):
    """One reason against the clients of some runs."""

    verdict: str
    name: str
    message: str  # of the first of the runs
    remedy: str
    runs: tuple[RunRow, ...]


def client_reasons(runs: Sequence[RunRow]) -> list[ClientReason]:
    """Return each reason against the clients of these runs once: INVALID first, then DEGRADED.

    Runs that failed or are void for another reason are left out: that is what their rows say.
    """
    found: dict[tuple[str, str], list[tuple[RunRow, CertificateReason]]] = {}
    for run in runs:
        for reason in run.certificate.reasons:
            if run.status in ("ok", "invalid") and reason.verdict:
                key = reason.verdict, reason.name
                found.setdefault(key, []).append((run, reason))
    reasons = [
        ClientReason(
            verdict=verdict,
            name=name,
            message=worst.message + _others([one.message for _, one in shared]),
            remedy=worst.remedy or "",
            runs=tuple(run for run, _ in shared),
        )
        for (verdict, name), shared in found.items()
        for worst in [max(shared, key=_value)[1]]
    ]
    return sorted(reasons, key=lambda reason: WORST_FIRST.index(reason.verdict))


def _value(of: tuple[RunRow, CertificateReason]) -> float:
    """Return the value that a reason is about, so that the worst one is shown."""
    run, reason = of
    measured = run.certificate.measured.get(reason.name)
    return (measured and measured.value) or 0.0


def _others(messages: Sequence[str]) -> str:
    return " (the worst of them)" if len(set(messages)) > 1 else ""


def client_notes(panel: Panel) -> list[str]:
    """Return a line under a panel's table for each reason against its clients, and who has it."""
    return [
        f"client {verdict}{', left out' * (verdict == INVALID)} ({_who(panel, runs)}): {message}; "
        f"{remedy}"
        for verdict, _, message, remedy, runs in client_reasons(panel.runs)
    ]


def _who(panel: Panel, runs: Sequence[RunRow]) -> str:
    blocks: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        blocks.setdefault(arm_key(run), []).append(run.block)
    if len(blocks) > _NAMED:
        return count(len(runs), "run")
    arms = {arm_key(arm): arm for arm in panel.arms}
    several = len({label for label, _ in arms}) > 1
    return "; ".join(
        f"{(key[0] + ' ') * several}{arm_title(arms[key])}, "
        + (f"block {own[0]}" if len(own) == 1 else f"{len(own)} blocks")
        for key, own in blocks.items()
    )


def client_counts(summary: Summary) -> str:
    """Return in a sentence how many clients were believed, or why there was none to judge."""
    verdicts = Counter(run.certificate.verdict for run in summary.runs)
    best_first = reversed(WORST_FIRST)
    counts = [f"{verdicts[verdict]:,} {verdict}" for verdict in best_first if verdicts[verdict]]
    reasons = Counter(
        reason.message
        for run in summary.runs
        if run.certificate.verdict is None and run.status != "skipped"
        for reason in run.certificate.reasons
    )
    counts += [f"{runs:,} without a certificate ({message})" for message, runs in reasons.items()]
    return "; ".join(counts) or ABSENT


def client_table(summary: Summary) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return for each panel what was seen of its clients: (name, "worst value (limit …)").

    The worst is the value that stands highest against its own limit; panels whose runs have no
    certificate are left out.
    """
    found = [
        (panel.title, [(title, _worst(panel.runs, name)) for name, title in _SHOWN.items()])
        for panel in panels(summary)
        if any(run.certificate.measured for run in panel.runs)
    ]
    kept = {
        title for _, row in found for title, text in row if text != ABSENT
    }  # no column of dashes
    return [(panel, [cell for cell in row if cell[0] in kept]) for panel, row in found]


def _worst(runs: Sequence[RunRow], name: str) -> str:
    unit = next(limit.unit for limit in LIMITS if limit.name == name)
    measured = [run.certificate.measured.get(name) for run in runs]
    known = [(one.value, one.degraded) for one in measured if one and one.value is not None]
    if not known:
        return ABSENT
    value, limit = max(known, key=lambda pair: pair[0] / pair[1])
    return f"{amount(value, unit)} (limit {amount(limit, unit)})"


def certificate_lines(run: RunRow) -> Iterator[str]:
    """Yield the certificate of one run: its verdict, each reason, and what to do about them."""
    certificate = run.certificate
    yield f"Client certificate: {certificate.verdict or 'none'}"
    for reason in certificate.reasons:
        verdict = f"{reason.verdict}: " if reason.verdict else ""
        yield f"  {verdict}{reason.message}"
    remedies = dict.fromkeys(reason.remedy for reason in certificate.reasons)
    yield from (f"  remedy: {remedy}" for remedy in remedies if remedy)


def client_mark(*arms: ArmRow | None) -> str:
    """Return the mark of a value that rests on a DEGRADED client of one of these arms, or ""."""
    return f" {MARK}" if any(arm is not None and is_degraded(arm) for arm in arms) else ""


def is_degraded(arm: ArmRow) -> bool:
    """Return whether an arm's metrics rest on a client that is trusted with care only."""
    return arm.status == "ok" and arm.certificate == DEGRADED
