"""The closed list of reasons to doubt a run, each with its number and what to do about it.

`CHECKS` is all of them, so a report can say that every one was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.metrics import RunFigures, failures
from results.names import is_open_loop
from results.statistics import needed_samples
from results.window import first_turn

MAX_FAILED_SHARE = 0.01  # of all sent requests, where the sweep sets no other limit
_RATE_TOLERANCE = 0.02  # sends slower than the schedule by more than this were not delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One reason to doubt a run."""

    name: str
    message: str  # what was seen, with its number
    remedy: str  # what the user can do


def doubts(figures: RunFigures, manifest: Mapping[str, Any]) -> list[Doubt]:
    """Return the reasons to doubt this run, in the order of `CHECKS`; empty when there are none."""
    found = (check(figures, manifest) for check in CHECKS)
    return [doubt for doubt in found if doubt is not None]


def too_many_failed(requests: pd.DataFrame, manifest: Mapping[str, Any]) -> str | None:
    """Return what makes this a failed run: more failures than allowed; None for a run that is not.

    The share is that of all sent requests, of the whole run.
    """
    limit = manifest.get("max_failed_share")
    limit = MAX_FAILED_SHARE if limit is None else limit
    failed = int((~requests["ok"]).sum())
    if failed <= limit * len(requests):
        return None
    share = failed / len(requests)
    return f"{share:.1%} of the requests failed ({_kinds(requests)}), the limit is {limit:.1%}"


def _kinds(requests: pd.DataFrame) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in failures(requests).items())


