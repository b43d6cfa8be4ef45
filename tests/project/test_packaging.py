"""What is installed: one package, from a wheel or an sdist, whatever lies in the current folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT, STAND_INS

SOURCES = ("adapters", "examples", "harness", "results", "workloads")
SHADOWS = ("results", "adapters", "workloads", "numpy", "json", "asyncio")
SWEEP = """\
name: small
model: llama-3-8b
hardware: {gpu: h100-80gb, count: 1}
engines: [embedded]
toggles: [prefix_caching]
workloads:
  - {kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 64, output_tokens: 16}
load: [{concurrency: 4, requests: 16}]
blocks: 1
"""
SERVED = f"""\
name: served
model: stand-in
hardware: {{gpu: none, count: 1}}
engines:
  - engine: vllm
    runtime: {{command: ["{sys.executable}", "{STAND_INS / "stand_in_vllm.py"}", "-"]}}
workloads:
  - {{kind: shared-prefix, name: w, prefix_tokens: 64, suffix_tokens: 64, output_tokens: 4}}
load: [{{concurrency: 2, requests: 8}}]
blocks: 1
"""


def tree(folder: Path) -> Path:
    """Copy what a build reads, without the links that only type checkers follow."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "README.md", folder)
    for name in SOURCES:
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=lambda at, names: [
                one for one in names if one == "__pycache__" or (Path(at) / one).is_symlink()
            ],
        )
    return folder


def built(folder: Path, *kinds: str) -> Path:
    """Build in `folder` and return its only wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from an sdist."""
    return built(tree(tmp_path_factory.mktemp("sdist")))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `harness` of a new environment that has the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    paths = [sysconfig.get_path("purelib"), *(one for one in sys.path if "site-packages" in one)]
    Path(site.stdout.strip(), "dependencies.pth").write_text("\n".join(paths))
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    return folder / "bin" / "harness"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules end whoever imports them."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')\n")
    return tmp_path


def run(program: Path, folder: Path, *words: str, seconds: float = 90) -> str:
    """Run a command in `folder` and return what it printed; it must end well."""
    done = subprocess.run(
        [program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={key: text for key, text in os.environ.items() if key != "PYTHONPATH"},
    )
    busy = done.returncode == 1 and "INVALID" in done.stdout  # this machine, not the package
    assert done.returncode == 0 or busy, done.stdout[-2000:] + done.stderr[-2000:]
    assert "was imported" not in done.stderr
    return done.stdout


@pytest.fixture
def server(installed: Path, hostile: Path) -> Iterator[str]:
    """The address of `harness serve`, started in the hostile folder."""
    words = ["serve", "--port", "0", "--model", "llama-3-8b", "--gpu", "h100-80gb", "--count", "1"]
    with subprocess.Popen(
        [installed, *words], cwd=hostile, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
        process.terminate()
        assert process.wait(20) == 0


def test_a_wheel_holds_one_package(wheel: Path) -> None:
    """`adapters`, `results` and `workloads` are names that other projects install as well."""
    top = {name.partition("/")[0] for name in names(wheel)}

    assert top == {"harness", next(one for one in top if one.endswith(".dist-info"))}
    assert "harness/examples/quickstart.yaml" in names(wheel)
    assert "harness/results/report/page.html.j2" in names(wheel)


def test_every_source_file_is_in_the_wheel_of_the_sdist(wheel: Path) -> None:
    """The links of a checkout, which an sdist lacks, decide nothing."""
    expected = {
        str(path.relative_to(ROOT) if folder == "harness" else "harness" / path.relative_to(ROOT))
        for folder in SOURCES
        for pattern in ("*.py", "*.pyi")
        for path in (ROOT / folder).rglob(pattern)
        if "examples/cpu" not in str(path)
    }

    assert {name for name in names(wheel) if name.endswith((".py", ".pyi"))} == expected


def test_a_wheel_from_the_tree_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """`pip install .` and `pip install SDIST` install the same files."""
    assert names(built(tree(tmp_path), "--wheel")) == names(wheel)


@pytest.mark.alone
def test_an_installed_wheel_runs_serves_loads_and_reports(
    installed: Path, hostile: Path, server: str
) -> None:
    """Nothing of the source tree is needed, and nothing of the current folder is imported.

    The load is sent by two processes of their own.
    """
    (hostile / "sweep.yaml").write_text(SWEEP)

    run(installed, hostile, "run", "sweep.yaml", "--out", "swept")
    report = json.loads(run(installed, hostile, "report", "swept", "--json"))
    loaded = json.loads(
        run(installed, hostile, "load", server, "--model", "llama-3-8b", "--workers", "2",
            "--concurrency", "4", "--requests", "16", "--output-tokens", "8", "--json")
    )  # fmt: skip

    assert [one["status"] for one in report["runs"]] == ["ok"] * 3
    assert loaded["runs"][0]["metrics"]["completed"] == 16
    assert (hostile / "swept" / "report.html").stat().st_size > 10_000


@pytest.mark.alone
def test_a_served_engine_is_swept_from_any_folder(installed: Path, hostile: Path) -> None:
    """Neither the engine's guard nor the client imports what lies there."""
    (hostile / "served.yaml").write_text(SERVED)

    summary = json.loads(run(installed, hostile, "run", "served.yaml", "--json"))

    assert {one["metrics"]["completed"] for one in summary["runs"]} == {8}


@pytest.mark.alone
def test_a_calibration_starts_its_server_from_any_folder(installed: Path, hostile: Path) -> None:
    """The first step of the load is measured; then the calibration is interrupted."""
    with subprocess.Popen(
        [installed, "calibrate"], cwd=hostile, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(hostile)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        seen = ""
        while "64 streams" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        seen += process.stderr.read()
        assert process.wait(30) == 130

    assert "was imported" not in seen
    assert "Traceback" not in seen


@pytest.mark.parametrize("name", ["harness.load.worker", "harness.reference.server"])
def test_processes_of_our_own_start_with_a_safe_path(name: str) -> None:
    """`python -m` puts the current folder first on the path unless `-P` is given."""
    starts = [
        line.strip()
        for folder in ("adapters", "harness", "results", "workloads", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if f'"{name}"' in line and "executable" in line
    ]

    assert len(starts) == 1
    assert '"-P"' in starts[0]
