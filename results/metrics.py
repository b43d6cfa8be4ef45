"""The only formulas: from the records of a run to its metrics. `docs/metrics.md` in code.

Inside the tables here an absent value is NaN, which is how pandas writes "not there"; what leaves
this module as a metric is a number or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.results.silence import Silence, silences
from harness.results.statistics import Distribution, describe
from harness.results.store import UNBELIEVED, CounterMoves, RecordTable, RunManifest
from harness.results.summary import MetricValues
from harness.results.window import Window, measured_window

Floats = NDArray[np.float64]
NO_TOKEN = "no_token"  # noqa: S105 - a kind of failure: the stream ended well and brought nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunMetrics:
    """One run as its formulas see it: a row per request, the window, the metrics."""

    requests: pd.DataFrame  # as `per_request` makes it, with `measured` and `good`
    window: Window
    run: MetricValues  # those of the run
    silences: tuple[Silence, ...] = ()


def run_metrics(table: RecordTable, manifest: RunManifest) -> RunMetrics:
    """Return every metric of one stored run. Changes neither argument."""
    requests = per_request(table, open_loop=manifest.load.is_open_loop)
    window = measured_window(requests, manifest.load)
    limits = manifest.slo.limits()
    requests["measured"] = window.measured
    requests["good"] = meets_slo(requests, limits)
    found: dict[str, Any] = {
        **latencies(table, requests),
        **rates(table, requests, window),
        "clumped_share": clumped_share(table, requests),
        **(goodput(requests, window) if limits else {"goodput_rps": None, "goodput_share": None}),
        **from_counters(manifest.counters),
        "prefix_hit_ceiling": manifest.prefix_hit_ceiling,
        "completed": int(requests["ok"].sum()),
        "failures": failures(requests),
    }
    values = MetricValues(**found, **per_gpu_and_user(found, manifest))
    found_silences = silences(table, requests)
    return RunMetrics(requests=requests, window=window, run=values, silences=found_silences)


def per_request(table: RecordTable, *, open_loop: bool) -> pd.DataFrame:
    """Return one row a request: its times in ns of the run, its token counts, its latencies in ms.

    `placed_ns` is when it was sent, or was due where it never was. Latencies of a failed request
    are absent. The `scheduled_` ones are absent in closed loop, where nothing is due at a time of
    its own. Times are float: whole numbers of nanoseconds up to 2^53, 104 days, stay exact.
    """
    columns = table.columns
    first, last, first_tokens, event_sum = _event_ends(table)
    sent, scheduled, closed = (_floats(columns[f"{n}_ns"]) for n in ("sent", "scheduled", "closed"))
    error = columns["error_kind"].astype(object)
    failure = error.where(columns["error_kind"].notna(), None)
    failure = failure.mask(columns["error_kind"].isna() & np.isnan(first), NO_TOKEN)
    ok = failure.isna().to_numpy()
    in_order = ~_out_of_order(table, sent, closed)
    counted = _floats(columns["output_tokens"])
    tokens = np.where(np.isnan(counted), event_sum, counted)
    later = tokens - first_tokens
    # one read of the socket may complete all events of an answer: then no pace was seen
    gap_seen = ok & (last > first) & (later > 0)
    due = scheduled if open_loop else np.full(len(table), np.nan)
    spans_ns = {
        "ttft_ms": first - sent,
        "scheduled_ttft_ms": first - due,
        "tpot_ms": np.divide(last - first, later, out=np.full(len(table), np.nan), where=gap_seen),
        "e2e_ms": last - sent,
        "scheduled_e2e_ms": last - due,
        "tail_ms": closed - last,
    }
    seen = ok & in_order
    return pd.DataFrame(
        {
            "request_id": columns["request_id"],
            "conversation": columns["conversation"],
            "turn": _floats(columns["turn"]),
            "scheduled_ns": scheduled,
            "sent_ns": sent,
            "placed_ns": np.where(np.isnan(sent), scheduled, sent),
            "first_token_ns": first,
            "last_token_ns": last,
            "closed_ns": closed,
            "connect_ns": _floats(columns["connect_ns"]),
            "ok": ok,
            "in_order": in_order,
            "failure": failure,
            "asked_tokens": _floats(columns["asked_tokens"]),
            "prompt_tokens": _floats(columns["prompt_tokens"]),
            "output_tokens": tokens,
            "server_counted": (columns["output_tokens_source"] == "usage").fillna(value=False),
            "count_unbelieved": (columns["output_tokens_source"] == UNBELIEVED).fillna(value=False),
            "finished": columns["finish_reason"].notna(),
            "token_times_known": ok & (event_sum == tokens),
            "send_delay_ms": (sent - due) / 1e6,
            **{name: np.where(seen, span_ns / 1e6, np.nan) for name, span_ns in spans_ns.items()},
        }
    )


def _floats(column: pd.Series[Any]) -> Floats:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _event_ends(table: RecordTable) -> tuple[Floats, Floats, Floats, Floats]:
    """Return per request: times of first and last token event, tokens of the first time, of all.

    One read of the socket may complete several events: their tokens all came at the first time.
    """
    begin, end = table.offsets[:-1], table.offsets[1:]
    some = end > begin
    first, last = (np.full(len(table), np.nan) for _ in range(2))
    first[some] = table.event_time_ns[begin[some]]
    last[some] = table.event_time_ns[end[some] - 1]
    at_first = table.event_time_ns == np.repeat(first, end - begin)
    first_tokens = _sum_per_request(table, table.event_tokens * at_first)
    return first, last, first_tokens, _sum_per_request(table, table.event_tokens)


def _out_of_order(table: RecordTable, sent: Floats, closed: Floats) -> NDArray[np.bool_]:
    """Return which requests have a time before one that it must follow: no span of them is true.

    sent, then token events one after the other, then the end.
    """
    first, last, _, _ = _event_ends(table)
    gaps, inside = event_gaps(table, np.ones(len(table), np.bool_))
    back = np.zeros(len(table.event_time_ns), np.int64)
    back[1:][inside] = gaps[inside] < 0
    return (first < sent) | (closed < last) | (_sum_per_request(table, back) > 0)


def _sum_per_request(table: RecordTable, values: NDArray[np.int64]) -> Floats:
    """Return the sum of `values`, one an event, over each request; 0 for one without events."""
    running = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(running[table.offsets[1:]] - running[table.offsets[:-1]], np.float64)


def latencies(table: RecordTable, requests: pd.DataFrame) -> dict[str, Distribution | None]:
    """Return the statistics of each latency over the measured requests that did not fail.

    A request whose times contradict each other is in none of them.
    """
    measured = requests[requests["measured"]]
    chosen = (requests["ok"] & requests["measured"] & requests["in_order"]).to_numpy()
    known = chosen & requests["token_times_known"].to_numpy()
    own = ("ttft_ms", "scheduled_ttft_ms", "tpot_ms", "e2e_ms", "scheduled_e2e_ms", "tail_ms")
    stated = {name: _describe(requests.loc[chosen, name]) for name in own}
    # Gaps of one answer are alike: P99 is as sure as the number of answers makes it.
    gaps, owners = chunk_gaps_ms(table, chosen)
    stated["chunk_gap_ms"] = describe(gaps, independent=owners)
    gaps, owners = token_gaps_ms(table, known)
    stated["itl_ms"] = describe(gaps, independent=owners)
    stated["send_delay_ms"] = _describe(measured["send_delay_ms"])
    stated |= {f"slo_{name}": _as_the_slo_sees(measured, name) for name in ("ttft_ms", "e2e_ms")}
    return stated


def _as_the_slo_sees(measured: pd.DataFrame, name: str) -> Distribution | None:
    """Return the statistics of a latency in which a request that failed took for ever.

    From when it was due, in open loop. What is infinite is None: the mean where any failed, and
    percentiles from the first one that touches a failure on. None where none was answered.
    """
    taken_ms = np.where(measured["ok"], _judged(measured, name), np.inf)
    return describe(taken_ms[~np.isnan(taken_ms)]) if np.isfinite(taken_ms).any() else None


def _describe(column: pd.Series[Any]) -> Distribution | None:
    return describe(column.dropna().to_numpy())


def chunk_gaps_ms(table: RecordTable, chosen: NDArray[np.bool_]) -> tuple[Floats, int]:
    """Return the gaps between token events of the chosen requests, and how many requests have one.

    In ms, request by request: what a reader sees as a stall, however many tokens a gap brought.
    """
    gaps, inside = event_gaps(table, chosen)
    return gaps[inside], int((chosen & (np.diff(table.offsets) >= 2)).sum())


def token_gaps_ms(table: RecordTable, chosen: NDArray[np.bool_]) -> tuple[Floats, int]:
    """Return the gaps between tokens of the chosen requests, and how many requests have one.

    In ms. An event with m tokens after a gap g gives m gaps of g/m. The time to the first event is
    no gap. Choose only requests whose events say how many tokens they brought.
    """
    gaps, inside = event_gaps(table, chosen)
    tokens = table.event_tokens[1:][inside]
    owners = int((chosen & (np.diff(table.offsets) >= 2)).sum())
    if (tokens == 1).all():
        return gaps[inside], owners
    return np.repeat(gaps[inside] / np.maximum(tokens, 1), tokens), owners


def event_gaps(table: RecordTable, chosen: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the gap in ms before each event but the very first, and which lie in a chosen request.

    events   a0 a1 a2 | b0 b1        entry i is event i + 1 minus event i;
    gaps       0  1   2   3          entry 2 spans two requests and is inside neither
    """
    inside = np.repeat(chosen, np.diff(table.offsets))[1:]
    borders = table.offsets[1:-1]
    inside[borders[(borders > 0) & (borders < len(table.event_time_ns))] - 1] = False
    return np.diff(table.event_time_ns) / 1e6, inside


