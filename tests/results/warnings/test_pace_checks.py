"""Warnings about the pace of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from known_runs import known_client, known_manifest, known_record, known_worker, steady_records

from harness.results.metrics import run_metrics
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord
from harness.results.summary import RunWarning
from harness.results.warnings.checks import run_warnings


def warned(records: Sequence[RequestRecord], **manifest: Any) -> dict[str, RunWarning]:
    whole = known_manifest(**manifest)
    found = run_warnings(run_metrics(table_of(records), whole), whole)
    return {one.name: one for one in found}


def frozen(length_s: float) -> list[RequestRecord]:
    """Return a steady load in which one stream stands still for a while, last of all."""
    end_ms = 50_000.0
    stuck = known_record(
        999, [(end_ms, 1), (end_ms + 1000 * length_s, 1)], sent_ms=end_ms - 10, turn=0
    )
    return [*steady_records(2, 301), stuck]


@pytest.mark.parametrize("length_s", [3.0, 20.0, 45.0])
def test_a_stall_is_named_with_its_time_and_length(length_s: float) -> None:
    """An engine that freezes gives rates that are too low, without a failed request."""
    warning = warned(frozen(length_s))["stalled"]

    assert f"no token came on any stream for {length_s:g} s from 50 s on" in warning.message
    assert "up to 1 request in flight" in warning.message
    assert "repeat the run" in warning.remedy


@pytest.mark.parametrize("length_s", [0.5, 1.9])
def test_a_short_stretch_is_no_stall(length_s: float) -> None:
    """Two seconds are the least."""
    assert "stalled" not in warned(frozen(length_s))


def clumps(pairs: int, singles: int) -> list[RequestRecord]:
    """Return answers of which so many tokens come with the one before them, 10 ms apart."""
    times = [10.0 * i for i in range(1, singles + 1)]
    for i in range(pairs):
        times += [10.0 * (singles + i + 1)] * 2
    return [known_record(n, [(ms, 1) for ms in times]) for n in range(3)]


def test_few_clumped_tokens_are_no_warning() -> None:
    """Up to 5 %."""
    assert "clumped" not in warned(clumps(2, 40))


@pytest.mark.parametrize(("lag_ms", "own"), [(0.2, False), (3.0, False), (40.0, True)])
def test_the_cause_of_clumped_tokens_is_the_clients_delay_or_not(lag_ms: float, own: bool) -> None:
    """A client that wakes later than tokens come reads several at once; else a proxy sent them."""
    lag = {"n": 1000, "p50": lag_ms * 1e6, "p99": lag_ms * 1e6, "max": lag_ms * 1e6}
    client = known_client(known_worker(loop_lag_ns=lag))

    warning = warned(clumps(20, 5), client=client)["clumped"]

    assert "44 % of the output tokens" in warning.message
    assert ("counts for its certificate" in warning.message) is own
    assert ("a proxy sends several events at a time" in warning.message) is not own
