"""`harness load` against servers whose answers are odd: what is kept, what is said, what fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from raw_server import Answer, good, raw_server, refused, stream
from streams import DONE, token, usage_event

from harness.cli import main

FEW = ("--model", "m", "--requests", "9", "--output-tokens", "4")


def loaded(
    answer: Answer, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any]]:
    """The exit code of a load and its summary."""
    with raw_server(answer) as server:
        code = main(["load", server.url, *FEW, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def printed(answer: Answer, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The block that a load prints."""
    with raw_server(answer) as server:
        main(["load", server.url, *FEW, *words])
    return capsys.readouterr().out


def now_and_then(odd: bytes) -> Answer:
    """Every third request is answered oddly, none before the load."""
    asked_so_far: list[int] = []

    def answer(asked: dict[str, Any]) -> bytes:
        asked_so_far.append(asked["max_tokens"])
        return odd if len(asked_so_far) % 3 == 0 else good(asked)

    return answer


DEEP = b"data: " + b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
TWO = (token("a"), token("b", finish="length"))


@pytest.mark.parametrize(
    ("odd", "failures"),
    [
        (stream(*TWO, usage_event(10**30), DONE), {}),
        (stream(*TWO, usage_event(-(10**25)), DONE), {}),
        (stream(token("a"), DEEP, DONE), {"bad_body": 3}),
        (stream(*TWO, b'data: {"id":"\\ud800","choices":[]}\n\n', DONE), {}),
        (stream(token("a"), b'data: {"error":"\\ud800"}\n\n', DONE), {"error_event": 3}),
        (stream(token("a", finish="\ud800".encode("utf-8", "replace").decode()), DONE), {}),
        (stream(token("a"), b'data: {"n":' + b"9" * 10_000 + b"}\n\n", DONE), {"bad_body": 3}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", {"bad_body": 3}),
    ],
)
def test_one_odd_answer_loses_none_of_the_others(
    odd: bytes, failures: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts beyond all sense, nesting beyond all sense, half characters: all is stored."""
    code, summary = loaded(now_and_then(odd), capsys, "--timeout", "20 s")

    (run,) = summary["runs"]
    failed = sum(failures.values())
    assert run["metrics"]["failures"] == failures
    assert (run["counts"]["ok"], run["counts"]["failed"]) == (9 - failed, failed)
    assert code == 1 or not failed


def test_a_count_that_cannot_be_is_not_believed(capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand million tokens where four were asked: the events are counted, and that is said."""
    odd = stream(*[token("a")] * 3, token("a", finish="length"), usage_event(10**9), DONE)
    _, summary = loaded(lambda _: odd, capsys)

    (run,) = summary["runs"]
    checks = {check["name"] for check in run["warnings"]}
    assert run["counts"]["output_tokens"] == 36
    assert "usage_unbelieved" in checks
    assert "prompt_tokens_differ" in checks  # 20 where 128 went out


def test_what_failed_requests_said_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sample a kind, in print, in JSON and in the report; no terminal is made to obey it."""
    out = tmp_path / "kept"
    words = "no \x1b[31mred\nseed" + "x" * 500

    block = printed(lambda _: refused(words), capsys, "--out", str(out))
    main(["report", str(out)])
    report = capsys.readouterr().out

    (run,) = json.loads((out / "summary.json").read_text(encoding="utf-8"))["runs"]
    sample = run["failure_samples"]["http_400"]
    assert sample.startswith("no \\x1b[31mred seedxxx")
    assert len(sample) == 201
    said = " ".join(block.split())  # a sentence may take several lines
    assert f"failed: 9 × http_400, such as: {sample}" in said
    assert "the server refuses what is sent as seed" in said
    assert "http_400, such as: no \\x1b[31mred" in report
    assert "\x1b" not in block


def test_where_everything_failed_no_figure_is_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    """No window, no rate of 0.00, no word of P99: the failures are the result."""
    block = printed(lambda _: refused("out of order", "500 Oops"), capsys)

    assert "such as: out of order" in block
    assert "note: nothing could be measured: no run is ok" in block
    assert "0.00 " not in block.partition("Total generated")[2]
    assert "Request throughput (req/s):                      –" in block
    assert not {"window", "P99 rests"} & {word for word in ("window", "P99 rests") if word in block}


def test_the_rates_can_be_worked_out_from_what_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Requests and tokens of the window over its length are the rates beside them."""
    with raw_server(good, pause_s=0.05) as server:
        main(["load", server.url, "--model", "m", "--requests", "24", "--concurrency", "2"])
    lines = dict(
        line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines() if line.count("  ")
    )
    figures = {name.strip(): float(text.replace(",", "")) for name, text in lines.items()
               if text.replace(",", "").replace(".", "").isdigit()}  # fmt: skip

    length_s = figures["Measured window (s):"]
    output = figures["Output tokens in the window:"]
    prompt = figures["Input tokens in the window:"]
    rates = {
        "Request throughput (req/s):": figures["Requests ended in the window:"],
        "Output token throughput (tok/s):": output,
        "Total token throughput (tok/s):": output + prompt,
    }
    assert length_s < figures["Benchmark duration (s):"]
    for name, amount in rates.items():
        assert figures[name] == pytest.approx(amount / length_s, rel=0.02)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_good_as_none(tmp_path: Path, closed: str) -> None:
    """The load is done and stored; no socket comes to stand where something is printed."""
    out = tmp_path / "kept"
    with raw_server() as server:
        line = f'"{sys.executable}" -m harness.cli load {server.url} --out "{out}" {closed}'
        ran = subprocess.run(
            ["sh", "-c", f"exec {line} {' '.join(FEW)}"],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    assert ran.returncode in (0, 1)  # 1: too busy a machine for its client to be believed
    assert "Traceback" not in ran.stderr
    assert (out / "summary.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("full", ["", "2"])
def test_a_full_disk_is_told_where_there_is_room(tmp_path: Path, full: str) -> None:
    """Where stdout takes nothing, one line and 1; where stderr does not, nothing is lost."""
    out = tmp_path / "kept"
    with raw_server() as server:
        line = f'"{sys.executable}" -m harness.cli load {server.url} --out "{out}" {" ".join(FEW)}'
        ran = subprocess.run(
            ["sh", "-c", f"exec {line} {full}>/dev/full"],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    assert ran.returncode in (0, 1)
    assert "Traceback" not in ran.stderr
    assert ("the output cannot be written" in ran.stderr) == (not full)
    assert ("Serving Benchmark Result" in ran.stdout) == bool(full)
    assert (out / "summary.json").is_file()