def clumped_share(table: RecordTable, requests: pd.DataFrame) -> float | None:
    """Return the share of output tokens whose event has the time of the event before it.

    Of the measured answers; None where they hold no token. Such events were completed by one read
    of the socket: their own times are not known, so gaps between tokens are too regular or too
    long. A client that reads late makes them, or a server or proxy that sends several at once.
    """
    chosen = (requests["ok"] & requests["measured"]).to_numpy()
    gaps, inside = event_gaps(table, chosen)
    clumped = table.event_tokens[1:][inside & (gaps == 0)].sum()
    tokens = table.event_tokens[np.repeat(chosen, np.diff(table.offsets))].sum()
    return float(clumped / tokens) if tokens else None


def rates(table: RecordTable, requests: pd.DataFrame, window: Window) -> dict[str, Any]:
    """Return tokens and requests a second: inside the window, and over the whole run.

    A token counts when its event lies inside the window, whenever its request was sent; a prompt
    with its first token event, a request with its last. Failed requests bring nothing. Where the
    events of an answer do not say their tokens, its tokens are spread over its events evenly.
    """
    output = _output_tokens_inside(table, requests, window)
    prompts = requests["prompt_tokens"].to_numpy()
    begun = requests["ok"].to_numpy() & window.holds(requests["first_token_ns"].to_numpy())
    ended = requests["ok"].to_numpy() & window.holds(requests["last_token_ns"].to_numpy())
    prompt = float(prompts[begun].sum())  # NaN as soon as the server did not count one of them
    return {
        "output_tokens_per_s": _per(output, window.length_s),
        "output_tokens_per_s_whole_run": _whole_run_rate(requests, requests["output_tokens"]),
        "total_tokens_per_s": None if np.isnan(prompt) else _per(output + prompt, window.length_s),
        "requests_per_s": _per(float(ended.sum()), window.length_s),
        "requests_per_s_whole_run": _whole_run_rate(requests, requests["ok"]),
    }


