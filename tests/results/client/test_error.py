"""Tests of what a DEGRADED or INVALID client changes in effects, rows, exit codes and output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from known_runs import (
    OPEN,
    analysed,
    flips,
    known_client,
    known_manifest,
    known_record,
    known_row,
    known_worker,
    late_client,
    steady_records,
)

from harness.cli import main
from harness.commands import load as load_command
from harness.commands import load_plan
from harness.results.analysis import summarize
from harness.results.client.certificate import certify
from harness.results.client.error import error_of_pairs
from harness.results.effects import effects
from harness.results.metrics import run_metrics
from harness.results.report.client_notes import client_reasons
from harness.results.report.serving_block import serving_table
from harness.results.store.parquet import table_of
from harness.results.store.sweep_folder import create_sweep, write_run, write_sweep
from harness.results.summary import AnalysedRun, Certificate

SWEEP: dict[str, Any] = {
    "name": "quick",
    "created": "2026-01-05T10:11:12+00:00",
    "harness_version": "0.1.0",
    "model": "m",
    "hardware": {"gpu": "a100-80gb", "count": 4},
    "seed": 3,
    "slo": None,
    "planned": [],
}
OFF = {"prefix_caching": {"value": "off", "base": "on", "implied": {}}}
METRICS = ("output_tokens_per_s", "ttft_ms", "tpot_ms")


def certified(verdict: str, **errors: float | None) -> Certificate:
    """Return a certificate with these errors; the error of other primary metrics is 0."""
    known = {**dict.fromkeys(METRICS, 0.0), **errors}
    return Certificate(verdict=verdict, reasons=(), measured={}, errors=known)


def arm(name: str, factor: float, client: Certificate) -> list[AnalysedRun]:
    """Return five blocks of an arm whose metrics are `factor` times the baseline's."""
    noise = (1.004, 0.996, 1.002, 0.998, 1.0) if name != "baseline" else (1.0,) * 5
    return [
        analysed(
            {
                "output_tokens_per_s": 1000 / factor / noise[block],
                "ttft_ms.p50": 200 * factor * noise[block],
                "tpot_ms.p50": 20 * factor * noise[block],
            },
            clock="monotonic",
            arm=name,
            block=block,
            seed=block,
            flipped=flips(OFF if "=" in name else {}),
            certificate=client,
        )
        for block in range(5)
    ]


TRUSTED = certified("TRUSTED", ttft_ms=0.5, tpot_ms=None)  # its errors are within the limits


def verdicts(
    factor: float, client: Certificate, base: Certificate = TRUSTED
) -> tuple[dict[str, str], list[str]]:
    """Return the verdicts of one arm by metric, and the notes."""
    runs = arm("baseline", 1.0, base) + arm("pc=off", factor, client)
    found, notes = effects(runs)
    return {one.metric: one.verdict for one in found if one.verdict}, notes


def test_an_effect_smaller_than_the_error_of_a_degraded_client_is_inconclusive() -> None:
    """An effect of 8 % is INCONCLUSIVE if the client's error is 10 %; other metrics keep theirs."""
    found, notes = verdicts(1.08, certified("DEGRADED", ttft_ms=0.10, tpot_ms=0.01))

    assert found == {
        "output_tokens_per_s": "BETTER", "ttft_ms.p50": "INCONCLUSIVE", "tpot_ms.p50": "BETTER",
    }  # fmt: skip
    assert any("inconclusive for pc=off: the client of some runs is DEGRADED" in n for n in notes)


def test_an_effect_larger_than_the_error_keeps_its_verdict() -> None:
    """An effect of 30 % keeps its verdict if the client's error is 10 %, without a note."""
    found, notes = verdicts(1.3, certified("DEGRADED", ttft_ms=0.10, tpot_ms=0.10))

    assert set(found.values()) == {"BETTER"}
    assert not any("DEGRADED" in note for note in notes)


def test_a_trusted_client_widens_nothing() -> None:
    """The errors of a TRUSTED client change no verdict."""
    found, notes = verdicts(1.08, TRUSTED)

    assert set(found.values()) == {"BETTER"}
    assert not any("DEGRADED" in note for note in notes)


def test_no_difference_needs_room_for_the_error() -> None:
    """Equal arms are NO DIFFERENCE with an error of 1 %, and INCONCLUSIVE with one of 5 %."""
    sure, _ = verdicts(1.0, certified("DEGRADED", ttft_ms=0.01))
    unsure, _ = verdicts(1.0, certified("DEGRADED", ttft_ms=0.05))

    assert sure["ttft_ms.p50"] == "NO DIFFERENCE"
    assert unsure["ttft_ms.p50"] == "INCONCLUSIVE"
    assert unsure["tpot_ms.p50"] == "NO DIFFERENCE"


