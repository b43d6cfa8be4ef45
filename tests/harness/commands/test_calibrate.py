from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repository import ROOT
from sweep_files import write

from harness.calibration import store as calibration_store
from harness.calibration.finding import (
    MedianAndP99,
    Rung,
    calibration_document,
    highest_tokens_per_s,
)
from harness.calibration.store import keep_calibration, latest_calibration
from harness.cli import main
from harness.client.http.connection import Connection
from harness.commands import calibrate as calibrate_command
from harness.plan.token_rate import PeakRate
from harness.reference.log import ReferenceLog, SentAnswer
from harness.reference.process import reference_process
from harness.reference.rungs import ITL_MS, TTFT_MS, cores, measured, rung
from harness.reference.stamp_errors import stamp_errors
from harness.results.store.records import RequestRecord
from harness.sweep_file import Load


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def a_rung(streams: int = 16, error: float = 0.2, late: float = 0.1, **facts: Any) -> Rung:
    errors = MedianAndP99(0.1, error)
    return Rung(
        **{
            "streams": streams,
            "requests": 300,
            "tokens": 4800,
            "tokens_per_s": 90.0 * streams,
            "client_cores": 0.25,
            "client_queued": None,
            "first_ms": errors,
            "last_ms": errors,
            "each_ms": errors,
            "wait_ms": MedianAndP99(0.5, 2.0),
            "server_late_ms": MedianAndP99(0.05, late),
            "server_sending_ms": MedianAndP99(0.01, 0.02),
            **facts,
        }
    )


@contextmanager
def climbing(monkeypatch: pytest.MonkeyPatch, *rungs: Rung) -> Iterator[list[int]]:
    """Replace the measurement with `rungs`, and yield the streams of each requested rung."""
    requested: list[int] = []
    left = iter(rungs)

    def scripted(streams: int, _: int | None) -> Rung:
        requested.append(streams)
        return next(left)

    monkeypatch.setattr(calibrate_command, "rung", scripted)
    yield requested


@pytest.mark.alone
def test_a_real_rung_measures_the_errors_of_a_fast_client() -> None:
    """All requests are matched, all errors are positive, and the rate is that of the load."""
    seen = rung(8, None, requests=24)

    assert (seen.requests, seen.tokens) == (24, 24 * 64)
    assert 0 < seen.first_ms.p50 < 3  # 0.1 on an idle machine
    assert 0 < seen.each_ms.p50 < 3
    assert seen.wait_ms.p50 > 0
    assert 300 < seen.tokens_per_s < 8 * 1000 / ITL_MS
    assert seen.client_cores is not None
    assert 0 < seen.client_cores < 1


@pytest.mark.alone
def test_a_slow_client_has_large_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each read takes 2 ms, the streams wait for each other and the errors are large."""
    receive = Connection._receive

    def slow(self: Connection) -> Generator[None, bytes | None, None]:
        received = receive(self)
        next(received)
        while True:
            received.send((yield))
            time.sleep(0.002)

    monkeypatch.setattr(Connection, "_receive", slow)
    seen = rung(4, None, requests=12)

    assert seen.each_ms.p50 > 1
    assert seen.error_ms > 3
    assert seen.server_late_ms.p50 < 3  # the server was on time
    assert seen.verdict != "good"


@pytest.mark.alone
def test_a_stopped_server_is_late_in_its_own_log() -> None:
    """A server that is stopped repeatedly logs its lateness; the client's errors stay small."""
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS) as server:
        done = threading.Event()

        def halt() -> None:
            while not done.wait(0.1):
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(0.06)
                os.kill(server.pid, signal.SIGCONT)

        halting = threading.Thread(target=halt)
        halting.start()
        try:
            log = server.log

            def ended() -> ReferenceLog:
                done.set()
                halting.join()
                return log()

            server.log = ended  # type: ignore[method-assign]
            load = Load(mode="concurrency", arrivals="closed", concurrency=4, requests=12)
            seen = measured(server, load, output_tokens=64)
        finally:
            done.set()
            halting.join()

    assert seen.server_late_ms.p99 > 20
    assert seen.server_fell_behind
    assert seen.each_ms.p50 < 3
    assert seen.verdict != "client"