def _nothing_sent(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    if not figures.requests.empty:
        return None
    return Doubt(
        name="nothing_sent",
        message="the run holds no request",
        remedy="look at the reason and the engine's log in the run's folder",
    )


def _failed_share(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    message = too_many_failed(figures.requests, manifest)
    if message is None:
        return None
    return Doubt(
        name="failed_share",
        message=message,
        remedy="mend what fails, or ask for less load; `max_failed_share` sets the limit",
    )


def _some_failed(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    requests = figures.requests
    failed = int((~requests["ok"]).sum())
    if failed == 0 or too_many_failed(requests, manifest) is not None:
        return None
    return Doubt(
        name="some_failed",
        message=f"{failed} of {len(requests)} requests failed ({_kinds(requests)}); "
        "the latencies are those of the others",
        remedy="read goodput beside the latencies: it counts a failed request as never answered",
    )


def _p99(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    measured = int((figures.requests["ok"] & figures.requests["measured"]).sum())
    missing = needed_samples(0.99) - measured
    if missing <= 0 or figures.requests.empty:
        return None
    return Doubt(
        name="p99_unreliable",
        message=f"P99 rests on {measured} requests; it is reliable from {needed_samples(0.99)} on",
        remedy=f"{missing} more are needed: {_more(manifest['load'], measured, missing, figures)}",
    )


def _more(load: Mapping[str, Any], measured: int, missing: int, figures: RunFigures) -> str:
    """Return what to change in the sweep file to get so many more measured requests."""
    if load.get("duration_s") is not None and measured:
        longer_s = load["duration_s"] * (measured + missing) / measured
        return f"raise duration from {load['duration_s']:g} s to about {longer_s:.0f} s"
    sent = len(figures.requests)
    return f"ask for {sent + missing} requests instead of {sent}"


def _whole_run(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    if figures.window.kind == "steady" or figures.requests.empty:
        return None
    return Doubt(
        name="whole_run",
        message=f"the figures are of the whole run, ramp and drain included: "
        f"{figures.window.reason}",
        remedy="ask for more requests, so that most are sent while the load is steady",
    )


def _shorter_than_asked(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    answered = figures.requests[figures.requests["ok"]]
    short = answered[answered["output_tokens"] < answered["asked_tokens"]]
    if short.empty:
        return None
    got, asked = int(answered["output_tokens"].sum()), int(answered["asked_tokens"].sum())
    return Doubt(
        name="shorter_than_asked",
        message=f"{len(short)} of {len(answered)} answers are shorter than asked "
        f"({got:,} tokens of {asked:,})",
        remedy="have the engine ignore the end-of-text token, so that arms do equal work",
    )


def _usage_missing(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    answered = figures.requests[figures.requests["ok"]]
    missing = int((~answered["server_counted"]).sum())
    if missing == 0:
        return None
    return Doubt(
        name="usage_missing",
        message=f"the server told no token count for {missing} of {len(answered)} answers; "
        "events were counted instead",
        remedy="have the server send usage (`stream_options.include_usage`)",
    )


def _token_times_unknown(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    answered = figures.requests[figures.requests["ok"]]
    unknown = int((~answered["token_times_known"]).sum())
    if unknown == 0:
        return None
    return Doubt(
        name="token_times_unknown",
        message=f"{unknown} of {len(answered)} answers came in events that do not say how many "
        "tokens they brought; itl_ms leaves these answers out",
        remedy="have the server send running usage (`continuous_usage_stats`), or read "
        "chunk_gap_ms and tpot_ms",
    )


def _single_event(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    answered = figures.requests[figures.requests["ok"]]
    at_once = answered["first_token_ns"] == answered["last_token_ns"]
    bundled = int((at_once & (answered["output_tokens"] > 1)).sum())
    if bundled == 0:
        return None
    return Doubt(
        name="single_event",
        message=f"{bundled} answers of several tokens came all at once: their TPOT cannot be seen",
        remedy="look for a proxy that gathers the stream, and go around it",
    )


def _concurrency(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    load = manifest["load"]
    if is_open_loop(load) or figures.requests.empty:
        return None
    peak = peak_conversations(figures.requests)
    if peak >= load["value"]:
        return None
    return Doubt(
        name="concurrency_not_reached",
        message=f"at most {peak} conversations were alive at once, {load['value']:g} were asked",
        remedy="ask for more requests, or for less concurrency",
    )


def _engine_limit(_: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Say when the engine itself cannot run what was asked for: its queue is part of the TTFT."""
    load, limit = manifest["load"], (manifest.get("facts") or {}).get("running_limit")
    if limit is None or is_open_loop(load) or load["value"] <= limit:
        return None
    return Doubt(
        name="engine_runs_fewer",
        message=f"the engine runs at most {limit} sequences at once, {load['value']:g} were asked: "
        "the others wait in its queue",
        remedy="raise max_num_seqs, or max_batched_tokens: a step feeds each sequence a token, and "
        "its draft tokens",
    )


def peak_conversations(requests: pd.DataFrame) -> int:
    """Return how many conversations were alive at once at most, think time included.

    One lives from its first send to its last end; one that ends as another begins is not counted
    with it.
    """
    spans = requests.groupby("conversation").agg({"placed_ns": "min", "closed_ns": "max"})
    times = np.concatenate([spans["closed_ns"], spans["placed_ns"]])
    steps = np.concatenate([-np.ones(len(spans)), np.ones(len(spans))])
    order = np.argsort(times, kind="stable")  # ends come first among equals
    return int(np.cumsum(steps[order]).max())


def _rate(figures: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Hold the sends against the schedule, not the rate: a Poisson draw has a rate of its own."""
    if not is_open_loop(manifest["load"]):
        return None
    starts = figures.requests[first_turn(figures.requests)]
    if len(starts) < 2:
        return None
    wanted_ns, sent_ns = (float(np.ptp(starts[name])) for name in ("scheduled_ns", "placed_ns"))
    if wanted_ns <= 0 or sent_ns <= wanted_ns * (1 + _RATE_TOLERANCE):
        return None
    wanted, achieved = ((len(starts) - 1) / span * 1e9 for span in (wanted_ns, sent_ns))
    return Doubt(
        name="load_not_delivered",
        message=f"{achieved:.4g} conversations/s were started, the schedule has {wanted:.4g}",
        remedy="give the client more CPU or more connections; latencies count from the schedule",
    )


def _time_order(figures: RunFigures, _: Mapping[str, Any]) -> Doubt | None:
    answered = figures.requests[figures.requests["ok"]]
    spans = answered[["ttft_ms", "e2e_ms", "tail_ms"]]
    odd = (spans < 0).any(axis=1) | (answered["last_token_ns"] < answered["first_token_ns"])
    if not odd.any():
        return None
    return Doubt(
        name="times_out_of_order",
        message=f"{int(odd.sum())} requests have an answer before their send, or an end before "
        "their last token",
        remedy="the records are damaged or two clocks were mixed: repeat the run",
    )


def _rows_skipped(_: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    skipped: Mapping[str, int] = manifest.get("skipped_rows") or {}
    if not sum(skipped.values()):
        return None
    reasons = ", ".join(f"{count:,} × {reason}" for reason, count in sorted(skipped.items()))
    return Doubt(
        name="rows_skipped",
        message=f"the workload left out {sum(skipped.values()):,} rows or turns: {reasons}",
        remedy="raise the context length or mend the rows, if they belong to your traffic",
    )


def _not_exercised(_: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    idle = [name for name, proof in _flip_proofs(manifest) if proof["verdict"] == "not exercised"]
    if not idle:
        return None
    return Doubt(
        name="toggle_not_exercised",
        message=f"this load could not show that the flip took effect: {', '.join(idle)}",
        remedy="choose a workload and a load that exercise it, or read its effect with care",
    )


def _unverifiable(_: RunFigures, manifest: Mapping[str, Any]) -> Doubt | None:
    """Doubt a flip that neither a counter nor the engine's own word confirms."""
    unknown = [
        name
        for name, proof in _flip_proofs(manifest)
        if proof["verdict"] == "unverifiable" and proof.get("effective") != proof.get("requested")
    ]
    if not unknown:
        return None
    return Doubt(
        name="toggle_unverifiable",
        message=f"the engine does not tell whether the flip took effect: {', '.join(unknown)}",
        remedy="look at the launch line and the engine's log; the label alone proves nothing",
    )


def _flip_proofs(manifest: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    evidence: Mapping[str, Mapping[str, Any]] = manifest.get("evidence") or {}
    return [(name, evidence[name]) for name in manifest.get("flipped") or {} if name in evidence]


def same_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, Doubt]:
    """Return a doubt per run key for arms whose engine runs the very same settings as another arm.

    Give the runs of one engine, workload, load and block. Where the labels differ and the engine
    says that it does not, the arms measure one thing twice. `baseline-again` is meant to be the
    same, and the baseline is never to blame.
    """
    told = {
        run["key"]: settings
        for run in runs
        if run["arm"] != "baseline-again" and (settings := _effective(run)) is not None
    }
    names = {run["key"]: run["arm"] for run in runs}
    shared: dict[str, Doubt] = {}
    for key, settings in told.items():
        twins = [names[k] for k, other in told.items() if k != key and other == settings]
        if twins and names[key] != "baseline":
            shared[key] = Doubt(
                name="same_settings",
                message=f"the engine says that it runs the same settings as {', '.join(twins)}",
                remedy="the flip did not reach the engine: look at its launch line and its log",
            )
    return shared


def _effective(manifest: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return what the engine says of all its toggles; None when it leaves one of the flips out."""
    evidence: Mapping[str, Mapping[str, Any]] = manifest.get("evidence") or {}
    told = {toggle: proof.get("effective") for toggle, proof in evidence.items()}
    if not told or any(told.get(toggle) is None for toggle in manifest.get("flipped") or {}):
        return None
    return tuple(sorted((toggle, str(value)) for toggle, value in told.items()))


CHECKS: tuple[Callable[[RunFigures, Mapping[str, Any]], Doubt | None], ...] = (
    _nothing_sent,
    _failed_share,
    _some_failed,
    _p99,
    _whole_run,
    _shorter_than_asked,
    _usage_missing,
    _token_times_unknown,
    _single_event,
    _concurrency,
    _engine_limit,
    _rate,
    _time_order,
    _rows_skipped,
    _not_exercised,
    _unverifiable,
)
