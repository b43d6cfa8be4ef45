"""Why an engine ended while starting, as its log shows. Pure: text in, a finding out.

The last line of such a log is seldom the reason: the worker that failed speaks first, and every
process above it then fails in its turn. So the first cause that is known wins.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from harness.adapters.base import EngineError
from harness.adapters.process.launch import Launched

_CRASHED = "a crash of the program itself: look at its log and at the system's"
_LONGEST = 400  # characters of a log line that are worth repeating

# The prefix of a message: "(Worker pid=12) ERROR 11-30 01:04:10 [core.py:1510] ",
# "[11/30/2026-01:04:10] [TRT-LLM] [RANK 1] [E] ", or "[2026-11-30 01:04:10 TP1] ".
_PREFIX = re.compile(
    r"^(?:\([\w-]+ pid=\d+\) )?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] )?"
    r"(?:\[[\d/]+-[\d:]+\] \[TRT-LLM\] (?:\[RANK \d+\] )?\[[EF]\] )?"
    r"(?:\[[\d-]+ [\d:]+(?: [A-Z]+\d+)*\] )?"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Failure)(?::.*)?$")
_USAGE = re.compile(
    r"^[\w. -]+: error: .+"  # of argparse
    r"|^Error: (?:No such option|Invalid value|Missing \w+|Option '|Got unexpected).*"  # of click
    r"|^ERROR: +\[Errno \d+\].*"  # of uvicorn
)

# The first that fits a cause gives its kind; the texts are those of the servers themselves.
_KINDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "port taken",
        ("[Aa]ddress already in use",),
        "another server came first; try again, a new port is chosen each time",
    ),
    (
        "bad flag",
        (
            "error: (?:unrecognized arguments|argument |ambiguous option|the following arguments)",
            "^Error: ",
        ),
        "this version of the engine has no such flag or value: look at extra_args and toggles",
    ),
    (
        "out of memory",
        ("try to increase --mem-fraction-static|Memory pool size is too small",),
        "what the weights leave holds no KV: raise memory_utilization, or take more GPUs",
    ),
    (
        "out of memory",
        (
            "out of memory|OutOfMemory|MemoryError|not enough memory|Cannot allocate memory",
            "[Ff]ree memory on device|No available memory for the cache|Available memory on node",
            "larger than the available KV cache memory",
        ),
        "lower max_model_len or memory_utilization, free the device, or take more GPUs",
    ),
    (
        "model not found",
        (
            "HFValidationError|LocalEntryNotFoundError|RepositoryNotFoundError|GatedRepoError",
            "not a valid model identifier|Invalid repository ID|Cannot find any model weights",
            "does not appear to have a file named|offline mode is enabled",
            "no config.json exists in",
            r"No such file or directory: .*(?:config\.json|safetensors)",
        ),
        "model must be a folder of this machine, or a hub name that this machine can load",
    ),
    (
        "not on this hardware",
        (
            "requires x86|requires? .*compute capability|not supported on|no kernel image",
            "_C::|NUMA nodes to bind|Failed to infer device type|No GPU devices found",
            "AMX support|numa nodes|not supported for quantization",
        ),
        "this machine or this build of the engine cannot do what was asked",
    ),
    (
        "bad key",
        ("Extra inputs are not permitted|got invalid argument",),
        "this version of the engine has no such key in its options: look at --set and toggles",
    ),
    (
        "invalid configuration",
        (
            "ValidationError|NotImplementedError|No common block size|must be divisible",
            "is greater than the derived context_length",
            r"Unsupported|Unknown \w",
        ),
        "the engine refused the settings together; its own words say which",
    ),
)
_DIED = re.compile(
    r"died unexpectedly|Failed core proc\(s\): \{[^}]+\}|WorkerProc.*failed to start"
    r"|^Subprocess \w+ \(pid=\d+\) crashed"
)


class PortTakenError(EngineError):
    """A port that was free when it was chosen was another program's when the engine came."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a start failed."""

    kind: str  # port taken | bad flag | bad key | out of memory | … | worker died | unknown
    line: str | None  # the line of the log that shows it
    advice: str


def diagnose(code: int, log: str) -> Failure:
    """Return why an engine ended with exit code `code`, as far as its log shows."""
    causes = list(_causes(log))
    for cause in causes:
        for kind, patterns, advice in _KINDS:
            if any(re.search(pattern, cause) for pattern in patterns):
                return Failure(kind, cause, advice)
    killed = f"killed by {signal.Signals(-code).name}" if code < 0 else None
    died = next((line for line in map(_bare, log.splitlines()) if _DIED.search(line)), None)
    if causes:
        return Failure("worker died" if died else "unknown", causes[0], "look at the whole log")
    if died or killed:
        by_system = died or code == -signal.SIGKILL
        advice = "often the system, short of memory: see its own log" if by_system else _CRASHED
        return Failure("worker died", died, advice)
    return Failure("unknown", _last(log), "look at the whole log")


def ended_error(what: str, code: int, processes: Launched) -> EngineError:
    """Return the error of an engine that ended by itself; `what` names engine and moment."""
    failure = diagnose(code, processes.log())
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    reason = "" if failure.kind == "unknown" else f": {failure.kind}"
    error_type = PortTakenError if failure.kind == "port taken" else EngineError
    error = error_type(f"{what}, with {how}{reason}")
    error.add_note(f"its log says: {failure.line or '(nothing)'}")
    error.add_note(failure.advice)
    return error


def _causes(log: str) -> Iterator[str]:
    """Yield exceptions and refusals in the order of the log, without their prefixes."""
    lines = [_bare(line) for line in log.splitlines()]
    for number, line in enumerate(lines):
        if _USAGE.match(line):
            yield line[:_LONGEST]
        elif _EXCEPTION.match(line):
            yield " ".join([line, *_validation(line, lines[number + 1 :])])[:_LONGEST]


def _validation(line: str, after: list[str]) -> list[str]:
    """Return the next lines of pydantic: the key, where there is one, and indented the error."""
    if "validation error" not in line:
        return []
    until = next((at + 1 for at, more in enumerate(after[:2]) if more.startswith(" ")), 1)
    return [more.strip() for more in after[:until]]


def _bare(line: str) -> str:
    return _PREFIX.sub("", line.rstrip())


def _last(log: str) -> str | None:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else None
