"""`harness report` where the sweep lies on a disk that takes nothing, and elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import harness

SWEEP = """
name: small
model: llama-3-8b
hardware: {gpu: a100-80gb, count: 1}
engines: [embedded]
toggles: [prefix_caching]
workloads: [{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 16, output_tokens: 4}]
load: [{concurrency: 2, requests: 8}]
blocks: 1
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sweep that has no report any more."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    done = harness("run", str(folder / "sweep.yaml"), "--out", str(folder / "out"))
    assert done.returncode == 0, done.stderr
    for path in (folder / "out").iterdir():
        if path.is_file() and path.name != "sweep.json":
            path.unlink()
    return folder / "out"


@pytest.mark.parametrize(
    "taken", [".summary.json.partial", ".summary.csv.partial", ".report.html.partial", "plots"]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_written_is_shown_all_the_same(
    stored: Path, tmp_path: Path, taken: str, as_json: bool
) -> None:
    """With the reason and what to do; a folder of that name is as good as a read-only disk."""
    folder = tmp_path / "out"
    shutil.copytree(stored, folder)
    names = [taken] if taken != "plots" else ["effects.png", "throughput.png", "ttft.png"]
    if taken == "plots":
        harness("report", str(folder))
        names = [path.name for path in folder.glob("*.png")]
        for name in names:
            (folder / name).unlink()
    for name in names:
        (folder / name).mkdir()

    done = harness("report", str(folder), *(["--json"] if as_json else []))

    assert done.returncode == 0
    assert "the page was not written" in (done.stderr if as_json else done.stdout)
    assert "--out DIR" in (done.stderr if as_json else done.stdout)
    assert "Traceback" not in done.stderr
    if as_json:
        assert json.loads(done.stdout)["name"] == "small"
    else:
        assert "TTFT" in done.stdout


def test_a_report_is_written_into_another_folder(stored: Path, tmp_path: Path) -> None:
    """Only there; one that exists is refused, as is one that cannot be made."""
    before = sorted(stored.iterdir())
    out = tmp_path / "below" / "elsewhere"

    first, again = (harness("report", str(stored), "--out", str(out)) for _ in range(2))
    (tmp_path / "file").touch()
    below_a_file = harness("report", str(stored), "--out", str(tmp_path / "file" / "x"))

    assert first.returncode == 0
    assert f"wrote {out}" in first.stdout
    assert {"report.html", "summary.json", "summary.csv"} <= {path.name for path in out.iterdir()}
    assert sorted(stored.iterdir()) == before
    assert (again.returncode, below_a_file.returncode) == (2, 2)
    assert "exists already" in again.stderr
    assert "cannot be written" in below_a_file.stderr


def test_a_home_that_takes_nothing_costs_no_warning(stored: Path, tmp_path: Path) -> None:
    """Matplotlib keeps its list of fonts in a folder of this user's, once for all commands."""
    home = tmp_path / "home"
    home.touch()  # a file: nothing can be made below it
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "HOME": str(home), "TMPDIR": str(tmp_path / "tmp"), "MPLCONFIGDIR": ""}
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        env.pop(name, None)
    words = [sys.executable, "-P", "-m", "harness.cli", "report", str(stored), "--out"]

    done = subprocess.run(
        [*words, str(tmp_path / "out")], env=env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    assert "atplotlib" not in done.stderr
    (folder,) = (tmp_path / "tmp").glob("*matplotlib*")
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.glob("fontlist*.json"))


@pytest.mark.parametrize(
    ("value", "by"),
    [
        ('"label": "embedded"', '"label": 7'),
        ('"block": 0', '"block": "first"'),
        ('"block": 0', f'"block": {"9" * 5000}'),
        ('"block": 0', f'"block": {"[" * 50_000}{"]" * 50_000}'),
        ('"notes": [', '"notes": 3, "more": ['),
    ],
)
@pytest.mark.parametrize("command", ["report", "diagnose"])
def test_a_stored_value_of_another_type_is_refused(
    stored: Path, tmp_path: Path, command: str, value: str, by: str
) -> None:
    """With the file, and what to do with it."""
    shutil.copytree(stored, tmp_path / "out")
    manifest = next((tmp_path / "out").glob("*/manifest.json"))
    text = manifest.read_text(encoding="utf-8")
    assert value in text
    manifest.write_text(text.replace(value, by, 1), encoding="utf-8")

    done = harness(command, str(tmp_path / "out"))

    assert done.returncode == 2
    assert f"{manifest}: cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
