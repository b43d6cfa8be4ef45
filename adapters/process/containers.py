"""An engine in a container: the words that start one, and those that leave nothing of it.

Its processes are children of docker, not ours: ending the client does not end them, removing the
container does. It shares the machine's network, so that an engine that listens on 127.0.0.1 does so
here; a published port would put a process that copies between client and engine.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.adapters.base import EngineError, EngineSettings
from harness.adapters.process.programs import MissingProgramError, installed_version

LABEL = "llm-serving-harness"  # finds containers: docker ps --filter label=…
TEMPORARY_FOLDER = Path("/tmp")  # noqa: S108  of the container, removed with it
_CACHE = "/root/.cache/huggingface"  # where an engine that runs as root looks
# Of the user's own variables a container gets these; all others have to stand in the sweep.
_FORWARDED = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HUB_CACHE")
_SHARED_MEMORY = "32g"  # a ceiling: engines pass tensors between their processes there
# The image's entry point is vLLM's in one version and Python in another; of the other engines it
# prepares the driver's libraries, and runs the words behind it.
_OWN_ENTRY_POINT = ("vllm",)
_TAG = re.compile(r"v?(\d+(?:\.\d+)+(?:(?:a|b|rc|\.post)\d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How one engine is put into a container."""

    docker: str  # the client's full path
    image: str
    options: tuple[str, ...]  # GPUs, folders
    variables: tuple[str, ...]  # names; docker takes the values from its own environment
    cache: Path  # the hub's cache here, which is shared with the container

    def words(self, name: str, inside: Sequence[str], files: Iterable[Path] = ()) -> list[str]:
        """Return the command that runs `inside` in a container `name`, `files` readable there."""
        first, *rest = inside
        entry = ["--entrypoint", first] if first in _OWN_ENTRY_POINT else []
        return [
            *(self.docker, "run", "--rm", "--init", "--pull", "never"),
            *("--name", name, "--label", LABEL, "--network", "host", "--shm-size", _SHARED_MEMORY),
            *self.options,
            *(word for path in files for word in ("-v", f"{_bindable(path)}:{path}:ro")),
            *(word for variable in self.variables for word in ("-e", variable)),
            *entry,
            self.image,
            *(rest if entry else inside),
        ]

    def removal(self, name: str) -> tuple[str, ...]:
        """Return the command after which there is no container `name`, whatever state it was in."""
        return (self.docker, "rm", "--force", "--volumes", name)


def container_of(settings: EngineSettings, own: Iterable[str]) -> Container | None:
    """Return the container that `settings` request; None where the engine is on this machine.

    `own` are the names of the variables that the adapter sets. Raises `EngineError` for a model
    whose folder the container could not find.
    """
    image = None if settings.runtime is None else settings.runtime.docker
    if image is None:
        return None
    given = settings.env
    home = given.get("HF_HOME") or os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"
    cache = Path(home).expanduser().absolute()
    hub = given.get("HF_HUB_CACHE") or os.environ.get("HF_HUB_CACHE")
    forwarded = [name for name in _FORWARDED if name in os.environ]
    gpus = () if settings.gpu.lower() == "cpu" else ("--gpus", "all")
    folders = [_bindable(path) for path in (hub and Path(hub), *_model_folders(settings)) if path]
    return Container(
        docker=shutil.which("docker") or "docker",
        image=image,
        options=(
            *gpus,
            *("-v", f"{_bindable(cache)}:{_CACHE}", "-e", f"HF_HOME={_CACHE}"),
            *(word for folder in folders for word in ("-v", f"{folder}:{folder}")),
        ),
        variables=tuple(sorted({*forwarded, *own, *given} - {"HF_HOME"})),
        cache=cache,
    )


def new_name() -> str:
    """Return a name that no other container has."""
    return f"harness-{uuid.uuid4().hex[:16]}"


def in_image(settings: EngineSettings) -> str | None:
    """Return the image that `settings` name, None where the engine is on this machine.

    Raises `MissingProgramError` where there is no docker to run it.
    """
    runtime = settings.runtime
    if runtime is None or runtime.docker is None:
        return None
    if runtime.here and shutil.which("docker") is None:
        raise MissingProgramError(
            "runtime.docker: there is no program docker on PATH", ("docker", "run", runtime.docker)
        )
    return runtime.docker


def version_found(
    settings: EngineSettings, program: Sequence[str], packages: Sequence[str]
) -> tuple[str, str] | None:
    """Return (image or package, version) of the engine that `settings` start; None: not found.

    The version is in the tag of the image, or with the first of `packages` in the environment of
    `program`. Cheap: nothing is imported or started. Raises `MissingProgramError` where there is
    no docker to run the image.
    """
    image = in_image(settings)
    if image is None:
        return installed_version(program, packages)
    tagged = image_version(image)
    return None if tagged is None else (image, tagged)


def image_version(image: str) -> str | None:
    """Return the engine's version in the image's tag; None where it has none.

    `vllm/vllm-openai:v0.32.0` → `0.32.0`. A running engine reports its version itself.
    """
    _, colon, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    found = _TAG.match(tag) if colon else None
    return None if found is None else found[1]


def _model_folders(settings: EngineSettings) -> list[Path]:
    """Return the folders of models that are named by path. Raises `EngineError`: `container_of`."""
    options = dict(settings.toggles["speculative"].options)
    found = []
    for model in (settings.model, str(options.get("draft", ""))):
        if re.match(r"[~.]", model):
            error = EngineError(f"{model}: a container does not know where that is")
            error.add_note("runtime.docker needs the full path of a model's folder")
            raise error
        if model.startswith("/"):
            found.append(Path(model))
    return found


def _bindable(path: Path) -> Path:
    if ":" in str(path):
        raise EngineError(f"{path}: docker cannot share a path with a colon in it")
    return path
