"""Names and numbers of thousands of signs, pipes and devices: one line, no traceback, no wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import harness

from tests.harness.commands.test_report import SWEEP

LONG, DIGITS = "a" * 5000, "9" * 5000
LOAD = ("load", "http://127.0.0.1:1", "--model", "m", "--wait", "0.1 s")


def refused(*words: str) -> None:
    done = harness(*words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 2000


@pytest.mark.parametrize(
    "words",
    [
        ("plan", LONG),
        ("report", LONG),
        ("capacity", "--model", LONG),
        ("serve", "--port", DIGITS),
        ("load", f"http://{'h' * 300}:80", "--model", "m", "--wait", "0.1 s"),
        ("load", "http://127.0.0.1:1", "--model", LONG),
        (*LOAD, "--requests", DIGITS),
        (*LOAD, "--rate", DIGITS, "--duration", "1 s"),
        (*LOAD, "--duration", DIGITS, "--rate", "1"),
    ],
)
def test_an_argument_of_thousands_of_signs_is_refused(words: tuple[str, ...]) -> None:
    """Whatever it is for."""
    refused(*words)


@pytest.mark.parametrize(
    ("part", "by"),
    [
        ("model: llama-3-8b", f"model: {LONG}"),
        ("requests: 8", f"requests: {DIGITS}"),
        ("blocks: 1", f"blocks: -{DIGITS}"),
        ("blocks: 1", f"blocks: 1e{DIGITS}"),
        ("blocks: 1", f"blocks: 1\nslo: {{ttft: {DIGITS} s}}"),
        ("name: small", f"name: {LONG}"),
    ],
)
def test_a_value_of_thousands_of_signs_is_refused(tmp_path: Path, part: str, by: str) -> None:
    """With its place in the file."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.replace(part, by), encoding="utf-8")

    refused("plan", str(path))


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
@pytest.mark.parametrize("use", ["sweep", "trace", "tokenizer", "profile", "path"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str, use: str) -> None:
    """A pipe and a device have no end that one could wait for."""
    file = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(file)
    if kind == "folder":
        file.mkdir()
    sweep = tmp_path / "sweep.yaml"
    engine = f"engines: [{{engine: embedded, profile: {file}}}]"
    trace = f"workloads: [{{kind: trace, name: t, path: {file}}}]"
    if use == "profile":
        sweep.write_text(SWEEP.replace("engines: [embedded]", engine), encoding="utf-8")
    elif use == "path":
        lines = SWEEP.splitlines()
        text = "\n".join(trace if one.startswith("workloads") else one for one in lines)
        sweep.write_text(text, encoding="utf-8")
    words = {
        "sweep": ("plan", str(file)),
        "trace": (*LOAD, "--workload", f"trace:{file}"),
        "tokenizer": (*LOAD, "--tokenizer", str(file)),
    }

    refused(*words.get(use, ("plan", str(sweep))))