def _output_tokens_inside(table: RecordTable, requests: pd.DataFrame, window: Window) -> float:
    seen = _sum_per_request(table, table.event_tokens)
    inside = _sum_per_request(table, table.event_tokens * window.holds(table.event_time_ns))
    counts = requests["ok"].to_numpy() & (seen > 0)
    tokens = requests["output_tokens"].to_numpy()
    return float((inside[counts] * tokens[counts] / seen[counts]).sum())


def _whole_run_rate(requests: pd.DataFrame, amounts: pd.Series[Any]) -> float | None:
    """Return the sum of `amounts` of the answered requests a second, first send to last end."""
    if requests.empty:
        return None
    length_ns = requests["closed_ns"].max() - requests["placed_ns"].min()
    return _per(float(amounts[requests["ok"]].sum()), length_ns / 1e9)


def _per(amount: float, length: float | None) -> float | None:
    return amount / length if length is not None and length > 0 else None


def meets_slo(requests: pd.DataFrame, limits: Mapping[str, float]) -> NDArray[np.bool_]:
    """Return which requests met every limit (`ttft_ms`, `tpot_ms`, `e2e_ms`).

    In open loop TTFT and E2E count from when the request was due. A failed request meets none. An
    answer whose TPOT cannot be seen (one token, or all in one event) cannot miss that limit; one
    whose times contradict each other meets none.
    """
    good = (requests["ok"] & requests["in_order"]).to_numpy(copy=True)
    for name, limit in limits.items():
        good &= ~(_judged(requests, name) > limit)
    return good


