from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known_runs import CLOSED, known_manifest, known_record, manifest_facts, steady_records

from harness.results.analysis import analyse, summarize, write_summary
from harness.results.names import DISTRIBUTIONS, SCALARS
from harness.results.store.manifest import manifest_of
from harness.results.store.sweep_folder import create_sweep, write_run, write_sweep
from harness.results.summary import SCHEMA_VERSION

OFF = {"prefix_caching": {"value": "off", "base": "on", "implied": {}}}
# arm → how much longer each request takes, and what is flipped
ARMS: dict[str, tuple[float, dict[str, Any]]] = {
    "prefix_caching=off": (2.0, OFF),
    "baseline": (1.0, {}),
    "baseline-again": (1.0, {}),
}
SWEEP: dict[str, Any] = {
    "name": "quick",
    "created": "2026-01-05T10:11:12+00:00",
    "harness_version": "0.1.0",
    "model": "m",
    "hardware": {"gpu": "a100-80gb", "count": 4},
    "seed": 3,
    "slo": {"ttft_ms": 1000, "tpot_ms": None, "e2e_ms": None},
    "price_per_gpu_hour": None,
}

Change = Callable[[dict[str, Any]], dict[str, Any]]


def key_of(arm: str, block: int) -> str:
    """Return the key of a run."""
    return f"{block}{list(ARMS).index(arm)}".ljust(16, "f")


