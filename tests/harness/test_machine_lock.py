"""One measuring sweep per machine and user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import harness
from repository import STAND_INS

from harness.machine_lock import MachineBusyError, lock_path, measuring
from harness.results.store.sweep_folder import read_runs

HOLD = """
import sys
from harness.machine_lock import measuring
with measuring():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_LOCK", str(tmp_path / "lock"))
    return tmp_path / "lock"


def test_a_second_sweep_is_refused_and_told_who_measures(lock: Path) -> None:
    """The message names the process, the way around, and the lock file."""
    with measuring(), pytest.raises(MachineBusyError) as caught, measuring():
        pass

    assert f"process {os.getpid()}" in str(caught.value)
    notes = "\n".join(caught.value.__notes__)
    assert "--share-machine" in notes
    assert str(lock) in notes


@pytest.mark.usefixtures("lock")
def test_a_shared_machine_is_allowed_and_named() -> None:
    """`--share-machine` goes on, and learns who else measures."""
    with measuring() as alone, measuring(share=True) as holder:
        assert alone is None
        assert holder == f"process {os.getpid()}"


@pytest.mark.usefixtures("lock")
def test_the_lock_ends_with_the_sweep() -> None:
    """One sweep after the other is the usual case."""
    for _ in range(2):
        with measuring() as holder:
            assert holder is None


@pytest.mark.usefixtures("lock")
def test_a_killed_sweep_leaves_no_lock() -> None:
    """The system frees the lock of a process that ends, even by SIGKILL."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(MachineBusyError, match=f"process {other.pid}"), measuring():
            pass
        other.kill()

    with measuring() as holder:
        assert holder is None


def test_a_folder_that_cannot_be_written_stops_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a place for the file is measured all the same."""
    monkeypatch.setenv("HARNESS_LOCK", "/proc/none/lock")

    with measuring() as holder:
        assert holder is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HARNESS_LOCK": "/a/b"}, "/a/b"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, f"/run/user/7/harness-{os.getuid()}.lock"),
    ],
)
def test_the_lock_file_is_found_by_user(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    """Each user has one; `HARNESS_LOCK` names another."""
    for name in ("HARNESS_LOCK", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert lock_path() == Path(expected)


SWEEP = """\
name: locked
model: stand-in
hardware: {{gpu: none, count: 1}}
engines:
  - engine: vllm
    runtime: {{command: ["{python}", "{program}", "-"]}}
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 64, output_tokens: 4}}
load: [{{concurrency: 2, requests: 8}}]
blocks: 1
"""


@pytest.mark.usefixtures("lock")
def test_harness_run_takes_the_lock(tmp_path: Path) -> None:
    """While another sweep measures it is refused, exit 2, nothing written; shared, it is marked."""
    sweep, out = tmp_path / "sweep.yaml", tmp_path / "out"
    program = STAND_INS / "stand_in_vllm.py"
    sweep.write_text(SWEEP.format(python=sys.executable, program=program))

    with measuring():
        refused = harness("run", str(sweep), "--out", str(out))
        written = out.exists()
        harness("run", str(sweep), "--out", str(out), "--share-machine")

    assert (refused.returncode, written) == (2, False)
    assert f"another sweep measures on this machine (process {os.getpid()})" in refused.stderr
    notes = [run.manifest.notes for run in read_runs(out)]
    assert len(notes) == 2
    assert all("--share-machine" in "".join(one) for one in notes)


@pytest.mark.usefixtures("lock")
def test_virtual_time_takes_no_lock(tmp_path: Path) -> None:
    """The embedded engine's runs disturb nobody's times."""
    text = SWEEP.replace("vllm\n", "embedded\n").format(python="", program="")
    sweep = tmp_path / "sweep.yaml"
    lines = [line for line in text.splitlines() if "runtime" not in line]
    sweep.write_text(
        "\n".join(lines).replace("stand-in", "llama-3-8b").replace("none", "h100-80gb")
    )

    with measuring():
        ran = harness("run", str(sweep), "--out", str(tmp_path / "out"))

    assert ran.returncode == 0, ran.stderr