def test_a_verdict_depends_on_the_errors_and_on_the_server() -> None:
    """Small errors are `good`; large ones are `client`, or `server` if the server was late."""
    assert a_rung(error=0.9).verdict == "good"
    assert a_rung(error=1.0).verdict == "client"
    assert a_rung(error=1.0, late=1.0).verdict == "server"
    assert a_rung(error=0.9, late=5.0).verdict == "good"
    assert a_rung(error=0.9, late=5.0).server_fell_behind
    held_up = a_rung(error=3.0, server_sending_ms=MedianAndP99(0.01, 2.0))
    assert held_up.verdict == "server"
    assert a_rung(first_ms=MedianAndP99(0.1, 4.0)).error_ms == 4.0
    assert a_rung(last_ms=MedianAndP99(0.1, 4.0)).verdict == "client"


def test_the_trusted_rate_is_that_of_the_last_good_rung_below_a_bad_one() -> None:
    """A rung with a late server does not count for or against the client."""
    good, late, bad = a_rung(16), a_rung(64, error=2, late=2), a_rung(128, error=2)

    assert highest_tokens_per_s([good, late]) == 90 * 16
    assert highest_tokens_per_s([good, late, a_rung(128)]) == 90 * 128
    assert highest_tokens_per_s([good, bad, a_rung(256)]) == 90 * 16
    assert highest_tokens_per_s([late]) is None
    assert highest_tokens_per_s([]) is None


def record(response_id: str | None, times_ns: list[int], **facts: Any) -> RequestRecord:
    events = np.array([(time_ns, 1) for time_ns in times_ns], dtype=np.int64).reshape(-1, 2)
    named: dict[str, Any] = {"scheduled_ns": 0, "sent_ns": 10, "first_byte_ns": None, **facts}
    return RequestRecord(
        request_id="c0-t0",
        response_id=response_id,
        conversation="c0",
        turn=0,
        token_events=events,
        closed_ns=99,
        asked_tokens=len(times_ns),
        **named,
    )


def test_errors_are_the_clients_times_minus_the_servers() -> None:
    """Requests are matched by the id of their answer; failed ones are left out."""
    answers = [
        SentAnswer(response_id=name, asked_tokens=2, received_ns=1_000_030, sent_ns=times_ns,
                   held=False)
        for name, times_ns in (("b", [3_000_000, 5_000_000]), ("a", [2_000_000, 4_000_000]))
    ]  # fmt: skip
    log = ReferenceLog(ttft_ns=0, itl_ns=1, answers=answers, ticks=[])
    seen = [
        record("a", [1_500_000, 3_250_000]),
        record("b", [2_000_001, 4_000_000], sent_ns=None),
        record(None, [], error_kind="timeout"),
    ]

    errors = stamp_errors(seen, 1_000_000, log)

    assert errors.first_ms.tolist() == [0.5, 0.000001]
    assert errors.last_ms.tolist() == [0.25, 0.0]
    assert errors.each_ms.tolist() == [0.5, 0.25, 0.000001, 0.0]
    assert errors.wait_ms.tolist() == [0.00002]
    for wrong in (record("c", [1, 2]), record("a", [1]), record(None, [1, 2])):
        with pytest.raises(ValueError, match="c0-t0: the record differs from the server's log"):
            stamp_errors([wrong], 0, log)


@pytest.mark.alone
def test_this_process_leaves_a_core_to_the_server_and_takes_it_back() -> None:
    """Pinning ends with the block, even after an error; a single core is not pinned."""
    before = os.sched_getaffinity(0)
    try:
        with cores() as pinned:
            now = os.sched_getaffinity(0)
            assert pinned.client == (None if len(before) < 2 else now)
            assert pinned.server not in now
        assert os.sched_getaffinity(0) == before

        with pytest.raises(KeyboardInterrupt), cores():
            raise KeyboardInterrupt
        assert os.sched_getaffinity(0) == before

        os.sched_setaffinity(0, {min(before)})
        with cores() as pinned:
            assert (pinned.server, pinned.client) == (None, None)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.alone