def store_sweep(
    directory: Path, *, blocks: int = 5, change: Change = dict, stored: int | None = None
) -> Path:
    """Store a sweep of ARMS whose block b is slower by 1 % × b; `stored` cuts it short."""
    create_sweep(directory)
    manifests = [
        change(
            manifest_facts(
                key=key_of(arm, block),
                arm=arm,
                block=block,
                seed=100 + block,
                flipped=flipped,
                slo=SWEEP["slo"],
                facts={"assumptions": ["assumed acceptance 0.5"]},
                notes=["history is recorded"],
            )
        )
        for block in range(blocks)
        for arm, (_, flipped) in ARMS.items()
    ]
    names = ("key", "arm", "block", "engine", "label", "workload", "load", "flipped")
    planned = [{**{n: m[n] for n in names}, "status": "planned", "reason": None} for m in manifests]
    write_sweep(directory, {**SWEEP, "planned": planned})
    for manifest in manifests[:stored]:
        slower = ARMS[manifest["arm"]][0] * (1 + 0.01 * manifest["block"])
        write_run(
            directory, manifest["key"], manifest_of(manifest), steady_records(2, 6, scale=slower)
        )
    return directory


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the only row with these entries."""
    (found,) = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return found


def test_a_summary_has_the_agreed_form(tmp_path: Path) -> None:
    """Every entry that readers of summary.json rely on is there, under its name."""
    summary = summarize(store_sweep(tmp_path / "s")).document()

    assert set(summary) == {
        "schema_version", "name", "simulated", "stand_in", "harness_version", "created", "model",
        "hardware",
        "seed", "slo", "price_per_gpu_hour", "assumptions", "notes", "margin", "runs", "arms",
        "effects", "file", "cache", "history",
    }  # fmt: skip
    assert (summary["schema_version"], summary["simulated"], summary["margin"]) == (
        SCHEMA_VERSION,
        True,
        0.03,
    )
    assert summary["assumptions"] == ["assumed acceptance 0.5"]
    run = summary["runs"][0]
    assert {
        "key", "arm", "block", "engine", "label", "engine_version", "engine_kind", "toggles",
        "workload", "load", "status", "reason", "certificate", "evidence", "metrics", "warnings",
        "window", "counts", "gpus", "skipped_rows", "notes", "prediction",
    } <= set(run)  # fmt: skip
    assert set(run["metrics"]) == {*DISTRIBUTIONS, *SCALARS, "failures"}
    counts = {"sent": 12, "measured": 10, "ok": 12, "failed": 0}
    assert {**run["counts"], **counts} == run["counts"]
    assert run["window"]["kind"] == "steady"
    assert set(summary["arms"][0]) == {
        "engine", "label", "arm", "workload", "load", "n_blocks", "status", "reason", "gpus",
        "flipped", "metrics", "p99_reliable", "certificate", "predicted", "roof",
    }  # fmt: skip
    assert set(summary["effects"][0]) == {
        "engine", "label", "arm", "toggle", "value", "implied", "ratio_of", "workload", "load",
        "metric", "unit", "baseline", "treated", "ratio", "low", "high", "p_adjusted", "n_blocks",
        "verdict", "others_flipped", "predicted", "predicted_low", "predicted_high", "outside",
    }  # fmt: skip


def test_a_known_slowdown_comes_out_as_its_ratio(tmp_path: Path) -> None:
    """Requests that take twice as long: throughput on/off is 2, TPOT and TTFT are half."""
    effects = summarize(store_sweep(tmp_path / "s")).document()["effects"]

    expected = {"output_tokens_per_s": 2.0, "tpot_ms.p50": 0.5, "ttft_ms.p50": 0.5}
    for metric, ratio in expected.items():
        effect = one(effects, arm="prefix_caching=off", metric=metric)
        assert effect["ratio"] == pytest.approx(ratio)
        assert (effect["verdict"], effect["n_blocks"]) == ("BETTER", 5)
        control = one(effects, arm="baseline-again", metric=metric)
        assert (control["ratio"], control["verdict"]) == (1.0, "NO DIFFERENCE")


def test_an_arm_is_the_geometric_mean_of_its_blocks(tmp_path: Path) -> None:
    """TPOT of 20 ms × 1.00, 1.01 and 1.02, and `n` is all their requests."""
    arms = summarize(store_sweep(tmp_path / "s", blocks=3)).document()["arms"]

    metrics = one(arms, arm="baseline")["metrics"]
    assert metrics["tpot_ms.p50"] == pytest.approx(20 * (1.01 * 1.02) ** (1 / 3))
    assert metrics["tpot_ms.n"] == 30
    assert metrics["goodput_share"] == 1.0
    assert one(arms, arm="baseline")["p99_reliable"] is False


def test_shares_are_averaged_though_one_is_zero(tmp_path: Path) -> None:
    """Hit rates 0, 0.2 and 0.4 are 0.2 on average; a geometric mean would say 0."""

    def count_hits(manifest: dict[str, Any]) -> dict[str, Any]:
        hits = 20 * manifest["block"]
        return {**manifest, "counters": {"prompt_tokens": 100, "cached_prompt_tokens": hits}}

    arms = summarize(store_sweep(tmp_path / "s", blocks=3, change=count_hits)).document()["arms"]

    assert one(arms, arm="baseline")["metrics"]["prefix_hit_rate"] == pytest.approx(0.2)


def test_arms_stand_in_a_reader_s_order(tmp_path: Path) -> None:
    """The plan shuffles; the summary has the baseline first, its control next, runs as planned."""
    summary = summarize(store_sweep(tmp_path / "s", blocks=2)).document()

    assert [arm["arm"] for arm in summary["arms"]] == [
        "baseline", "baseline-again", "prefix_caching=off",
    ]  # fmt: skip
    assert [run["key"] for run in summary["runs"]] == [
        key_of(arm, block) for block in range(2) for arm in ARMS
    ]


def test_a_sweep_cut_short_is_summarised_as_far_as_it_got(tmp_path: Path) -> None:
    """Seven of fifteen runs: their figures stand, the others are named as interrupted."""
    summary = summarize(store_sweep(tmp_path / "s", stored=7)).document()

    statuses = [(run["status"], run["reason"]) for run in summary["runs"]]
    assert statuses == [("ok", None)] * 7 + [("interrupted", "not run")] * 8
    assert summary["runs"][7]["metrics"] is None
    assert one(summary["arms"], arm="prefix_caching=off")["n_blocks"] == 3
    assert one(summary["effects"], arm="prefix_caching=off", metric="ttft_ms.p50")["n_blocks"] == 2
    assert "7 of 15 runs are there" in " ".join(summary["notes"])


def test_a_skipped_run_keeps_its_reason(tmp_path: Path) -> None:
    """A toggle that the engine cannot follow is in runs and arms, with why."""
    directory = create_sweep(tmp_path / "s")
    names = ("key", "arm", "block", "engine", "label", "workload", "load", "flipped")
    plan = {name: manifest_facts(arm="q=fp8")[name] for name in names}
    plan |= {"status": "skipped", "reason": "needs 8-bit floating point"}
    write_sweep(directory, {**SWEEP, "planned": [plan]})

    summary = summarize(directory).document()

    for row in (summary["runs"][0], summary["arms"][0]):
        assert (row["status"], row["reason"]) == ("skipped", "needs 8-bit floating point")
    assert summary["arms"][0]["n_blocks"] == 0
    assert set(summary["arms"][0]["metrics"].values()) == {None}
    assert summary["effects"] == []


def test_a_void_run_is_shown_and_not_compared(tmp_path: Path) -> None:
    """A contradicted toggle keeps its figures, and is in no mean and no effect."""

    def void_off(manifest: dict[str, Any]) -> dict[str, Any]:
        void = {"status": "void", "reason": "the cache was hit"} if manifest["flipped"] else {}
        return {**manifest, **void}

    summary = summarize(store_sweep(tmp_path / "s", blocks=2, change=void_off)).document()

    run = one(summary["runs"], arm="prefix_caching=off", block=0)
    assert run["metrics"]["ttft_ms"] is not None
    row = one(summary["arms"], arm="prefix_caching=off")
    assert (row["status"], row["reason"], row["n_blocks"]) == ("void", "the cache was hit", 0)
    assert {effect["arm"] for effect in summary["effects"]} == {"baseline-again"}


def test_records_with_too_many_failures_make_a_failed_run(tmp_path: Path) -> None:
    """One failure of twelve is above 1 %: failed, whatever the manifest said, and not compared."""
    directory = store_sweep(tmp_path / "s", blocks=1, stored=2)
    records = steady_records(2, 6)
    records[5] = known_record(5, sent_ms=250, error_kind="http_503")
    manifest = known_manifest(key=key_of("baseline-again", 0), arm="baseline-again")
    write_run(directory, manifest.key, manifest, records)

    summary = summarize(directory).document()

    run = one(summary["runs"], arm="baseline-again")
    assert (run["status"], run["counts"]["failed"]) == ("failed", 1)
    assert run["reason"] == "8.3% of the requests failed (http_503 1), the limit is 1.0%"
    assert run["metrics"]["failures"] == {"http_503": 1}
    assert {effect["arm"] for effect in summary["effects"]} == {"prefix_caching=off"}


def test_two_arms_on_one_setting_are_doubted(tmp_path: Path) -> None:
    """The engine says `on` under the label `off`: that run carries the doubt."""

    def deaf(manifest: dict[str, Any]) -> dict[str, Any]:
        proof = {"requested": "on", "effective": "on", "observed": None, "verdict": "verified"}
        return {**manifest, "evidence": {"prefix_caching": proof}}

    summary = summarize(store_sweep(tmp_path / "s", blocks=1, change=deaf)).document()

    doubted = [
        r["arm"] for r in summary["runs"] for c in r["warnings"] if c["name"] == "same_settings"
    ]
    assert doubted == ["prefix_caching=off"]


def test_runs_of_several_versions_are_doubted(tmp_path: Path) -> None:
    """What differs between two versions of an engine would pass for the effect of a toggle."""

    def another(manifest: dict[str, Any]) -> dict[str, Any]:
        old = manifest["arm"] == "baseline"
        return {**manifest, "engine_version": "0.31.1" if old else "0.32.0"}

    summary = summarize(store_sweep(tmp_path / "s", blocks=1, change=another)).document()

    found = [
        check["message"]
        for run in summary["runs"]
        for check in run["warnings"]
        if check["name"] == "versions_differ"
    ]
    assert len(found) == len(summary["runs"])
    assert all("0.31.1, 0.32.0" in message for message in found)


def test_virtual_time_says_what_its_intervals_mean(tmp_path: Path) -> None:
    """On virtual time the control is 1 by construction; a real clock gets no such note."""
    simulated = summarize(store_sweep(tmp_path / "v", blocks=1)).document()["notes"]
    real = summarize(
        store_sweep(tmp_path / "r", blocks=1, change=lambda m: {**m, "clock": "monotonic"})
    ).document()["notes"]

    assert simulated[0] == "history is recorded"
    assert "exactly 1 by construction" in simulated[1]
    assert real == ["history is recorded"]


def test_an_arm_on_more_gpus_is_pointed_out(tmp_path: Path) -> None:
    """Twice the GPUs are not a fair throughput: the per-GPU figure is named."""

    def double(manifest: dict[str, Any]) -> dict[str, Any]:
        return {**manifest, "gpus": 8 if manifest["flipped"] else 4}

    summary = summarize(store_sweep(tmp_path / "s", blocks=1, change=double)).document()

    assert any("uses 8 GPUs, its baseline 4" in note for note in summary["notes"])
    per_gpu = one(
        summary["effects"], arm="prefix_caching=off", metric="output_tokens_per_s_per_gpu"
    )
    assert per_gpu["ratio"] == pytest.approx(4)


def test_what_is_written_is_what_was_summarised(tmp_path: Path) -> None:
    """summary.json holds the summary, strictly JSON; a second report writes the same bytes."""
    directory = store_sweep(tmp_path / "s", blocks=2)

    analysis = write_summary(directory)
    first = (directory / "summary.json").read_bytes(), (directory / "summary.csv").read_bytes()
    write_summary(directory)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(first[0], parse_constant=refuse) == analysis.summary.document()
    again = (directory / "summary.json").read_bytes(), (directory / "summary.csv").read_bytes()
    assert again == first


def test_the_csv_has_one_row_a_run(tmp_path: Path) -> None:
    """Each run with all its metrics by name; what is absent is an empty cell."""
    directory = store_sweep(tmp_path / "s", blocks=2, stored=5)

    summary = write_summary(directory).summary.document()

    with (directory / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == [run["key"] for run in summary["runs"]]
    assert float(rows[0]["tpot_ms.p99"]) == summary["runs"][0]["metrics"]["tpot_ms"]["p99"]
    assert rows[0]["load.value"] == str(CLOSED["value"])
    assert rows[0]["scheduled_ttft_ms.p50"] == ""
    assert (rows[5]["status"], rows[5]["ttft_ms.p50"]) == ("interrupted", "")


def test_each_request_s_latencies_come_with_the_summary(tmp_path: Path) -> None:
    """Plots of distributions need no second reading of the store."""
    analysis = analyse(store_sweep(tmp_path / "s", blocks=1, stored=2))

    assert set(analysis.requests) == {key_of("prefix_caching=off", 0), key_of("baseline", 0)}
    frame = analysis.requests[key_of("baseline", 0)]
    assert frame["tpot_ms"].tolist() == pytest.approx([20.0] * 12)
    assert frame["measured"].sum() == 10


def test_a_sweep_of_which_nothing_is_ok_says_so(tmp_path: Path) -> None:
    """Not one run is there: the note is the first thing to know of it."""
    none, some = (
        summarize(store_sweep(tmp_path / name, stored=stored)).document()
        for name, stored in (("none", 0), ("some", 1))
    )

    assert "nothing could be measured: no run is ok" in none["notes"]
    assert "the sweep is not complete: 0 of 15 runs are there" in none["notes"]
    assert "nothing could be measured: no run is ok" not in some["notes"]
