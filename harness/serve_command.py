"""`harness serve`: the embedded engine over HTTP, in real time."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from adapters.base import BASELINE, TOGGLES, EngineSettings, ToggleValue
from adapters.embedded.adapter import EmbeddedAdapter
from adapters.embedded.server import serve as serve_engine
from harness.output import printing
from harness.spec import SpecError
from harness.spec.problems import Problem, did_you_mean
from harness.spec.toggles import read_toggles


def serve(arguments: argparse.Namespace) -> int:
    """Serve until interrupted or told to end; return 0."""
    settings = _settings(arguments)
    serve_engine(settings, arguments.host, arguments.port, ready=_say)
    return 0


def _settings(arguments: argparse.Namespace) -> EngineSettings:
    """Return what is served; what a toggle drags along is in it. Raises `EngineError`."""
    adapter = EmbeddedAdapter()
    count = {"tensor_parallel": ToggleValue(str(arguments.count))}
    settings = EngineSettings(
        model=arguments.model,
        gpu=arguments.gpu,
        gpu_count=arguments.count,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_batched_tokens,
        toggles={**BASELINE, **count, **_flipped(arguments.toggles)},
    )
    settings = replace(settings, toggles={**settings.toggles, **adapter.implied(settings)})
    adapter.check(settings)
    return settings


def _flipped(words: list[str]) -> dict[str, ToggleValue]:
    """Return the toggles of the command line. Raises one `SpecError` for all problems."""
    data: dict[str, str | int] = {}
    problems: list[Problem] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name not in TOGGLES or not equals:
            wanted = f"expected NAME=VALUE{did_you_mean(name, TOGGLES)}"
            problems.append(Problem((), f"{word!r} is no toggle: {wanted}"))
        data[name] = int(value) if value.isdigit() else value
    base = read_toggles({"base": data}, problems).base
    if problems:
        raise SpecError("\n".join(problem.message for problem in problems))
    return dict(base)


def _say(line: str) -> None:
    with printing():
        sys.stdout.write(line + "\n")
