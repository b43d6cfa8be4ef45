"""The closed list of reasons to distrust a run, each with its number and what to do about it.

`CHECKS` lists all of them, so a report can state that every one was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from harness.results.metrics import RunMetrics, failures
from harness.results.statistics import needed_samples
from harness.results.store import LoadFacts, RunManifest
from harness.results.summary import RunWarning
from harness.results.units import significant
from harness.results.warnings.answer_checks import (
    longer_than_asked,
    no_finish_reason,
    prompt_tokens_differ,
    prompt_tokens_untold,
    usage_unbelieved,
)
from harness.results.warnings.cache_checks import cache_not_cold, cache_not_seen, counters_left_out
from harness.results.warnings.flip_checks import not_exercised, unverifiable
from harness.results.warnings.load_checks import (
    cap_reached,
    concurrency_not_reached,
    engine_runs_fewer,
    load_not_delivered,
    overloaded,
    warm_prefix_cache,
)
from harness.results.warnings.pace_checks import clumped, stalled
from harness.results.window import least_requests

MAX_FAILED_SHARE = 0.01  # of all sent requests, where the sweep sets no other limit
_STEP_NS = 100_000_000  # of the wall clock; less is two clocks that were not read at one moment
_TOO_LONG = ("context_length", "context_full")  # reasons of rows and turns that did not fit


def run_warnings(metrics: RunMetrics, manifest: RunManifest) -> list[RunWarning]:
    """Return the reasons to distrust this run, in the order of `CHECKS`."""
    found = (check(metrics, manifest) for check in CHECKS)
    return [warning for warning in found if warning is not None]


def too_many_failed(requests: pd.DataFrame, manifest: RunManifest) -> str | None:
    """Return what makes this a failed run: more failures than allowed; None for a run that is not.

    The share is that of all sent requests, of the whole run.
    """
    limit = manifest.max_failed_share
    limit = MAX_FAILED_SHARE if limit is None else limit
    failed = int((~requests["ok"]).sum())
    if failed <= limit * len(requests):
        return None
    share = failed / len(requests)
    return f"{share:.1%} of the requests failed ({_kinds(requests)}), the limit is {limit:.1%}"


def _kinds(requests: pd.DataFrame) -> str:
    return ", ".join(f"{kind} {failed}" for kind, failed in failures(requests).items())


def _nothing_sent(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    if not metrics.requests.empty:
        return None
    return RunWarning(
        name="nothing_sent",
        message="the run holds no request",
        remedy="look at the reason and the engine's log in the run's folder",
    )


def _failed_share(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    message = too_many_failed(metrics.requests, manifest)
    if message is None:
        return None
    return RunWarning(
        name="failed_share",
        message=message,
        remedy="mend what fails, or ask for less load; in a sweep `max_failed_share` sets the "
        "limit",
    )


def _some_failed(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    requests = metrics.requests
    failed = int((~requests["ok"]).sum())
    if failed == 0 or too_many_failed(requests, manifest) is not None:
        return None
    return RunWarning(
        name="some_failed",
        message=f"{failed} of {len(requests)} requests failed ({_kinds(requests)}); "
        "the latencies are those of the others",
        remedy="read goodput beside the latencies: it counts a failed request as never answered",
    )


def _p99(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    measured = int((metrics.requests["ok"] & metrics.requests["measured"]).sum())
    missing = needed_samples(0.99) - measured
    if missing <= 0 or not metrics.requests["ok"].any():
        return None
    return RunWarning(
        name="p99_unreliable",
        message=f"P99 rests on {measured} requests and needs {needed_samples(0.99)}",
        remedy=_more(manifest, measured, missing, metrics),
    )


def _more(manifest: RunManifest, measured: int, missing: int, metrics: RunMetrics) -> str:
    """Return what to change in the sweep file to get so many more measured requests."""
    load = manifest.load
    if load.mode == "trace":
        limit = load.limit
        raised = f"; limit is {limit}" if limit is not None else ""
        return f"replay more rows, or a longer trace{raised}"
    if load.duration_s is not None and measured:
        longer_s = load.duration_s * (measured + missing) / measured
        return f"raise duration from {load.duration_s:g} s to about {longer_s:.0f} s"
    sent, enough = len(metrics.requests), len(metrics.requests) + missing
    if metrics.window.kind != "steady" and not load.is_open_loop:  # more of them are a steady run
        enough = least_requests(metrics.requests, load, needed_samples(0.99))
    return f"send {enough} requests instead of {sent}"


def _whole_run(metrics: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    if metrics.window.kind == "steady" or not metrics.requests["ok"].any():
        return None
    return RunWarning(
        name="whole_run",
        message=f"the metrics cover the whole run: {metrics.window.reason}",
        remedy=_steadier(manifest.load, metrics.requests),
    )


def _steadier(load: LoadFacts, requests: pd.DataFrame) -> str:
    """Return what to change in the sweep file so that most is sent while the load is steady."""
    if load.mode == "trace":
        return "replay more rows, or slow the trace down: lower speedup"
    if load.is_open_loop:
        return "ask for a longer duration, or a lower rate"
    enough, sent = least_requests(requests, load), len(requests)
    enough = enough if enough > sent else sent + load.concurrency  # the ramp was longer than usual
    return f"send {enough} requests"


def _shorter_than_asked(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    answered = metrics.requests[metrics.requests["ok"]]
    short = answered[answered["output_tokens"] < answered["asked_tokens"]]
    if short.empty:
        return None
    got, asked = int(answered["output_tokens"].sum()), int(answered["asked_tokens"].sum())
    return RunWarning(
        name="shorter_than_asked",
        message=f"{len(short)} of {len(answered)} answers are shorter than asked "
        f"({got:,} tokens of {asked:,})",
        remedy="have the engine ignore the end-of-text token, so that arms do equal work",
    )


def _usage_missing(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    answered = metrics.requests[metrics.requests["ok"]]
    missing = int((~answered["server_counted"] & ~answered["count_unbelieved"]).sum())
    if missing == 0:
        return None
    return RunWarning(
        name="usage_missing",
        message=f"the server told no token count for {missing} of {len(answered)} answers; "
        "events, and the tokens that were sent, were counted instead",
        remedy="have the server send usage (`stream_options.include_usage`)",
    )


def _token_times_unknown(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    answered = metrics.requests[metrics.requests["ok"]]
    unknown = int((~answered["token_times_known"]).sum())
    if unknown == 0:
        return None
    return RunWarning(
        name="token_times_unknown",
        message=f"{unknown} of {len(answered)} answers came in events that do not say how many "
        "tokens they brought; itl_ms leaves these answers out",
        remedy="have the server send running usage (`continuous_usage_stats`), or read "
        "chunk_gap_ms and tpot_ms",
    )


def _single_event(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    answered = metrics.requests[metrics.requests["ok"]]
    at_once = answered["first_token_ns"] == answered["last_token_ns"]
    bundled = int((at_once & (answered["output_tokens"] > 1)).sum())
    if bundled == 0:
        return None
    return RunWarning(
        name="single_event",
        message=f"{bundled} answers of several tokens came all at once: their TPOT cannot be seen",
        remedy="look for a proxy that gathers the stream, or for a client or server that had to "
        "wait for a processor",
    )


def _time_order(metrics: RunMetrics, _: RunManifest) -> RunWarning | None:
    answered = metrics.requests[metrics.requests["ok"]]
    odd = int((~answered["in_order"]).sum())
    if odd == 0:
        return None
    return RunWarning(
        name="times_out_of_order",
        message=f"{odd} requests have an answer before their send, tokens that go back in time, or "
        "an end before their last token; they are in no latency",
        remedy="the records are damaged or two clocks were mixed: repeat the run",
    )


def _wall_clock_stepped(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    step_ns = None if manifest.client is None else manifest.client.wall_clock_step_ns
    if step_ns is None or abs(step_ns) <= _STEP_NS:
        return None
    how = "ahead" if step_ns > 0 else "back"
    return RunWarning(
        name="wall_clock_stepped",
        message=f"the wall clock was set {how} by {significant(abs(step_ns) / 1e9)} s in the run",
        remedy="nothing measured rests on it; hold no log by wall time against this run",
    )


def _rows_skipped(_: RunMetrics, manifest: RunManifest) -> RunWarning | None:
    skipped = manifest.skipped_rows
    if not sum(skipped.values()):
        return None
    reasons = ", ".join(f"{rows:,} × {reason}" for reason, rows in sorted(skipped.items()))
    return RunWarning(
        name="rows_skipped",
        message=f"the workload left out {sum(skipped.values()):,} rows or turns: {reasons}",
        remedy=f"{' and '.join(_mending(skipped))}, if they belong to your traffic",
    )


def _mending(skipped: Mapping[str, int]) -> list[str]:
    """Return what brings back the rows left out: more context for long ones, else better lines."""
    long = any(skipped.get(reason) for reason in _TOO_LONG)
    faulty = any(rows for reason, rows in skipped.items() if reason not in _TOO_LONG)
    longer = "raise the context length (base.max_model_len in a sweep)"
    return [longer] * long + ["mend those lines of the trace"] * faulty


CHECKS: tuple[Callable[[RunMetrics, RunManifest], RunWarning | None], ...] = (
    _nothing_sent,
    _failed_share,
    _some_failed,
    _p99,
    _whole_run,
    _shorter_than_asked,
    longer_than_asked,
    _usage_missing,
    usage_unbelieved,
    no_finish_reason,
    prompt_tokens_untold,
    prompt_tokens_differ,
    _token_times_unknown,
    _single_event,
    clumped,
    stalled,
    concurrency_not_reached,
    engine_runs_fewer,
    load_not_delivered,
    cap_reached,
    overloaded,
    warm_prefix_cache,
    cache_not_cold,
    cache_not_seen,
    counters_left_out,
    _time_order,
    _wall_clock_stepped,
    _rows_skipped,
    not_exercised,
    unverifiable,
)
