"""An engine's program on this machine: the words that start it, its version, its environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.adapters.base import EngineError
from harness.adapters.process.environments import install_command
from harness.adapters.process.shown_texts import HIDDEN, is_secret, without_accounts
from harness.adapters.runtime import Runtime

# Those of harness's own Python: an engine has an environment of its own.
_OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")


class MissingProgramError(EngineError):
    """A program that is not on this machine: a plan does without it, a run cannot."""

    def __init__(self, message: str, words: tuple[str, ...]) -> None:
        super().__init__(message)
        self.words = words  # that start it on a machine that has it


def program_words(name: str, runtime: Runtime | None, engine: str | None = None) -> tuple[str, ...]:
    """Return the words that start the program `name`, by full path where one is known.

    `engine` is its engine's name in sweep files, where that is another. Raises
    `MissingProgramError` when there is no such program.
    """
    if runtime is None:
        found = shutil.which(name)
        if found is None:
            error = MissingProgramError(f"there is no program {name} on PATH", (name,))
            error.add_note(
                f"say where it is: engines: [{{engine: {engine or name}, "
                "runtime: {venv: FOLDER}}]; runtime takes path, venv or command"
            )
            raise error
        return (found,)
    if runtime.docker is not None:
        return (name,)  # in the image
    if not runtime.here:
        return runtime.command
    if runtime.command:
        first = shutil.which(runtime.command[0])
        if first is None:
            raise MissingProgramError(
                f"runtime.command: there is no program {runtime.command[0]}", runtime.command
            )
        return (first, *runtime.command[1:])
    kind, given = ("path", runtime.path) if runtime.venv is None else ("venv", runtime.venv)
    program = Path(given or "").expanduser().absolute() / (f"bin/{name}" if kind == "venv" else "")
    make = install_command(program.parent.parent) if kind == "venv" else None
    if make is not None or not program.is_file() or not os.access(program, os.X_OK):
        error = MissingProgramError(
            f"runtime.{kind}: there is no program {program}", (str(program),)
        )
        if kind == "venv":
            error.add_note(make or f"is {name} installed in that environment?")
        raise error
    return (str(program),)


def installed_version(words: Sequence[str], packages: Sequence[str]) -> tuple[str, str] | None:
    """Return (package, version) of the first of `packages` in the environment of a program.

    Read from the names of metadata folders, since starting an engine's Python takes many seconds.
    None where the program lies in no environment of that kind.
    """
    found: dict[str, str] = {}
    for name, version in _distributions(words):
        found.setdefault(name, version)
    return next(((name, found[name]) for name in packages if name in found), None)


def engine_env(
    words: Sequence[str], own: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of an engine: ours less our Python's, the adapter's, the author's.

    The folder of the program comes first on PATH, as in an environment that is active.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    folders = dict.fromkeys(str(program.parent) for program in _programs(words))
    path = os.pathsep.join([*folders, inherited.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, **own, **given}


def env_for_report(env: Mapping[str, str], prefixes: Sequence[str]) -> dict[str, str]:
    """Return the variables that a report shows: those of the engine, without secrets."""
    return {
        name: HIDDEN if is_secret(name) else without_accounts(value)
        for name, value in sorted(env.items())
        if name.startswith(tuple(prefixes))
    }


def _distributions(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and version of what is installed beside each program; a link's own place first."""
    for program in _programs(words):
        for place in (program, program.resolve()):
            for folder in sorted(place.parent.parent.glob("lib/python3*/site-packages")):
                for metadata in sorted(folder.glob("*.dist-info")):
                    name, _, version = metadata.name.removesuffix(".dist-info").partition("-")
                    yield name.lower(), version


def _programs(words: Sequence[str]) -> list[Path]:
    """Return those words of a command that are programs by full path."""
    paths = [Path(word) for word in words if Path(word).is_absolute()]
    return [path for path in paths if path.is_file() and os.access(path, os.X_OK)]
