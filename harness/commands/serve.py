"""`harness serve`: the embedded engine over HTTP, in real time."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from dataclasses import replace

from harness.adapters import BASELINE, TOGGLES, EngineSettings, ToggleValue
from harness.adapters.embedded import EmbeddedAdapter
from harness.adapters.embedded.server import serve as serve_engine
from harness.client import allow_open_files
from harness.output import printing
from harness.sweep_file import Problem, SpecError, did_you_mean, read_toggles

_MOST_FILES = 1 << 20  # towards the hard limit: each client is one
_WHOLE = re.compile(r"[0-9]{1,9}")


def serve(arguments: argparse.Namespace) -> int:
    """Serve until interrupted or told to end; return 0."""
    settings = _settings(arguments)
    allow_open_files(_MOST_FILES)
    serve_engine(settings, arguments.host, arguments.port, ready=_say)
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stderr.write("stopped\n")
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
    ranks = int(settings.toggles["tensor_parallel"].kind)
    if ranks > arguments.count:
        error = SpecError(
            f"tensor_parallel={ranks} needs {ranks} GPUs, there are {arguments.count}"
        )
        error.add_note(f"say --count {ranks}")
        raise error
    adapter.check(settings)
    return settings


def _flipped(words: list[str]) -> dict[str, ToggleValue]:
    """Return the toggles of the command line. Raises one `SpecError` for all problems."""
    data: dict[str, str | int] = {}
    problems: list[Problem] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name not in TOGGLES:
            wanted = f"expected NAME=VALUE{did_you_mean(name, TOGGLES)}"
            problems.append(Problem((), f"{word!r} is no toggle: {wanted}"))
        elif not equals or not value:
            example = (TOGGLES[name] or ("2",))[-1]
            problems.append(Problem((), f"{name} has no value; expected one, as {name}={example}"))
        elif name in data:
            problems.append(Problem((), f"{name} stands twice; give it once"))
        else:
            data[name] = int(value) if _WHOLE.fullmatch(value) else value
    base = read_toggles({"base": data}, problems).base
    if problems:
        raise SpecError("\n".join(problem.message for problem in problems))
    return dict(base)


def _say(line: str) -> None:
    with printing():
        sys.stdout.write(line + "\n")
