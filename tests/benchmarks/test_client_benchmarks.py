from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from harness.reference.process import reference_process

BENCHMARKS = ROOT / "benchmarks"
COMPILER = shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="the floor client is C; there is no `cc` here")
def test_the_floor_client_sees_every_event(tmp_path: Path) -> None:
    """The floor client prints its cost, and fails if an event is missing."""
    program = tmp_path / "floor"
    subprocess.run(
        [str(COMPILER), "-O2", "-Wall", "-Werror", "-o", program, BENCHMARKS / "floor" / "floor.c"],
        check=True,
    )
    fields = {"prompt": [1], "max_tokens": 5, "stream": True}
    body = json.dumps({**fields, "stream_options": {"include_usage": True}}).encode()
    request = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    with reference_process(ttft_ms=10, itl_ms=5) as server:
        port = server.target().url.rpartition(":")[2]
        good, bad = (
            subprocess.run(
                [program, port, "2", "6", tokens], input=request + body, capture_output=True,
                check=False,
            )
            for tokens in ("5", "6")
        )  # fmt: skip
        log = server.log()

    cost = json.loads(good.stdout)
    assert (good.returncode, cost["requests"], cost["events"]) == (0, 6, 6 * 7)
    assert 0 < cost["cpu_s"] < cost["wall_s"]
    assert bad.returncode == 1
    assert b"received 42 events, expected 48" in bad.stderr
    assert [len(answer.sent_ns) for answer in log.answers] == [5] * 12


@pytest.mark.alone
def test_the_accuracy_table_has_its_rows(tmp_path: Path) -> None:
    """Each row has p50, p99 and the worst run, and no request is read before it is sent."""
    done = subprocess.run(
        [
            sys.executable, BENCHMARKS / "accuracy.py",
            "--runs", "1", "--rounds", "1", "--concurrency", "2",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )  # fmt: skip

    rows = {
        match[1].strip(): [float(number) for number in match[2].split()]
        for match in re.finditer(r"^(\S.{31}) ((?: *-?[\d.]+){3})$", done.stdout, re.MULTILINE)
    }
    assert set(rows) == {
        "first token", "last token", "each token",
        "t_recv − sent (server)", "tick started − due (server)",
    }  # fmt: skip
    assert all(0 <= p50 <= p99 <= worst for p50, p99, worst in rows.values())
    assert "concurrency 2: " in done.stdout
