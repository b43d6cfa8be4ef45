"""`harness load` against a server that runs: its figures, its words, its exit codes."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import harness
from relays import below_a_path, tls_relay
from schema_checks import departures

from harness.adapters import ENGINES
from harness.adapters.endpoint import EngineAdapter
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import PlannedArm, PlannedRun
from harness.results.analysis import summarize
from harness.sweep_file import load_sweep

MODEL = "llama-3-8b"
SWEEP = f"""
name: same
model: {MODEL}
hardware: {{gpu: h100-80gb, count: 1}}
engines: [embedded]
toggles: [prefix_caching]
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 64, output_tokens: 64}}
load: [{{concurrency: 8, requests: 64}}]
blocks: 1
"""


def in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    """Return the same of a process of its own, as users have it."""
    command = [sys.executable, "-P", "-m", "harness.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def ended_well(ran: subprocess.CompletedProcess[str]) -> bool:
    """Exit code 0, or 1 for no reason but a machine that kept the client from its core."""
    return ran.returncode == 0 or (ran.returncode == 1 and "INVALID" in ran.stdout)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of an embedded engine that serves in real time."""
    words = ["serve", "--port", "0", "--model", MODEL, "--gpu", "h100-80gb", "--count", "1"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.cli", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    assert "simulated" in line
    yield found[0]
    process.terminate()
    assert process.wait(timeout=20) == 0
    process.stdout.close()


class Quiet:
    def starting(self, arm: PlannedArm) -> None: ...

    def started(self, run: PlannedRun, requests: int) -> None: ...

    def requests_done(self, requests: int) -> None: ...

    def ended(self, run: PlannedRun, status: str) -> None: ...


def virtual_figures(folder: Path) -> dict[str, Any]:
    path = folder / "sweep.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    engines: dict[str, EngineAdapter] = {name: kind() for name, kind in ENGINES.items()}
    SweepRunner(make_plan(load_sweep(path), engines), engines, folder / "out").run(Quiet())
    runs = summarize(folder / "out").document()["runs"]
    figures: dict[str, Any] = next(run["metrics"] for run in runs if run["arm"] == "baseline")
    return figures


@pytest.mark.alone
def test_real_time_gives_the_figures_of_virtual_time(server: str, tmp_path: Path) -> None:
    """The same traffic over HTTP comes to the same pace within 3 %, and is still simulated.

    Three tries: both ends share a machine that may have other work.
    """
    words = ("--prompt-tokens", "128", "--output-tokens", "64", "--concurrency", "8")
    virtual = virtual_figures(tmp_path)
    off: list[float] = []
    for _ in range(3):
        ran = in_a_process("load", server, "--model", MODEL, "--requests", "64", *words, "--json")
        summary = json.loads(ran.stdout)
        (run,) = summary["runs"]
        assert ended_well(ran)
        assert summary["simulated"]
        assert run["metrics"]["completed"] == 64
        off.append(run["metrics"]["tpot_ms"]["p50"] / virtual["tpot_ms"]["p50"] - 1)
        if abs(off[-1]) < 0.03:
            return

    pytest.fail(f"TPOT p50 is off by {off}")


def test_the_block_that_people_know_is_printed(server: str, tmp_path: Path) -> None:
    """Names as in `vllm bench serve`, the simulated mark, and the records where they were asked."""
    out = tmp_path / "kept"
    words = ("--requests", "6", "--output-tokens", "8", "--warmup", "2", "--out", str(out))
    ran = harness("load", server, "--model", MODEL, *words)

    assert ended_well(ran)
    assert "Serving Benchmark Result (SIMULATED)" in ran.stdout
    assert re.search(r"Successful requests: +6\n", ran.stdout)
    assert re.search(r"Total generated tokens: +48\n", ran.stdout)
    assert re.search(r"Total input tokens: +768\n", ran.stdout)
    assert "Median TPOT (ms):" in ran.stdout
    assert (out / "summary.json").is_file()
    assert departures(out) == []


def test_open_loop_and_other_workloads_are_played(server: str, tmp_path: Path) -> None:
    """A rate, a chat, and a trace of one's own: all requests come back."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 10 * n, "input_length": 20, "output_length": 3, "hash_ids": [1, n + 2]}
        for n in range(5)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    few = ("--output-tokens", "4")
    asked = {
        10: ("--rate", "10", "--duration", "1", "--arrivals", "constant", *few),
        8: ("--workload", "multi-turn", "--requests", "8", "--api", "chat", *few),
        5: ("--workload", f"trace:{trace}", "--block-tokens", "16", "--requests", "5"),
    }

    for requests, words in asked.items():
        ran = harness("load", server, "--model", MODEL, "--json", *words)
        (run,) = json.loads(ran.stdout)["runs"]
        assert run["metrics"]["completed"] == requests
        assert (run["metrics"]["scheduled_ttft_ms"] is not None) == ("--rate" in words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "other"), "does not serve 'other'; it serves llama-3-8b"),
        (("--model", MODEL, "--rate", "2"), "--rate needs --duration"),
        (("--model", MODEL, "--duration", "2"), "--duration belongs to an open loop"),
        (("--model", MODEL, "--rate", "2", "--concurrency", "2"), "belongs to a closed loop"),
        (("--model", MODEL, "--workload", "random"), "expected shared-prefix, multi-turn or"),
        (("--model", MODEL, "--workload", "trace:none.jsonl"), "none.jsonl: cannot be read"),
        (("--model", MODEL, "--timeout", "soon"), "--timeout: "),
        (("--model", MODEL, "--tokenizer", "nowhere"), "--tokenizer nowhere: no tokenizer"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    server: str, words: tuple[str, ...], said: str
) -> None:
    """One line that says what was wrong, and exit code 2."""
    ran = harness("load", server, *words)

    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_a_server_that_is_not_there_is_waited_for_and_then_named() -> None:
    """Nobody listens: it is said what is waited for, and in the end that nobody came."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    ran = harness("load", f"http://127.0.0.1:{port}", "--model", "m", "--wait", "0.5 s")

    assert ran.returncode == 2
    assert "waiting up to 0.5 s" in ran.stderr
    assert f"no server answered at http://127.0.0.1:{port}" in ran.stderr


def test_a_server_behind_tls_is_loaded(
    server: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readiness, counters and load go over TLS, and the result says what that does to times."""
    few = ("--model", MODEL, "--requests", "3", "--output-tokens", "4")
    with tls_relay(server, certificate) as url:
        doubted = in_a_process("load", url, *few)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
        trusted = in_a_process("load", url, *few, "--json")

    (run,) = json.loads(trusted.stdout)["runs"]
    assert ended_well(trusted)
    assert run["metrics"]["completed"] == 3
    assert run["metrics"]["prefix_hit_rate"] is not None
    assert any("through TLS" in note for note in json.loads(trusted.stdout)["notes"])
    assert doubted.returncode == 2
    assert "certificate verify failed" in doubted.stderr
    assert "SSL_CERT_FILE" in doubted.stderr


@pytest.mark.parametrize("path", ["/below/v1", "/below", "/below/", "/below/v1/completions"])
def test_a_server_below_a_path_is_loaded(path: str) -> None:
    """As behind a gateway: what people paste is cut before /v1, and all goes below it."""
    with below_a_path("/below") as url:
        ran = harness("load", url + path, "--model", "m", "--requests", "2", "--json")

    (run,) = json.loads(ran.stdout)["runs"]
    assert ended_well(ran)
    assert run["metrics"]["completed"] == 2


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    """It would be kept in the manifest."""
    ran = harness("load", "http://me:secret@127.0.0.1:8000", "--model", "m")

    assert ran.returncode == 2
    assert "name or a password" in ran.stderr
    assert "secret" not in ran.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://h:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """The scheme is not guessed: the message shows what an address looks like."""
    ran = harness("load", url, "--model", "m")

    assert ran.returncode == 2
    assert "expected something like http://127.0.0.1:8000" in ran.stderr


def test_a_request_that_fails_makes_the_exit_code_1(server: str) -> None:
    """Answers that take too long are counted by kind and are in no latency."""
    words = ("--output-tokens", "200", "--requests", "3", "--timeout", "0.2", "--json")
    ran = harness("load", server, "--model", MODEL, *words)

    (run,) = json.loads(ran.stdout)["runs"]
    assert ran.returncode == 1
    assert run["status"] == "failed"
    assert run["metrics"]["failures"] == {"timeout": 3}
    assert run["metrics"]["ttft_ms"] is None


def test_prompts_longer_than_the_server_takes_are_not_sent(server: str) -> None:
    """The server tells its longest context: a workload beyond it is refused beforehand."""
    ran = harness("load", server, "--model", MODEL, "--prompt-tokens", "9000")

    assert ran.returncode == 2
    assert "8192" in ran.stderr.replace(",", "")


def test_a_dialect_stands_below_the_block(server: str) -> None:
    """The same records by another tool's formulas, in print and in JSON; ours come first."""
    words = ("--model", MODEL, "--requests", "4", "--output-tokens", "8", "--dialect", "guidellm")
    printed = harness("load", server, *words)
    told = json.loads(harness("load", server, *words, "--json").stdout)

    ours, _, theirs = printed.stdout.partition("with the formulas of")
    assert "Serving Benchmark Result" in ours
    assert "Requests Comp" in theirs
    (run,) = told["dialect"]["runs"]
    assert (told["dialect"]["tool"], run["metrics"][0]["value"]) == ("guidellm", 4)


def test_a_cap_bounds_what_is_alive_and_the_wait_is_latency(server: str) -> None:
    """Twenty a second, one at a time of some 0.2 s each: TTFT from due grows, from the send not."""
    paced = ("--rate", "20", "--duration", "0.5 s", "--arrivals", "constant")
    few = ("--output-tokens", "40", "--max-concurrency", "1", "--json")
    ran = harness("load", server, "--model", MODEL, *paced, *few)

    (run,) = json.loads(ran.stdout)["runs"]
    metrics = run["metrics"]
    assert run["load"]["max_concurrency"] == 1
    assert metrics["completed"] == 10
    assert metrics["scheduled_ttft_ms"]["p50"] > 3 * metrics["ttft_ms"]["p50"]
    assert "cap_reached" in {check["name"] for check in run["warnings"]}


def test_a_cap_belongs_to_an_open_loop() -> None:
    """A closed loop has its concurrency."""
    ran = harness("load", "http://127.0.0.1:1", "--model", "m", "--max-concurrency", "2")

    assert ran.returncode == 2
    assert "--max-concurrency belongs to an open loop" in ran.stderr


def test_a_warm_cache_is_a_warning_of_a_load_and_never_void(server: str, tmp_path: Path) -> None:
    """The same texts again are found in the cache of somebody's server: its state is as found."""
    words = ("--model", MODEL, "--requests", "4", "--output-tokens", "4", "--seed", "71")
    first = json.loads(harness("load", server, *words, "--json").stdout)["runs"][0]
    out = tmp_path / "again"
    harness("load", server, *words, "--out", str(out))

    [manifest] = (json.loads(path.read_text()) for path in out.glob("*/manifest.json"))
    (run,) = json.loads((out / "summary.json").read_text(encoding="utf-8"))["runs"]
    assert first["cache"]["answers_over_limit"] == 0
    assert manifest["cache"]["state"] == "as found"
    assert manifest["cache"]["answers_over_limit"] > 0
    assert manifest["status"] == "ok"
    assert "cache_not_cold" in {check["name"] for check in run["warnings"]}
