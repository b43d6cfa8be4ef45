from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from repository import ROOT
from rich.console import Console
from sweep_files import write

from harness import __version__
from harness.adapters.embedded.adapter import EmbeddedAdapter
from harness.cli import main
from harness.commands import sweeps
from harness.experiment.sweep import SweepRunner
from harness.plan.make import make_plan
from harness.plan.planned import PlannedRun
from harness.progress import LiveProgress
from harness.quickstart import quickstart
from harness.results.store.sweep_folder import StoreError
from harness.sweep_file import load_sweep

TINY = {
    "model": "llama-3-8b",
    "hardware": "{gpu: a100-80gb, count: 1}",
    "toggles": "[cuda_graphs, prefix_caching]",
    "load": "[{concurrency: 2, requests: 8}]",
    "blocks": "2",
}


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_needs_nothing_heavy() -> None:
    """`harness --help` answers at once: what takes time to import comes with a command."""
    heavy = {"numpy", "pandas", "pydantic", "rich", "yaml", "matplotlib", "pyarrow", "scipy"}
    code = "import sys, harness.cli; harness.cli._parser().format_help(); print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("capacity", {"aiohttp", "pandas", "pydantic", "scipy", "uvloop"}),
        ("plan", {"aiohttp", "jinja2", "matplotlib", "uvloop"}),
        ("load", {"jinja2", "matplotlib"}),
        ("fit", {"jinja2", "matplotlib"}),
    ],
)
def test_a_command_imports_only_what_it_needs(command: str, unneeded: set[str]) -> None:
    """Nobody waits for libraries of another command that a folder's `__init__` would import."""
    code = f"import sys; from harness.commands import command; command({command!r})"

    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )

    assert not unneeded & set(done.stdout.split())


def test_version_and_help_say_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is the package's; help lists the commands and what exit codes mean."""
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as ended:
            main([option])
        assert ended.value.code == 0

    text = capsys.readouterr().out
    assert f"harness {__version__}" in text
    assert all(word in text for word in ("run", "plan", "report", "130  interrupted"))


@pytest.mark.parametrize("arguments", [[], ["fly"], ["plan"], ["report"], ["run", "--speed"]])
def test_wrong_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that says nothing useful starts nothing."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage: harness" in capsys.readouterr().err


def test_run_plan_and_report_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is planned is run and stored, and a report of it prints the same document again."""
    path = str(write(tmp_path, **TINY))

    assert main(["plan", path, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["run", path, "--out", "out", "--json"]) == 0
    ran = capsys.readouterr()
    assert main(["report", "out", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)

    summary = json.loads(ran.out)
    assert "wrote out" in ran.err
    keys = sorted(run["key"] for run in planned["planned"])
    assert keys == sorted(run["key"] for run in summary["runs"])
    assert len(keys) == 8
    assert {run["status"] for run in summary["runs"]} == {"ok"}
    assert summary["simulated"] is True
    assert reported == summary
    assert {"report.html", "summary.json", "summary.csv", "sweep.json"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }


def test_only_runs_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The chosen arm and its baselines run; progress and paths stay off stdout."""
    path = str(write(tmp_path, **TINY))

    assert main(["run", path, "--only", "*caching*", "--json"]) == 0

    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert {run["arm"] for run in summary["runs"]} == {
        "baseline", "baseline-again", "prefix_caching=off",
    }  # fmt: skip
    assert "6 of 6 runs" in captured.err
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("sweep-2")
    assert f"wrote runs/{folder.name}" in captured.err


@pytest.mark.parametrize(
    ("sections", "arguments", "told"),
    [
        ({"engines": "[vlm]"}, [], "engines[0]: found 'vlm'"),
        ({"model": "llama-4-9000b"}, [], "embedded: the baseline cannot start: "),
        ({"hardware": "{gpu: a100-8gb}"}, [], "a100-8gb"),
        ({"model": "llama-3-70b", "hardware": "{gpu: l40s}"}, [], "GiB"),
        ({"base": "{max_model_len: 20}"}, [], "longer than"),
        ({}, ["--only", "nothing"], "--only 'nothing' matches no run"),
        ({}, ["--out", "there"], "--out there: exists already"),
    ],
)
def test_what_is_wrong_beforehand_is_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sections: dict[str, str],
    arguments: list[str],
    told: str,
) -> None:
    """One clear message on stderr, nothing on stdout, nothing half-written."""
    (tmp_path / "there").mkdir()
    path = str(write(tmp_path, **{**TINY, **sections}))

    code = main(["run", path, *(arguments or ["--out", "new"]), "--json"])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert told in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "runs").exists()
    assert list((tmp_path / "there").iterdir()) == []


def test_every_problem_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several problems are several errors; notes stand indented below."""
    path = write(tmp_path, **{**TINY, "blocks": "0", "seed": "-1"})

    assert main(["plan", str(path)]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0:2] for line in lines] == [["error", str(path)]] * 2


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_report_of_no_sweep_is_exit_2(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is missing, or holds no sweep, is told so."""
    assert main(["report", folder]) == 2

    assert capsys.readouterr().err.startswith(f"error: {folder}: ")