def test_an_unknown_error_is_inconclusive() -> None:
    """If the error of a metric is unknown, even a large effect is INCONCLUSIVE."""
    found, _ = verdicts(3.0, certified("DEGRADED", tpot_ms=None))

    assert (found["tpot_ms.p50"], found["ttft_ms.p50"]) == ("INCONCLUSIVE", "BETTER")


def test_the_errors_of_both_sides_add_up() -> None:
    """An effect of 10 % is INCONCLUSIVE with 6 % of error on both sides, not on one side."""
    degraded = certified("DEGRADED", ttft_ms=0.06)

    assert verdicts(1.10, degraded, degraded)[0]["ttft_ms.p50"] == "INCONCLUSIVE"
    assert verdicts(1.10, degraded)[0]["ttft_ms.p50"] == "BETTER"


def test_the_worst_block_counts() -> None:
    """The error is that of the worst pair; without a DEGRADED run it is 0."""
    trusted = known_row(certificate=TRUSTED)
    pairs = [(trusted, trusted)] * 4
    one = known_row(certificate=certified("DEGRADED", ttft_ms=0.2))

    assert error_of_pairs(pairs, "ttft_ms.p50") == 0
    assert error_of_pairs([*pairs, (one, pairs[0][0])], "ttft_ms.p50") == 0.2
    assert error_of_pairs([(known_row(), known_row())], "ttft_ms.p50") == 0


def errors_of(records: list[Any], **manifest: Any) -> dict[str, float | None]:
    facts: dict[str, Any] = {"client": late_client(3), "clock": "monotonic", **manifest}
    whole = known_manifest(**facts)
    return dict(certify(run_metrics(table_of(records), whole), whole).errors)


def test_the_errors_are_the_lag_over_what_is_measured() -> None:
    """3 ms of lag are 15 % of a TTFT of 20 ms, and 3.75 % of 80 ms from first to last token."""
    errors = errors_of(steady_records(2, 301))

    assert errors["ttft_ms"] == pytest.approx(3 / 20)
    assert errors["tpot_ms"] == pytest.approx(3 / 80)
    assert errors["output_tokens_per_s"] == pytest.approx(0)
    assert errors["scheduled_ttft_ms"] is None


def test_from_the_schedule_the_send_delay_is_in_the_error() -> None:
    """A send delay of 2 ms and a lag of 3 ms are 5 of the 52 ms since the request was due."""
    records = [
        known_record(i, [(due + 52, 1), (due + 152, 4)], scheduled_ms=due, sent_ms=due + 2)
        for i in range(400)
        for due in [10.0 * i]
    ]

    errors = errors_of(records, load=OPEN)

    assert errors["scheduled_ttft_ms"] == pytest.approx(5 / 52)
    assert errors["ttft_ms"] == pytest.approx(3 / 50)


def test_missing_load_and_a_stopped_clock_are_in_every_error() -> None:
    """A slot empty for 5 % of the time and a jump of 0.6 s in 30 s add 7 % to each error."""
    records = [
        known_record(2 * i + slot, [(begin + 19, 1), (begin + 95, 4)], sent_ms=begin)
        for i in range(400)
        for slot in range(2)
        for begin in [100.0 * i + 50 * slot]
    ]

    errors = errors_of(records, client={**late_client(1.9), "wall_clock_step_ns": 600_000_000})

    assert errors["output_tokens_per_s"] == pytest.approx(0.07, abs=0.001)
    assert errors["ttft_ms"] == pytest.approx(0.17, abs=0.001)


def test_an_unknown_lag_or_token_count_gives_no_error() -> None:
    """An unknown error is None, never 0."""
    counted = steady_records(2, 301)
    silent = known_client(known_worker(loop_lag_ns=None))
    uncounted = [
        known_record(i, [(10.0 * i + 5, 1), (10.0 * i + 9, 1)], sent_ms=10.0 * i, source="client")
        for i in range(300)
    ]

    lagless, eventful = errors_of(counted, client=silent), errors_of(uncounted)

    assert (lagless["ttft_ms"], lagless["tpot_ms"]) == (None, None)
    assert (eventful["tpot_ms"], eventful["output_tokens_per_s"]) == (None, None)
    assert eventful["ttft_ms"] is not None