def test_the_command_finishes_and_keeps_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result of a real rung is JSON on stdout, in the given file and in the cache."""
    monkeypatch.setattr(calibrate_command, "STREAMS", (64,))
    monkeypatch.setattr(calibrate_command, "_PATIENCE_S", 0)
    before = os.sched_getaffinity(0)
    assert latest_calibration() is None

    code = main(["calibrate", "--json", "--out", "found.json"])

    captured = capsys.readouterr()
    document = json.loads(captured.out)
    (seen,) = document["rungs"]
    assert code == (0 if seen["verdict"] == "good" else 1)
    assert (document["highest_tokens_per_s"] is not None) == (seen["verdict"] == "good")
    assert seen["streams"] == 64
    assert document == json.loads((tmp_path / "found.json").read_text()) == latest_calibration()
    assert "64 streams" in captured.err
    assert os.sched_getaffinity(0) == before
    assert (tmp_path / "cache/llm-serving-harness/calibration.json").is_file()


def test_it_climbs_until_the_client_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rung that is not good is repeated up to four times; the last rung is the first bad one."""
    late = (a_rung(128, error=3 + tries % 2, late=4 - tries) for tries in range(4))
    rungs = (
        a_rung(16), a_rung(64, error=3), a_rung(64, error=2), a_rung(64, error=0.5),
        *late,
        a_rung(256, error=1.5), a_rung(256, error=1.25), a_rung(256, error=7), a_rung(256, error=2),
    )  # fmt: skip
    with climbing(monkeypatch, *rungs) as asked:
        code = main(["calibrate"])

    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert code == 0
    assert asked == [16, *3 * [64], *4 * [128], *4 * [256]]
    assert "Within 1 ms at P99 up to 5,760 tokens/s." in lines
    assert max(map(len, lines)) <= 100
    at = next(number for number, line in enumerate(lines) if line.startswith("    128"))
    assert "server fell behind" in lines[at + 1]
    assert "client off" in lines[at + 3]
    assert "1.25" in lines[at + 2]


def test_no_good_rung_is_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a good rung no rate is trusted, and the result is stored."""
    with climbing(monkeypatch, *4 * [a_rung(error=2)]):
        assert main(["calibrate"]) == 1

    assert "No load was stamped within 1 ms" in capsys.readouterr().out
    kept = latest_calibration()
    assert kept is not None
    assert kept["highest_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "there.json"], "exists already"),
        (["--out", "nowhere/found.json"], "no folder nowhere"),
        (["--sweep", "missing.yaml"], "missing.yaml"),
    ],
)
def test_what_is_wrong_beforehand_is_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """Nothing is measured, and the error is one line."""
    (tmp_path / "there.json").touch()
    with climbing(monkeypatch) as asked:
        assert main(["calibrate", *arguments]) == 2

    captured = capsys.readouterr()
    assert asked == []
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_keeping(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is printed even if it cannot be stored."""
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setattr(calibrate_command, "STREAMS", (16,))
    with climbing(monkeypatch, a_rung(16)):
        assert main(["calibrate"]) == 0

    captured = capsys.readouterr()
    assert "not kept for later runs" in captured.err
    assert "Within 1 ms" in captured.out


