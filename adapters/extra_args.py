"""What `extra_args`, `env` and a command of the author's own may not set: all started engines.

A second value would silently win or lose, add GPUs that no metric divides by, or lock the harness
out of its own server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from harness.adapters.base import EngineError, EngineSettings

NO_KEY = "harness queries its own servers without a key"
NO_TLS = "harness queries its own servers over plain HTTP"
NO_FILE = "list its options in extra_args, where each can be checked"
HTTP_SERVER = "harness queries its own servers over HTTP"
TENSOR, PIPELINE, DATA, EXPERT = (
    f"set the toggle {kind}_parallel" for kind in ("tensor", "pipeline", "data", "expert")
)
UNCOUNTED = (
    "no key sets it; GPUs are counted as tensor_parallel × pipeline_parallel × data_parallel only"
)
_KEY_VARIABLE = re.compile(r"(?:VLLM|SGLANG|SGL|TRTLLM|TLLM)_(?:ADMIN_)?API_KEY")
_TOGGLED = {
    r"(?:tp|tensor_parallel)(?:_size)?": TENSOR,
    r"(?:pp|pipeline_parallel)(?:_size)?": PIPELINE,
    r"(?:dp|data_parallel)(?:_size)?": DATA,
    r"(?:enable_)?(?:moe_)?(?:ep|expert_parallel)(?:_size)?": EXPERT,
}
# Other kinds of parallelism; the drafter's is on the same GPUs.
_OTHER_KIND = re.compile(
    r"(?!draft_|speculative_)(?:\w+_)?"
    r"(?:(?:tensor|pipeline|data|expert|context)_parallel_size|(?:tp|pp|dp|ep|cp)_size)(?:_local)?"
)


def check_extra_args(words: Iterable[str], owner: Callable[[str], str | None]) -> None:
    """Raise `EngineError` for an extra argument that repeats what the sweep sets.

    `owner` returns what sets a flag instead, None where nothing does. A key of a JSON value and the
    end of a dotted flag that set a kind of parallelism are refused as well.
    """
    for word in words:
        name = _name(word)
        if reason := owner(name):
            raise _refused("extra_args", name, reason)
        for key in _keys_of(word):
            if reason := parallel_owner(key):
                raise _refused("extra_args", f"{name} … {key}".removeprefix(" … "), reason)


def check_command(settings: EngineSettings) -> None:
    """Raise `EngineError` where the words of `runtime.command` set a kind of parallelism."""
    for word in settings.runtime.command if settings.runtime else ():
        name = _name(word)
        if name.startswith("--") and (reason := parallel_owner(name[2:])):
            raise _refused("runtime.command", name, reason)


def check_env(settings: EngineSettings, owned: Mapping[str, str]) -> None:
    """Raise `EngineError` for a variable in `env` that locks the harness out or adds GPUs.

    `owned` has what sets this engine's own variables, by name.
    """
    for name in settings.env:
        reason = NO_KEY if _KEY_VARIABLE.fullmatch(name) else owned.get(name)
        if reason:
            raise _refused("env", name, reason)


def flag_owner(name: str, owned: Mapping[str, str]) -> str | None:
    """Return what sets a flag, given without dashes at its start; parsers take beginnings, too."""
    begun = (reason for own, reason in owned.items() if len(name) > 1 and own.startswith(name))
    return owned.get(name) or next(begun, None)


def parallel_owner(key: str) -> str | None:
    """Return what sets a kind of parallelism; None: the key names none."""
    bare = key.replace("-", "_").lower()
    toggled = (reason for form, reason in _TOGGLED.items() if re.fullmatch(form, bare))
    return next(toggled, UNCOUNTED if _OTHER_KIND.fullmatch(bare) else None)


def _refused(where: str, name: str, reason: str) -> EngineError:
    return EngineError(f"{where}: {name} cannot be set there: {reason}")


def _name(word: str) -> str:
    """Return the flag of a word; of `--set KEY=VALUE` also the key."""
    return re.split(r"=|(?<!^--set)\s", word, maxsplit=1)[0]


def _keys_of(word: str) -> Iterator[str]:
    """Yield the last part of a dotted flag, and every key of a word's JSON value."""
    name, _, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if "." in name:
        yield name.rpartition(".")[2]
    try:
        yield from _keys(json.loads(value))
    except ValueError:  # not JSON
        return


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of a JSON value, and of all values in it."""
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _keys(inner)
