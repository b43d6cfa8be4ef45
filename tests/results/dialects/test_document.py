"""Tests of `--dialect`: another tool's metrics with ours, in JSON and as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from known_runs import OPEN, known_manifest, known_record, steady_records

from harness.cli import main
from harness.results.analysis import summarize
from harness.results.dialects import DIALECTS
from harness.results.dialects.block import dialect_block
from harness.results.dialects.document import dialect_report
from harness.results.store.sweep_folder import create_sweep, write_run, write_sweep

SWEEP = {
    "name": "s",
    "created": "2026-01-01T00:00:00+00:00",
    "model": "m",
    "hardware": {"gpu": "a100-80gb", "count": 4},
    "seed": 1,
    "planned": [],
}


def stored(folder: Path, records: list[Any], **manifest: Any) -> Path:
    """Return the folder of a sweep with one run of these records."""
    create_sweep(folder)
    write_sweep(folder, SWEEP)
    known = known_manifest(**manifest)
    write_run(folder, known.key, known, records)
    return folder


def beside(folder: Path, tool: str) -> dict[str, dict[str, Any]]:
    """Return the tool's metrics of the one run, by name."""
    (run,) = dialect_report(folder, tool, summarize(folder)).document()["runs"]
    return {metric["name"]: metric for metric in run["metrics"]}


def test_a_different_value_has_a_reason(tmp_path: Path) -> None:
    """With bundled tokens TPOT and ITL differ from ours and have a reason; TTFT is equal."""
    bundles = [(100.0 * k, 4) for k in range(1, 6)]
    found = beside(stored(tmp_path / "s", [known_record(0, bundles)]), "vllm")

    assert found["Mean TTFT (ms)"] == {
        "name": "Mean TTFT (ms)",
        "value": 100,
        "own_name": "metrics.ttft_ms.mean",
        "own_value": 100,
        "why": None,
    }
    tpot = found["Mean TPOT (ms)"]
    assert (tpot["value"], tpot["own_value"]) == pytest.approx((400 / 19, 25))
    assert tpot["why"] == "first chunk counted as 1 token"
    assert found["Mean ITL (ms)"]["why"] == "gaps between chunks, not tokens"
    assert found["Total generated tokens"]["own_value"] == 20
    assert found["Peak concurrent requests"]["own_value"] is None


def test_the_window_is_the_reason_if_the_formula_is_the_same(tmp_path: Path) -> None:
    """In a steady closed loop our metrics cover the window; the other tool has no window."""
    records = steady_records(2, 6)
    records.append(known_record(99, [(700, 1), (900, 1)], sent_ms=600))
    found = beside(stored(tmp_path / "s", records), "vllm")

    assert found["Request throughput (req/s)"]["why"] == "whole run; ours is the window"
    assert found["Successful requests"]["why"] is None


def test_units_are_those_of_the_tool(tmp_path: Path) -> None:
    """Our milliseconds are converted to seconds if the tool prints seconds."""
    found = beside(stored(tmp_path / "s", [known_record(0, [(500, 1), (2500, 1)])]), "guidellm")

    assert found["Request Latency Sec Mean"]["value"] == 2.5
    assert found["Request Latency Sec Mean"]["own_value"] == 2.5


@pytest.mark.parametrize("tool", DIALECTS)
def test_no_line_is_wider_than_a_page(tmp_path: Path, tool: str) -> None:
    """Long names, reasons and numbers stay within 100 columns."""
    kinds = ("error_event", "aborted", "cancelled", "http_500", "no_token")
    records = [
        known_record(
            i,
            [] if kind in ("http_500", "no_token") else [(4e8, 4), (9e8, 40_000_000)],
            scheduled_ms=0,
            sent_ms=1e8,
            closed_ms=1e9,
            error_kind=kind,
            asked_tokens=50_000_000,
            turn=i,
            conversation="c",
        )
        for i, kind in enumerate((None, None, *kinds))
    ]
    slo = {"ttft_ms": 4e8, "tpot_ms": 1.0, "e2e_ms": 1e9}
    folder = stored(tmp_path / "s", records, load=OPEN, slo=slo)
    summary = summarize(folder)
    report = dialect_report(folder, tool, summary)

    lines = dialect_block(summary, report).splitlines()

    assert max(map(len, lines)) <= 100
    assert "(SIMULATED)" in lines[0] + lines[1]
    assert len(report.runs[0].metrics) > 20
    json.dumps(report.document(), allow_nan=False)


def test_report_prints_the_dialect_below_our_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report starts with our tables; other tools appear only with `--dialect`."""
    folder = str(stored(tmp_path / "s", steady_records(2, 6)))

    assert main(["report", folder]) == 0
    plain = capsys.readouterr().out.partition("wrote ")[0]
    assert main(["report", folder, "--dialect", "guidellm"]) == 0
    printed = capsys.readouterr().out

    assert "GuideLLM" not in plain
    assert printed.startswith(plain)
    assert "GuideLLM" in printed
    assert "approximated: " in printed


def test_report_adds_one_key_to_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` adds the key `dialect` to the summary; `summary.json` does not contain it."""
    folder = stored(tmp_path / "s", steady_records(2, 6))

    main(["report", str(folder), "--json"])
    plain = json.loads(capsys.readouterr().out)
    main(["report", str(folder), "--json", "--dialect", "aiperf"])
    printed = json.loads(capsys.readouterr().out)

    assert printed.pop("dialect")["tool"] == "aiperf"
    assert printed == plain == json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def test_an_unknown_dialect_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists the known dialects."""
    with pytest.raises(SystemExit) as ended:
        main(["report", "x", "--dialect", "wrk"])

    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert all(tool in text for tool in DIALECTS)


def test_a_run_without_requests_has_no_figures(tmp_path: Path) -> None:
    """A run without requests, because its engine did not start, is left out."""
    folder = stored(tmp_path / "s", [], status="failed", reason="did not start")

    assert dialect_report(folder, "vllm", summarize(folder)).runs == ()