def test_a_calibration_holds_for_machines_like_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another CPU, kernel, Python or version has its own calibration; all are stored."""
    host = calibration_store.calibration_host()
    mine = calibration_document([a_rung(16)], host, date="2026-01-02", pinned=True)
    other = calibration_document(
        [a_rung(64)], {**host, "kernel": "0.1"}, date="2026-01-03", pinned=True
    )
    keep_calibration(mine)
    path = keep_calibration(other)

    assert {"cpu", "cores", "kernel", "python", "harness_version"} == set(host)
    assert latest_calibration() == json.loads(json.dumps(mine))
    later = {**mine, "date": "2026-02-01"}
    keep_calibration(later)
    found = latest_calibration()
    assert found is not None
    assert found["date"] == "2026-02-01"
    monkeypatch.setattr(calibration_store, "__version__", "9.9")
    assert latest_calibration() is None
    assert len(json.loads(path.read_text())["calibrations"]) == 2
    assert [one.name for one in path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"calibrations": 3}'])
def test_an_invalid_cache_has_no_calibration(text: str, tmp_path: Path) -> None:
    """An invalid file is ignored and replaced by the next calibration."""
    path = calibration_store.calibration_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert latest_calibration() is None
    host = calibration_store.calibration_host()
    keep_calibration(calibration_document([a_rung()], host, date="d", pinned=False))
    assert latest_calibration() is not None


def test_a_sweep_is_laid_beside_the_trusted_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated runs need no client; for an engine without a prediction only the limit is given."""
    path = write(
        tmp_path, model="llama-3-8b", hardware="{gpu: a100-80gb, count: 1}",
        toggles="[prefix_caching]", blocks="1",
    )  # fmt: skip
    monkeypatch.setattr(calibrate_command, "STREAMS", (16,))
    with climbing(monkeypatch, a_rung(16)):
        assert main(["calibrate", "--sweep", str(path), "--json"]) == 0

    (told,) = json.loads(capsys.readouterr().out)["sweep"]
    assert (told["verdict"], told["simulated"], told["concurrency"]) == ("virtual", True, 4)
    assert 100 < told["tokens_per_s"] < 10_000
    kept = latest_calibration()
    assert kept is not None
    assert "sweep" not in kept


def test_a_real_engine_is_told_by_what_is_known_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A predicted peak is below or above; without one the output has the TPOT limit."""
    same: dict[str, Any] = {"label": "vllm", "workload": "chat", "simulated": False}
    peaks = [
        PeakRate(**same, load="concurrency=4", concurrency=4, tokens_per_s=1000.0),
        PeakRate(**same, load="concurrency=64", concurrency=64, tokens_per_s=2000.0),
        PeakRate(**same, load="concurrency=9", concurrency=9, tokens_per_s=None),
        PeakRate(**same, load="rate=2", concurrency=None, tokens_per_s=None),
    ]
    monkeypatch.setattr(calibrate_command, "peak_rates", lambda *_: iter(peaks))
    monkeypatch.setattr(calibrate_command, "STREAMS", (16,))
    path = str(write(tmp_path, model="llama-3-8b", hardware="{gpu: a100-80gb, count: 1}"))
    with climbing(monkeypatch, a_rung(16), a_rung(16)):
        assert main(["calibrate", "--sweep", path]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert main(["calibrate", "--sweep", path, "--json"]) == 0

    below, above, bounded, unknown = lines[-4:]
    assert below.endswith("up to 1,000 tokens/s expected, below what is stamped within 1 ms")
    assert "above what is stamped" in above
    assert bounded.endswith(
        "cannot be told before it runs; below it while TPOT stays above 6.25 ms"
    )
    assert unknown.endswith("rate=2: cannot be told before it runs")
    sweep = json.loads(capsys.readouterr().out)["sweep"]
    assert [one["verdict"] for one in sweep] == ["below", "above", "unknown", "unknown"]


def child_of(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def serves(pid: int) -> bool:
    """Return whether the process of the server is alive."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


@pytest.mark.alone
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupt_leaves_no_process(sent: signal.Signals, code: int) -> None:
    """The server ends with the command, after Ctrl-C and after a kill."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.cli", "calibrate"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr
    try:
        assert "16 streams" in process.stderr.readline()
        deadline_s = time.monotonic() + 20
        while (server := child_of(process.pid)) is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(sent)
        ended = process.wait(20)
        deadline_s = time.monotonic() + 20
        while serves(server) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not serves(server)
        assert ended == code
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