def _judged(requests: pd.DataFrame, name: str) -> Floats:
    scheduled = requests.get(f"scheduled_{name}")
    if scheduled is None:
        return requests[name].to_numpy()
    return scheduled.fillna(requests[name]).to_numpy()


def goodput(requests: pd.DataFrame, window: Window) -> dict[str, Any]:
    """Return good measured requests a second of the window, and their share of all measured.

    Both count the same requests, those sent inside the window, also when they end later: a rate
    of 0 beside a share above 0 cannot be.
    """
    measured = requests.loc[requests["measured"], "good"]
    return {
        "goodput_rps": _per(float(measured.sum()), window.length_s),
        "goodput_share": float(measured.mean()) if len(measured) else None,
    }


def failures(requests: pd.DataFrame) -> dict[str, int]:
    """Return how many requests of the whole run failed, by kind; empty when none did."""
    counts = requests["failure"].dropna().value_counts()
    return {str(kind): int(count) for kind, count in sorted(counts.items())}


def from_counters(counters: CounterMoves) -> dict[str, Any]:
    """Return the metrics that come from the server's counters, from their change over the run.

    A server that does not count, one that got no request, and one that restarted (any of its
    counters fell) all give None. `mean_accepted_length` leaves out the token that verifying gives
    anyway. Where prompt tokens are not counted, those that the cache was searched for are.
    """
    counted = {name: value for name, value in counters if value is not None}
    if any(value < 0 for value in counted.values()):
        counted = {}
    preemptions = counted.get("preemptions")
    asked = "prompt_tokens" if "prompt_tokens" in counted else "looked_up_prompt_tokens"
    return {
        "prefix_hit_rate": _share(counted, "cached_prompt_tokens", asked),
        "acceptance_rate": _share(counted, "accepted_tokens", "drafted_tokens"),
        "mean_accepted_length": _share(counted, "accepted_tokens", "verify_steps"),
        "preemptions": None if preemptions is None else int(preemptions),
    }


def _share(counted: Mapping[str, float], part: str, whole: str) -> float | None:
    if part not in counted or not counted.get(whole):
        return None
    return counted[part] / counted[whole]


def per_gpu_and_user(metrics: Mapping[str, Any], manifest: RunManifest) -> dict[str, Any]:
    """Return the metrics that others are divided into: by GPUs, by users, by money.

    A user's tokens a second are 1 / mean TPOT: how fast an answer flows once it has begun.
    """
    gpus, price = manifest.gpus, manifest.price_per_gpu_hour
    output, total = metrics["output_tokens_per_s"], metrics["total_tokens_per_s"]
    tpot_ms = metrics["tpot_ms"].mean if metrics["tpot_ms"] else None
    cost = None
    if output and gpus and price is not None:
        cost = price * gpus / (output * 3600) * 1e6
    return {
        "output_tokens_per_s_per_user": 1000 / tpot_ms if tpot_ms else None,
        "output_tokens_per_s_per_gpu": output / gpus if output is not None and gpus else None,
        "total_tokens_per_s_per_gpu": total / gpus if total is not None and gpus else None,
        "cost_per_million_output_tokens": cost,
    }