def store(folder: Path, late_ms: Mapping[str, float], blocks: int = 1, **changes: Any) -> Path:
    """Store a sweep in real time; `late_ms` gives the lag of each arm's client."""
    create_sweep(folder)
    write_sweep(folder, SWEEP)
    for block in range(blocks):
        for place, (name, lag_ms) in enumerate(late_ms.items()):
            manifest = known_manifest(
                key=f"{block}{place}".ljust(16, "f"),
                arm=name,
                block=block,
                flipped=OFF if "=" in name else {},
                clock="monotonic",
                engine_kind="real",
                client=late_client(lag_ms),
                **changes,
            )
            slower = 1.5 if "=" in name else 1.0
            records = steady_records(2, 12, scale=slower * (1 + 0.01 * block))
            write_run(folder, manifest.key, manifest, records)
    return folder


CLIENTS = {"baseline": 0.2, "baseline-again": 3.0, "prefix_caching=off": 95.0}


def test_an_invalid_run_is_in_no_effect_and_no_mean(tmp_path: Path) -> None:
    """The run keeps its status, reason and metrics; arms and effects leave it out."""
    summary = summarize(store(tmp_path / "s", CLIENTS)).document()

    runs = {run["arm"]: run for run in summary["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "baseline": "ok", "baseline-again": "ok", "prefix_caching=off": "invalid",
    }  # fmt: skip
    invalid = runs["prefix_caching=off"]
    assert invalid["reason"] == "the client's event loop woke 95 ms late (p99); the limit is 20 ms"
    assert invalid["reason"] == invalid["certificate"]["reasons"][0]["message"]
    assert invalid["metrics"]["ttft_ms"] is not None
    assert {effect["arm"] for effect in summary["effects"]} == {"baseline-again"}
    arms = {one["arm"]: one for one in summary["arms"]}
    assert {name: one["certificate"] for name, one in arms.items()} == {
        "baseline": "TRUSTED", "baseline-again": "DEGRADED", "prefix_caching=off": "INVALID",
    }  # fmt: skip
    assert arms["prefix_caching=off"]["n_blocks"] == 0
    assert set(arms["prefix_caching=off"]["metrics"].values()) == {None}


def test_a_block_whose_client_is_invalid_leaves_the_others_in(tmp_path: Path) -> None:
    """The other two blocks are compared, and the arm has the worst verdict of those two."""
    folder = store(tmp_path / "s", {"baseline": 0.2, "prefix_caching=off": 0.2}, blocks=2)
    manifest = known_manifest(
        key="e" * 16, arm="prefix_caching=off", block=2, flipped=OFF, clock="monotonic",
        client=late_client(95),
    )  # fmt: skip
    write_run(folder, manifest.key, manifest, steady_records(2, 12))

    arms = {one["arm"]: one for one in summarize(folder).document()["arms"]}

    off = arms["prefix_caching=off"]
    assert (off["status"], off["n_blocks"], off["certificate"]) == ("ok", 2, "TRUSTED")


@pytest.mark.parametrize("status", ["failed", "void"])
def test_a_failed_or_void_run_keeps_its_status(tmp_path: Path, status: str) -> None:
    """An INVALID client does not change the status of a void or failed run."""
    folder = store(tmp_path / "s", {"baseline": 95.0}, status=status, reason="so it was")

    (run,) = summarize(folder).runs

    assert (run.status, run.reason) == (status, "so it was")
    assert run.certificate.verdict == "INVALID"
    assert client_reasons([run]) == []
    assert [one.name for one in client_reasons([replace(run, status="ok")])] == ["loop_lag"]


def test_a_reason_of_the_certificate_is_not_also_a_warning(tmp_path: Path) -> None:
    """A warning of a run is left out if its certificate gives the same reason."""
    records = steady_records(2, 500)
    for i in range(100):
        records[i] = known_record(
            i, [(5, 1)], source="client", asked_tokens=9, error_kind="timeout" if i < 20 else None
        )
    manifest = known_manifest(client=known_client(), clock="monotonic", max_failed_share=0.05)
    uncertified = known_manifest(key="1" * 16, max_failed_share=0.05)
    create_sweep(tmp_path / "s")
    write_sweep(tmp_path / "s", SWEEP)
    for one in (manifest, uncertified):
        write_run(tmp_path / "s", one.key, one, records)

    certified_run, virtual = summarize(tmp_path / "s").document()["runs"]

    reasons = {reason["name"] for reason in certified_run["certificate"]["reasons"]}
    checks = {check["name"] for check in certified_run["warnings"]}
    assert {"failed_share", "usage_missing", "shorter_than_asked"} <= reasons
    assert not checks & (reasons | {"some_failed"})
    assert {"some_failed", "usage_missing", "shorter_than_asked"} <= {
        check["name"] for check in virtual["warnings"]
    }


@pytest.mark.parametrize(("late_ms", "code"), [(0.2, 0), (4.0, 0), (95.0, 1)])
def test_a_report_of_an_invalid_client_is_exit_1(
    tmp_path: Path, late_ms: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """TRUSTED and DEGRADED runs give exit code 0; one INVALID run gives 1."""
    folder = store(tmp_path / "s", {"baseline": 0.2, "prefix_caching=off": late_ms})

    assert main(["report", str(folder), "--json"]) == code

    summary = json.loads(capsys.readouterr().out)
    assert [run["certificate"]["verdict"] for run in summary["runs"]] == [
        "TRUSTED", {0.2: "TRUSTED", 4.0: "DEGRADED", 95.0: "INVALID"}[late_ms],
    ]  # fmt: skip


@pytest.mark.parametrize(("late_ms", "code"), [(0.2, 0), (4.0, 0), (95.0, 1)])
def test_a_load_by_an_invalid_client_is_exit_1(
    tmp_path: Path,
    late_ms: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`harness load` prints the certificate, and its exit code is 1 for an INVALID client."""
    summary = summarize(store(tmp_path / "s", {"baseline": late_ms}))
    server = SimpleNamespace(
        engine_version="1", engine_kind="real", max_model_len=None, until_ready=None
    )
    monkeypatch.setattr(load_plan, "attach", lambda *_, **__: server)
    monkeypatch.setattr(load_command, "run_alone", lambda *_: summary)

    assert main(["load", "http://127.0.0.1:1", "--model", "m"]) == code

    verdict = {0.2: "TRUSTED", 4.0: "DEGRADED", 95.0: "INVALID"}[late_ms]
    assert f"Client certificate: {verdict}\n" in capsys.readouterr().out


def block_of(folder: Path, client: dict[str, Any] | None, **changes: Any) -> list[str]:
    create_sweep(folder)
    write_sweep(folder, SWEEP)
    manifest = known_manifest(client=client, clock="monotonic", **changes)
    write_run(folder, manifest.key, manifest, steady_records(2, 301))
    return serving_table(summarize(folder)).splitlines()


def test_a_trusted_client_is_one_line_of_the_block(tmp_path: Path) -> None:
    """TRUSTED is one line below the metrics, without reasons."""
    lines = block_of(tmp_path / "s", known_client())

    place = lines.index("=" * 50)
    assert lines[place + 1 : place + 3] == ["Client certificate: TRUSTED", "window: steady"]


def test_the_block_prints_each_reason_and_each_remedy_once(tmp_path: Path) -> None:
    """Two reasons with the same remedy print it once, at most 100 columns wide."""
    worker = late_client(3)["workers"][0] | {"cpu_s": 29.7}

    lines = block_of(tmp_path / "s", known_client(worker))

    place = lines.index("Client certificate: INVALID")
    assert lines[place + 1 : place + 3] == [
        "  INVALID: the client used 99 % of its CPU core; the limit is 95 %",
        "  DEGRADED: the client's event loop woke 3 ms late (p99); the limit is 2 ms",
    ]
    more = "more client processes (`--workers 2` of harness load, `workers: 2` in a sweep)"
    assert lines[place + 3 : place + 6] == [
        f"  remedy: use {more} or a",
        "    quieter machine",
        "window: steady",
    ]
    assert max(map(len, lines)) <= 100


def test_a_run_without_a_certificate_prints_the_reason(tmp_path: Path) -> None:
    """An older run has no verdict, and the reason is printed."""
    lines = block_of(tmp_path / "s", None)

    place = lines.index("Client certificate: none")
    assert lines[place + 1].startswith("  not recorded: ")


def test_the_csv_has_the_verdict(tmp_path: Path) -> None:
    """The CSV has a column with the verdict of each run."""
    folder = store(tmp_path / "s", CLIENTS)
    main(["report", str(folder), "--json"])

    header, *rows = (folder / "summary.csv").read_text(encoding="utf-8").splitlines()
    place = header.split(",").index("certificate")
    assert [row.split(",")[place] for row in rows] == ["TRUSTED", "DEGRADED", "INVALID"]
