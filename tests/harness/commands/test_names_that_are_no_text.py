"""A name that is not UTF-8 is refused before anything runs, whatever it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sweep_file import SpecError, load_sweep
from tests.harness.commands.test_report import SWEEP


def in_bytes(*words: bytes, cwd: Path) -> tuple[int, bytes]:
    """Return exit code and stderr of a command, in a UTF-8 locale."""
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    for name in ("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE"):
        env.pop(name, None)
    command = [os.fsencode(sys.executable), b"-P", b"-m", b"harness.cli", *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        (b"run", b"caf\xe9.yaml"),
        (b"plan", b"caf\xe9.yaml"),
        (b"run", b"sweep.yaml", b"--out", b"\xff\xfe"),
        (b"run", b"sweep.yaml", b"--out", b"r\xe9sultats/one"),
        (b"report", b"r\xe9sultats"),
        (b"report", b"out", b"--out", b"\x80"),
        (b"diagnose", b"\xc3"),
        (b"load", b"http://127.0.0.1:1", b"--model", b"m\xe9"),
        (b"load", b"http://127.0.0.1:1", b"--model", b"m", b"--workload", b"trace:\xe9.jsonl"),
        (b"load", b"http://127.0.0.1:1", b"--model", b"m", b"--out", b"\xed\xa0\x80"),
        (b"calibrate", b"--out", b"\xe9.json"),
    ],
)
def test_a_name_is_refused(tmp_path: Path, words: tuple[bytes, ...]) -> None:
    """One line that shows it in signs that any terminal has; nothing was made."""
    for name in (b"caf\xe9.yaml", b"sweep.yaml"):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_text(SWEEP)
    before = names(tmp_path)

    code, error = in_bytes(*words, cwd=tmp_path)

    assert code == 2
    assert b"is not UTF-8" in error
    assert b"Traceback" not in error
    assert error.isascii()
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    "line",
    ['name: "\\udce9"', "name: ${ODD}", 'name: "a\\ud800b"', 'name: [x, "${ODD}"]'],
)
def test_a_value_of_a_sweep_is_refused(tmp_path: Path, line: str) -> None:
    """An escape or a variable may hold half a character too."""
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.replace("name: small", line))

    with pytest.raises(SpecError, match="this is not UTF-8") as caught:
        load_sweep(path, environment={"ODD": "caf\udce9"})

    assert str(caught.value).encode()