def broken_sweep(error: BaseException) -> Callable[..., object]:
    """Return a sweep's `run` that stores its folder and then breaks."""

    def run(self: SweepRunner, progress: object) -> bool:
        self._directory.mkdir(parents=True)
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StoreError("the disk is full"), 1, "error: the disk is full\n"),
        (KeyboardInterrupt(), 130, "interrupted\n  no run had finished\n"),
    ],
)
def test_what_breaks_a_sweep_under_way_has_its_own_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    told: str,
) -> None:
    """1 and 130 mean that something was begun, and is there."""
    monkeypatch.setattr(SweepRunner, "run", broken_sweep(error))

    assert main(["run", str(write(tmp_path, **TINY)), "--out", "out"]) == code

    assert capsys.readouterr().err == told


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only foreseen errors become messages; a bug that looked like one would never be mended."""
    monkeypatch.setattr(SweepRunner, "run", broken_sweep(ZeroDivisionError("a bug")))

    with pytest.raises(ZeroDivisionError):
        main(["run", str(write(tmp_path, **TINY)), "--out", "out"])


def shown(summary: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(summary=summary, folder=Path("out"), unwritten=None)


def with_statuses(*statuses: str) -> SimpleNamespace:
    """Return a summary of runs that are known by their status alone."""
    runs = [SimpleNamespace(status=status, metrics=None) for status in statuses]
    return SimpleNamespace(runs=runs, document=dict)


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("skipped", 0), ("failed", 1), ("void", 1)]
)
def test_the_exit_code_is_what_the_runs_came_to(
    monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    """A script can trust 0: no run failed or was void."""
    monkeypatch.setattr(sweeps, "rebuild", lambda *_: shown(with_statuses("ok", status)))

    assert main(["report", "out", "--json"]) == code


def test_a_reader_that_has_gone_is_no_bug() -> None:
    """`harness plan … | head -1` ends without a traceback."""
    command = [sys.executable, "-P", "-m", "harness.cli", "plan", str(quickstart()), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()

    assert (told, process.returncode) == ("", 0)


def test_the_quickstart_is_what_the_readme_says() -> None:
    """15 arms, two workloads at concurrency 1 and 100, three blocks; the engine takes them all."""
    plan = make_plan(load_sweep(quickstart()), {"embedded": EmbeddedAdapter()})

    assert len(plan.arms) == 15
    assert len(plan.planned) == len(plan.runs) == 180
    asked = {(demand.workload, demand.load.label): demand for demand in plan.demands}
    assert {key: demand.requests for key, demand in asked.items()} == {
        ("support-bot", "concurrency=1"): 20,
        ("support-bot", "concurrency=100"): 400,
        ("chat", "concurrency=1"): 21,  # whole chats of 3 turns
        ("chat", "concurrency=100"): 402,
    }
    assert plan.expected is not None
    assert plan.expected.wall_s < 60


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n' * 2,
            600,
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,600,9\n", 0),
    ],
)
def test_the_trace_example_takes_either_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shared: int
) -> None:
    """`TRACE=… harness run examples/trace.yaml` plays Mooncake's form and Azure's."""
    (tmp_path / "t").write_text(text)
    monkeypatch.setenv("TRACE", "t")

    plan = make_plan(load_sweep(ROOT / "examples/trace.yaml"), {"embedded": EmbeddedAdapter()})

    assert [arm.name for arm in plan.arms] == ["baseline", "baseline-again", "prefix_caching=off"]
    assert plan.demands[0].shared_tokens == shared
    assert len(plan.planned) == 3


def test_every_package_and_the_quickstart_travel_in_a_wheel() -> None:
    """Packages are listed by hand, so that `examples` can be one; none may be forgotten."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    listed = set(tools["setuptools"]["packages"])
    found = {
        ".".join(("harness", *path.parent.relative_to(ROOT).parts)).replace(
            "harness.harness", "harness"
        )
        for name in ("adapters", "harness", "results", "workloads")
        for path in (ROOT / name).rglob("__init__.py")
    }

    assert listed == found | {"harness.examples"}
    assert tools["setuptools"]["package-dir"] == {
        f"harness.{name}": name for name in ("adapters", "examples", "results", "workloads")
    }


def test_a_failed_run_leaves_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Progress off a terminal says how far it is and which runs went wrong, on its own stream."""
    plan = make_plan(load_sweep(write(tmp_path, **TINY)), {"embedded": EmbeddedAdapter()})
    runs: tuple[PlannedRun, ...] = plan.planned[:2]
    with LiveProgress(Console(stderr=True), 2) as progress:
        for run, status in zip(runs, ("ok", "void"), strict=True):
            progress.started(run, 8)
            progress.ended(run, status)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        f"void: embedded: {runs[1].arm.name} · shared-prefix · concurrency=2"
    )
    assert lines[1].startswith("2 of 2 runs")


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["ok", "interrupted"], 0),
        (["interrupted", "interrupted"], 1),
        (["skipped"], 1),
        (["interrupted", "invalid", "ok"], 1),
    ],
)
def test_a_report_with_gaps_is_good_where_something_was_measured(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: list[str],
    code: int,
) -> None:
    """Gaps alone are told and are no fault; nothing measured at all is one."""
    monkeypatch.setattr(sweeps, "rebuild", lambda *_: shown(with_statuses(*statuses)))

    assert main(["report", "out", "--json"]) == code

    gaps, told = statuses.count("interrupted"), capsys.readouterr().err
    stored = f"{len(statuses) - gaps} of {len(statuses)} planned runs are stored"
    assert (stored in told) == bool(gaps)


def test_an_option_stands_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two patterns one would be dropped in silence."""
    with pytest.raises(SystemExit) as ended:
        main(["run", "--only", "a", "--only", "b"])

    assert ended.value.code == 2
    assert "--only is given twice; give it once" in capsys.readouterr().err


def test_a_file_is_no_sweeps_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`harness report FILE` says what it was given."""
    assert main(["report", str(write(tmp_path, **TINY))]) == 2

    assert capsys.readouterr().err.endswith(": is a file; expected the folder of a sweep\n")


def test_a_folder_name_that_no_disk_takes_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of 400 letters is wrong before anything started."""
    assert main(["run", str(write(tmp_path, **TINY)), "--out", "x" * 400]) == 2

    assert "cannot be written: " in capsys.readouterr().err
