"""A terminal that is closed ends what runs in it, with all that it started."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from stand_in import SCRIPT, gone_within, processes_with

from harness.interrupts import ending_signals, interruptible

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="engines are started on Linux only"
)

SWEEP = """
name: closed
model: {model}
hardware: {{gpu: h200, count: 1}}
engines:
  - engine: vllm
    runtime: {{command: ["{python}", "{script}", "{faults}"]}}
base: {{max_model_len: 2048, max_num_seqs: 8}}
workloads:
  - {{kind: shared-prefix, prefix_tokens: 65, suffix_tokens: 40, output_tokens: 1000}}
load: [{{concurrency: 2, requests: 3000}}]
blocks: 1
"""
HARNESS = [sys.executable, "-P", "-m", "harness.cli"]


def in_a_terminal(shell: str, words: list[str], folder: Path) -> int:
    """Start a command in a terminal of its own, through `shell` or without; return its end."""
    command = " ".join(words)
    by_shell = {
        "none": words,
        "bash": ["bash", "--norc", "-i", "-c", f"{command}; true"],
        "job": ["bash", "--norc", "-i", "-c", f"{command} & wait"],
    }[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvp(by_shell[0], by_shell)  # noqa: S606  words of this test
    return terminal


@pytest.mark.parametrize(
    ("shell", "faults"),
    [
        ("none", "-"),
        ("none", "never-listens,ignores-sigterm,orphan"),
        ("bash", "ignores-sigterm,orphan"),
        ("job", "-"),
    ],
)
def test_a_closed_terminal_leaves_no_engine(shell: str, faults: str, tmp_path: Path) -> None:
    """Within ten seconds harness, guard, engine and workers are gone."""
    model = f"model-{uuid.uuid4().hex}"
    text = SWEEP.format(model=model, python=sys.executable, script=SCRIPT, faults=faults)
    (tmp_path / f"{model}.yaml").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    terminal = in_a_terminal(shell, [*HARNESS, "run", f"{model}.yaml", "--out", str(out)], tmp_path)
    deadline_s = time.monotonic() + 60
    while not any(out.glob("logs/*")) or len(processes_with(model)) < 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    time.sleep(1.5)

    os.close(terminal)

    assert gone_within(model, 10.0)


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    """Whoever starts a command so that it outlives the terminal means it."""
    code = (
        "import signal; from harness.interrupts import interruptible\n"
        "with interruptible():\n"
        "    signal.raise_signal(signal.SIGHUP); print('alive')\n"
    )
    words = [sys.executable, "-P", "-c", code]
    nohup = subprocess.run(["nohup", *words], capture_output=True, text=True, check=False)
    plain = subprocess.run(words, capture_output=True, text=True, check=False)

    assert "alive" in nohup.stdout
    assert "alive" not in plain.stdout
    assert "KeyboardInterrupt" in plain.stderr


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_every_ending_signal_is_an_interrupt(number: signal.Signals) -> None:
    """And its handler is as before, behind the block."""
    before = signal.getsignal(number)

    assert number in ending_signals()
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)

    assert signal.getsignal(number) == before
