"""`harness engines`: which engines are here and where, and environments for more of them."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from harness import __version__
from harness.adapters import (
    BASELINE,
    ENGINES,
    EngineAdapter,
    EngineError,
    EngineSettings,
    Runtime,
    ToggleValue,
)
from harness.adapters.process import (
    MissingProgramError,
    check_version,
    environment_folder,
    environments_folder,
    install,
    installed_environments,
    package_of,
)
from harness.output import printing

_PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-serve"}


def engines(arguments: argparse.Namespace) -> int:
    """List the engines, or install one; return the exit code."""
    if arguments.action == "install":
        return _install(arguments)
    found = engines_document()
    with printing():
        text = json.dumps(found, indent=1) if arguments.json else "\n".join(_lines(found))
        sys.stdout.write(f"{text}\n")
    return 0


def engines_document() -> dict[str, Any]:
    """Return what `harness engines --json` prints. Starts nothing."""
    return {
        "environments_folder": str(environments_folder()),
        "docker": shutil.which("docker"),
        "engines": [_engine(name, adapter()) for name, adapter in ENGINES.items()],
    }


def _engine(name: str, adapter: EngineAdapter) -> dict[str, Any]:
    if name == "embedded":
        found = [{"where": "harness itself", "version": __version__, "simulated": True}]
        return {"engine": name, "found": found, "missing": None}
    if name not in _PROGRAMS:
        return {"engine": name, "found": [], "missing": "the address of a server: url: http://…"}
    found = [*_on_path(name, adapter), *_in_environments(name, adapter)]
    missing = f"no {_PROGRAMS[name]} on PATH, none from harness engines install {name}"
    return {"engine": name, "found": found, "missing": None if found else missing}


def _on_path(name: str, adapter: EngineAdapter) -> Iterator[dict[str, Any]]:
    program = shutil.which(_PROGRAMS[name])
    if program is not None:
        version = _version(adapter, None)
        yield {"where": "PATH", "program": program, "version": version, "runtime": None}


def _in_environments(name: str, adapter: EngineAdapter) -> Iterator[dict[str, Any]]:
    for one in installed_environments(name):
        yield {
            "where": "environment",
            "folder": str(one.folder),
            "version": _version(adapter, Runtime(venv=one.folder)),
            "cpu": one.cpu,
            "runtime": {"version": one.version},  # what a sweep writes
        }


def _version(adapter: EngineAdapter, runtime: Runtime | None) -> str | None:
    settings = EngineSettings(
        model="none",
        gpu="none",
        gpu_count=1,
        max_model_len=1,
        toggles={**BASELINE, "tensor_parallel": ToggleValue("1")},
        runtime=runtime,
    )
    try:
        return adapter.version_of(settings)
    except MissingProgramError:
        return None


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["engines"]:
        if one["missing"] is not None:
            yield f"{one['engine']:<14}missing: {one['missing']}"
        for place in one["found"]:
            where = place.get("program") or place.get("folder") or place["where"]
            version = place["version"] or "version unknown"
            simulated = " (simulated)" * place.get("simulated", False)
            yield f"{one['engine']:<14}{version:<16}{where}{simulated}"
            if place.get("runtime"):
                yield f"{'':<30}in a sweep: runtime: {_written(place['runtime']['version'])}"
    docker = document["docker"]
    use = "in a sweep: runtime: {docker: IMAGE}" if docker else "not on PATH"
    yield f"{'docker':<14}{use}{f' ({docker})' if docker else ''}"


def _written(version: str) -> str:
    """Return a runtime as a sweep writes it; quoted, since YAML takes 0.10 for a number."""
    return f'{{version: "{version}"}}'


def _install(arguments: argparse.Namespace) -> int:
    engine, version, cpu = arguments.engine, arguments.version, arguments.cpu
    check_version(version)
    package = package_of(engine, cpu=cpu)
    folder = environment_folder(engine, version, cpu=cpu)
    _say(
        f"{package.requirement} {version} into an environment of its own: {folder}",
        f"about {package.disk_gb:g} GB of disk and {package.minutes} minutes ({package.source})",
    )
    if not arguments.yes and not _agreed():
        raise EngineError("nothing was installed")
    made = install(engine, version, cpu=cpu)
    _say("", f"in a sweep: engines: [{{engine: {engine}, runtime: {_written(version)}}}]")
    with printing():
        told = {"engine": engine, "version": version, "cpu": cpu, "folder": str(made.folder)}
        sys.stdout.write(f"{json.dumps(told) if arguments.json else made.folder}\n")
    return 0


def _agreed() -> bool:
    """Return whether the user agrees. Raises `EngineError` where nobody can be asked."""
    if not sys.stdin.isatty():
        error = EngineError("nobody can be asked here whether to install so much")
        error.add_note("add --yes to do it")
        raise error
    sys.stderr.write("go on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
