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

_LOOK = "look at the whole log"
_CRASHED = "a crash of the program itself: look at its log and at the system's"
_SMALL_CACHE = (
    "the weights leave too little for the KV cache: raise memory_utilization, lower max_model_len, "
    "or take more GPUs"
)
_HOST_FULL = (
    "the memory of the host is full: end other programs, take a smaller model, or a machine with "
    "more memory"
)
_LONGEST_CONTEXT = re.compile(r"estimated maximum model length is (\d+)")
_OOM_KILLED = f"the kernel's OOM killer ended it: {_HOST_FULL}"
_NOT_OOM_KILLED = (
    "the kernel's OOM killer ended no process meanwhile, so another program or the engine itself "
    "sent SIGKILL: look at the whole log"
)
_PERHAPS_OOM_KILLED = (
    "most often that is the kernel's OOM killer, short of memory: `dmesg` names what it ended"
)
_KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)  # of a process, and of a shell or container
_LONGEST = 400  # characters of a log line that are worth repeating

# The prefix of a message: "(Worker pid=12) ERROR 11-30 01:04:10 [core.py:1510] ",
# "[11/30/2026-01:04:10] [TRT-LLM] [RANK 1] [E] ", or "[2026-11-30 01:04:10 TP1] ".
_PREFIX = re.compile(
    r"^(?:\([\w-]+ pid=\d+\) )?(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] )?"
    r"(?:\[[\d/]+-[\d:]+\] \[TRT-LLM\] (?:\[RANK \d+\] )?\[[EF]\] )?"
    r"(?:\[[\d-]+ [\d:]+(?: [A-Z]+\d+)*\] )?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Failure)|Exception)(?::.*)?$"
)
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
        (
            "(?:[Ii]ncrease|[Rr]aise) --mem-fraction-static|Memory pool size is too small",
            "No available memory for the cache|[Ii]ncreasing `gpu_memory_utilization`",
            "larger than the available KV cache memory|no GPU memory for the KV cache",
            "(?:[Ii]nsufficient|[Nn]ot enough) (?:GPU )?memory for .*(?:KV|kv|cache)",
        ),
        _SMALL_CACHE,
    ),
    (
        "out of memory",
        (
            "[Ff]ree memory on device|Available memory on node|memory capacity is unbalanced",
            "[Dd]ecrease GPU memory utilization",
        ),
        (
            "less memory is free than memory_utilization requests: end the other programs that use "
            "this memory, or lower memory_utilization"
        ),
    ),
    (
        "out of memory",
        (
            "CPUAllocator|Cannot allocate memory|^MemoryError|ArrayMemoryError",
            "Unable to allocate .* for an array",
        ),
        _HOST_FULL,
    ),
    (
        "out of memory",
        ("out of memory|OutOfMemory|not enough memory|mem-fraction-static to a smaller value",),
        (
            "weights, KV cache and one step do not fit together: lower memory_utilization, "
            "max_num_seqs or max_batched_tokens, or take more GPUs"
        ),
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


def diagnose(code: int, log: str, *, oom_kills: int | None = None) -> Failure:
    """Return why an engine ended with exit code `code`, as far as its log shows.

    `oom_kills` is the number of processes that the kernel's OOM killer ended meanwhile; None where
    that cannot be read.
    """
    causes = list(_causes(log))
    for cause in causes:
        for kind, patterns, advice in _KINDS:
            if any(re.search(pattern, cause) for pattern in patterns):
                return Failure(kind, cause, _advice(advice, cause))
    died = next((line for line in map(_bare, log.splitlines()) if _DIED.search(line)), None)
    killed = code in _KILLED_CODES
    if oom_kills and (killed or died):
        return Failure("out of memory", died or _last(log), _OOM_KILLED)
    if causes:
        return Failure("worker died" if died else "unknown", causes[0], _LOOK)
    if killed or (died and oom_kills is None):
        advice = _PERHAPS_OOM_KILLED if oom_kills is None else _NOT_OOM_KILLED
        return Failure("worker died", died, advice)
    if died or code < 0:
        return Failure("worker died", died, _LOOK if died else _CRASHED)
    return Failure("unknown", _last(log), _LOOK)


def _advice(advice: str, cause: str) -> str:
    """Return the advice with the context length that would fit, where the engine names one."""
    longest = _LONGEST_CONTEXT.search(cause)
    if longest is None:
        return advice
    return advice.replace("lower max_model_len", f"lower max_model_len to {longest[1]} or less")


def ended_error(what: str, code: int, processes: Launched) -> EngineError:
    """Return the error of an engine that ended by itself; `what` names engine and moment."""
    failure = diagnose(code, processes.log(), oom_kills=processes.oom_kills())
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    how += " (SIGKILL)" * (code == 128 + signal.SIGKILL)
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
