from __future__ import annotations

import math
from pathlib import Path

import pytest
from sweep_files import FakeEngine, PredictingEngine, plan

from harness.plan.token_rate import PeakRate, peak_rates


def peaks(folder: Path, engine: FakeEngine, **sections: str) -> list[PeakRate]:
    return list(peak_rates(plan(folder, engine, **sections), {"embedded": engine}))


def test_a_closed_loop_peaks_with_all_slots_decoding(tmp_path: Path) -> None:
    """Four users at 10 ms per token give 400 tokens per second in every arm."""
    (peak,) = peaks(tmp_path, PredictingEngine(), toggles="[prefix_caching]")

    assert (peak.workload, peak.load, peak.concurrency) == ("shared-prefix", "concurrency=4", 4)
    assert peak.tokens_per_s == pytest.approx(400)
    assert peak.simulated


def test_the_running_limit_of_the_engine_bounds_the_peak(tmp_path: Path) -> None:
    """The limit of running sequences bounds the peak."""
    (peak,) = peaks(
        tmp_path, PredictingEngine(),
        load="[{concurrency: 900, requests: 4000}]", base="{max_num_seqs: 32}",
    )  # fmt: skip

    assert peak.tokens_per_s == pytest.approx(3200)


def test_an_open_loop_peaks_above_its_mean(tmp_path: Path) -> None:
    """The number of running requests is its mean plus four standard deviations."""
    (peak,) = peaks(
        tmp_path, PredictingEngine(engine_kind="real"), load="[{rate: 20, duration: 100 s}]"
    )

    mean = 20 * (80 * 0.001 + 8 * 0.010)
    assert peak.concurrency is None
    assert peak.tokens_per_s == pytest.approx((mean + 4 * math.sqrt(mean)) / 0.010)
    assert not peak.simulated


def test_an_engine_that_predicts_nothing_has_no_peak(tmp_path: Path) -> None:
    """An unknown peak is None for each load."""
    seen = peaks(
        tmp_path, FakeEngine(),
        load="[{concurrency: 2, requests: 20}, {rate: 2, duration: 300 s}]",
    )  # fmt: skip

    assert [(one.load, one.tokens_per_s) for one in seen] == [
        ("concurrency=2", None), ("rate=2", None),
    ]  # fmt: skip
