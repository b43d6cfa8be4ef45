"""Where an engine's program is, what version lies there, and which environment it gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.adapters.base import EngineError
from harness.adapters.process.programs import (
    engine_env,
    env_for_report,
    installed_version,
    program_words,
)
from harness.adapters.runtime import Runtime


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return an environment that holds a program of the name `engine`."""
    program = tmp_path / "venv" / "bin" / "engine"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for metadata in ("engine_cpu-1.2.3.dist-info", "Other-9.dist-info"):
        (packages / metadata).mkdir(parents=True)
    return tmp_path / "venv"


def test_an_environment_and_a_path_name_the_same_program(venv: Path) -> None:
    """Both kinds of runtime give a full path, so that the plan shows what will be started."""
    program = venv / "bin" / "engine"

    assert program_words("engine", Runtime(venv=venv)) == (str(program),)
    assert program_words("engine", Runtime(path=program)) == (str(program),)


def test_a_command_is_taken_word_by_word() -> None:
    """Its first word is looked up on PATH, the others stay as they are."""
    words = program_words("engine", Runtime(command=("env", "A=1", "engine")))

    assert words == (next(iter(program_words("env", None))), "A=1", "engine")
    assert Path(words[0]).is_absolute()


def test_without_a_runtime_path_is_searched(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user's shell would start is started."""
    monkeypatch.setenv("PATH", str(venv / "bin"))

    assert program_words("engine", None) == (str(venv / "bin" / "engine"),)


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (None, "there is no program engine on PATH"),
        (Runtime(venv=Path("/nowhere")), "runtime.venv: there is no program /nowhere/bin/engine"),
        (Runtime(path=Path("/nowhere/engine")), "runtime.path: there is no program /nowhere/engin"),
        (Runtime(command=("no-such-word", "x")), "runtime.command: there is no program no-such-w"),
    ],
)
def test_a_program_that_is_not_there_is_named(runtime: Runtime | None, message: str) -> None:
    """The plan already says so, and which key of the sweep file to look at."""
    with pytest.raises(EngineError, match=message) as caught:
        program_words("engine", runtime)

    if runtime is None:
        assert "runtime takes path, venv or command" in caught.value.__notes__[0]


def test_a_runtime_is_one_thing() -> None:
    """Two places for one program are a mistake, and so is none."""
    with pytest.raises(ValueError, match="one of path, venv, command and docker"):
        Runtime(path=Path("a"), venv=Path("b"))
    with pytest.raises(ValueError, match="one of path, venv, command and docker"):
        Runtime()


def test_the_version_is_read_without_starting_anything(venv: Path) -> None:
    """Metadata beside the program tells; the first package asked for wins."""
    words = program_words("engine", Runtime(venv=venv))

    assert installed_version(words, ("engine", "engine_cpu")) == ("engine_cpu", "1.2.3")
    assert installed_version(("wrapper", *words), ("other", "engine_cpu")) == ("other", "9")
    assert installed_version(words, ("nothing",)) is None
    assert installed_version(("wrapper",), ("engine_cpu",)) is None


def test_a_link_to_a_program_leads_to_its_version(venv: Path, tmp_path: Path) -> None:
    """A program that was linked into a folder of PATH is still that environment's."""
    link = tmp_path / "bin" / "engine"
    link.parent.mkdir()
    link.symlink_to(venv / "bin" / "engine")

    assert installed_version((str(link),), ("engine_cpu",)) == ("engine_cpu", "1.2.3")


def test_an_engine_gets_an_environment_of_its_own(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the modules of harness's Python; its own folder first on PATH; the author's word last."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("SOME_OTHER", "kept")
    words = program_words("engine", Runtime(venv=venv))

    env = engine_env(words, {"ENGINE_A": "ours", "ENGINE_B": "ours"}, {"ENGINE_B": "author's"})

    assert "PYTHONPATH" not in env
    assert env["PATH"] == f"{venv / 'bin'}{os.pathsep}/usr/bin"
    assert (env["SOME_OTHER"], env["ENGINE_A"], env["ENGINE_B"]) == ("kept", "ours", "author's")


def test_a_report_shows_what_matters_and_no_secret() -> None:
    """Variables of the engine are kept for whoever repeats a run; a key's value is not."""
    env = {"HF_TOKEN": "x", "HF_HOME": "/h", "PATH": "/bin", "VLLM_API_KEY": "y"}

    told = env_for_report(env, ("HF_", "VLLM_"))

    assert told == {"HF_HOME": "/h", "HF_TOKEN": "(not shown)", "VLLM_API_KEY": "(not shown)"}
