"""One run in the block of lines that people know from `vllm bench serve`, with this tool's metrics.

The names are those lines' own; `docs/metrics.md` defines each metric.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from harness.results.panels import unmeasured
from harness.results.report.client_notes import certificate_lines
from harness.results.statistics import Distribution
from harness.results.summary import RunRow, Summary
from harness.results.units import ABSENT
from harness.results.warnings import failure_lines

_WIDTH = 50
_WIDEST = 100  # of the sentences below the block
_LATENCIES = (
    ("ttft_ms", "Time to First Token", "TTFT"),
    ("scheduled_ttft_ms", "TTFT from when it was due", "scheduled TTFT"),
    ("tpot_ms", "Time per Output Token (excl. 1st token)", "TPOT"),
    ("itl_ms", "Inter-token Latency", "ITL"),
    ("e2e_ms", "End-to-end Latency", "E2EL"),
)


def serving_table(summary: Summary) -> str:
    """Return the block of the one run of a summary, 50 columns wide; below it how sure it is."""
    (run,) = summary.runs
    mark = f" ({found})" if (found := unmeasured(summary)) else ""
    mark += " (INTERRUPTED)" if run.status == "interrupted" else ""
    lines = [
        f" Serving Benchmark Result{mark} ".center(_WIDTH, "="),
        *_counts(run),
        *_window(run),
        *_rates(run),
        *_latencies(run),
        "=" * _WIDTH,
    ]
    for said in (*certificate_lines(run), *_notes(summary, run)):
        lines += _wrapped(said)
    return "\n".join(lines)


def _wrapped(said: str) -> list[str]:
    """Return a sentence in lines, those after the first two columns further in."""
    deeper = " " * (len(said) - len(said.lstrip()) + 2)
    return textwrap.wrap(
        said,
        _WIDEST,
        subsequent_indent=deeper,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counts(run: RunRow) -> Iterator[str]:
    counts, load = run.counts, run.load
    yield _line("Successful requests:", counts and counts.ok)
    yield _line("Failed requests:", counts and counts.failed)
    if load.mode == "concurrency":
        yield _line("Maximum request concurrency:", load.concurrency)
    elif load.mode == "rate":
        yield _line("Request rate configured (RPS):", float(load.value or 0))
    yield _line("Benchmark duration (s):", counts and counts.duration_s)
    yield _line("Total input tokens:", counts and counts.prompt_tokens)
    yield _line("Total generated tokens:", counts and counts.output_tokens)


def _window(run: RunRow) -> Iterator[str]:
    """Yield what the rates are made from: each is one of these counts over this length."""
    window, counts = run.window, run.counts
    if window is None or counts is None or not counts.ok:
        return  # no rate, and no window
    whole = window.kind == "whole-run"
    yield ("Window: the whole run" if whole else "Measured window").center(_WIDTH, "-")
    yield _line("Measured window (s):", window.length_s, decimals=3)
    yield _line("Requests sent in the window:", counts.measured)
    yield _line("Requests ended in the window:", window.requests_ended)
    yield _line("Input tokens in the window:", window.prompt_tokens)
    yield _line("Output tokens in the window:", window.output_tokens)


def _rates(run: RunRow) -> Iterator[str]:
    metrics = run.metrics if run.counts and run.counts.ok else None
    yield _line("Request throughput (req/s):", metrics and metrics.requests_per_s)
    yield _line("Output token throughput (tok/s):", metrics and metrics.output_tokens_per_s)
    yield _line("Total token throughput (tok/s):", metrics and metrics.total_tokens_per_s)


def _latencies(run: RunRow) -> Iterator[str]:
    for name, title, short in _LATENCIES:
        found: Distribution | None = getattr(run.metrics, name, None)
        if found is None and name.startswith("scheduled"):
            continue
        yield title.center(_WIDTH, "-")
        yield _line(f"Mean {short} (ms):", found and found.mean)
        yield _line(f"Median {short} (ms):", found and found.p50)
        mark = "" if found is None or found.p99 is None or found.p99_reliable else " ~"
        yield _line(f"P99 {short} (ms):{mark}", found and found.p99)


def _notes(summary: Summary, run: RunRow) -> Iterator[str]:
    window, reason = run.window, run.reason
    if run.status == "interrupted":
        yield f"interrupted: {reason}; the figures are of what had ended"
    if window is not None and run.counts is not None and run.counts.ok:
        why = f" ({window.reason})" if window.reason else ""
        yield f"window: {window.kind.replace('-', ' ')}{why}"
    if run.metrics is not None:
        yield from failure_lines(run.metrics.failures, run.failure_samples)
    for warning in run.warnings:
        yield f"warning: {warning.message}; {warning.remedy}"
    for note in summary.notes:
        yield f"note: {note}"


def _line(name: str, value: float | None, decimals: int = 2) -> str:
    if value is None:
        return f"{name:<38} {ABSENT:>11}"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"
    return f"{name:<38} {text:>11}"
