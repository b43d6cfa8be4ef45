"""Where an engine's program is, as the author of a sweep gives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How to reach an engine's program: exactly one of these is given.

    In all of them the engine's own words follow, `serve MODEL …` for vLLM.
    """

    path: Path | None = None  # the program itself
    venv: Path | None = None  # an environment with the program in its bin/
    command: tuple[str, ...] = ()  # what is run in place of the program, such as numactl … vllm
    docker: str | None = None  # an image that is on this machine already
    here: bool = True  # False: a plan's, whose command is not on this machine and is taken as it is

    def __post_init__(self) -> None:
        """Refuse none and several: a mistake in code, since specs are checked before."""
        named = [one is not None for one in (self.path, self.venv, self.docker)]
        if sum(named) + bool(self.command) != 1:
            raise ValueError("a runtime is one of path, venv, command and docker")
