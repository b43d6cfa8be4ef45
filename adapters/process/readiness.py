"""When a started engine is ready: it lives, it listens, and no other server answers for it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from urllib.parse import urlsplit

from harness.adapters.base import EngineError, Target
from harness.adapters.http_queries import NO_REPLY, query
from harness.adapters.process.failures import PortTakenError, ended_error
from harness.adapters.process.guard import parents
from harness.adapters.process.launch import Launched

_POLL_S = 0.05  # at first; later a twentieth of the time waited so far, half a second at most
_HEALTH_S = 5.0  # for an answer to /health: a busy, starting engine may be slow
_LISTENING = "0A"  # a state in /proc/net/tcp
_OK = 200
_LINES, _LINE = 3, 300  # how much of a log an error repeats


def wait_until_ready(
    processes: Launched, target: Target, engine: str, *, timeout_s: float
) -> float:
    """Wait until the engine has generated a token of the requested model; return the seconds.

    Raises `EngineError` when the engine ends, when another server has its port, when it serves
    another model, or after `timeout_s`; always with the end of its log.
    """
    started_s = time.monotonic()
    missing: str | None = "nothing listens on its port"
    while (waited_s := time.monotonic() - started_s) < timeout_s:
        code = processes.exit_code()
        if code is not None:
            raise ended_error(f"{engine} ended while starting", code, processes)
        refuse_strangers(processes, target.url)
        try:
            missing = _missing(target, timeout_s - waited_s)
        except EngineError:  # perhaps of another server, which took the port in between
            refuse_strangers(processes, target.url)
            raise
        if missing is None:
            refuse_strangers(processes, target.url)
            return time.monotonic() - started_s
        time.sleep(min(max(_POLL_S, waited_s / 20), 0.5))
    error = EngineError(f"{engine} was not ready after {timeout_s:g} s: {missing}")
    error.add_note(f"its log ends: {log_tail(processes.log()) or '(nothing)'}")
    error.add_note("a large model may need longer: raise start_timeout")
    raise error


def _missing(target: Target, timeout_s: float) -> str | None:
    """Return what the server cannot do yet; None when it generates."""
    if not listeners(_port(target.url)):
        return "nothing listens on its port"
    try:
        health = query(target.url, "/health", timeout_s=_HEALTH_S, access=target.access)
        if health.status != _OK:
            return f"/health answers {health.status}"
        _check_model(target)
        return _first_token(target, timeout_s)
    except NO_REPLY as error:
        return f"it does not answer: {error or type(error).__name__}"


def refuse_strangers(processes: Launched, url: str) -> None:
    """Raise `PortTakenError` when any process but the engine's own listens on the port of `url`.

    Two servers may share a port (SO_REUSEPORT), the kernel giving some requests to each. Of
    a container's processes no sockets can be seen: there the model's name must do.
    """
    if processes.contained:
        return
    port = _port(url)
    open_sockets = listeners(port)
    strange = open_sockets and open_sockets - _sockets(processes.pids())
    if not strange:
        return
    owner = next((pid for pid in parents() if strange & _sockets({pid})), None)
    if not strange & listeners(port):  # it was the engine's, which ended just now
        return
    who = "a process that cannot be looked into" if owner is None else f"process {owner}"
    name = "" if owner is None else f" ({_command(owner)})"
    error = PortTakenError(f"{who}{name} listens on port {port}, not the engine that was started")
    error.add_note("its answers would have been taken for the engine's; stop it, or try again")
    raise error


def listeners(port: int) -> set[int]:
    """Return the inodes of all sockets of this machine that listen on `port`."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = row.split()
                local, state, inode = fields[1], fields[3], fields[9]
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    found.add(int(inode))
    return found


def log_tail(log: str) -> str:
    """Return the last lines of a log that are not blank, in one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return " | ".join(line[:_LINE] for line in lines[-_LINES:])


def _check_model(target: Target) -> None:
    """Raise `EngineError` when the server serves other models; not all servers list them."""
    reply = query(target.url, "/v1/models", timeout_s=_HEALTH_S, access=target.access).json()
    served = reply.get("data") if isinstance(reply, dict) else None
    models = [model.get("id") for model in served or []]
    if models and target.model not in models:
        names = ", ".join(map(str, models))
        raise EngineError(f"the server at {target.url} serves {names}, not {target.model}")


def _first_token(target: Target, timeout_s: float) -> str | None:
    """Return what the server returned instead of one token; None when it returned that."""
    body = {"model": target.model, "prompt": "a", "max_tokens": 1, "temperature": 0}
    limit_s = max(1.0, timeout_s)
    reply = query(target.url, "/v1/completions", body, timeout_s=limit_s, access=target.access)
    completion = reply.json()
    if reply.status == _OK and isinstance(completion, dict) and _tokens(completion) == 1:
        return None
    return f"asked for one token it answers {reply.status}: {reply.text.strip()[:_LINE]}"


def _tokens(completion: dict[str, object]) -> object:
    usage = completion.get("usage")
    return usage.get("completion_tokens") if isinstance(usage, dict) else None


def _port(url: str) -> int:
    return urlsplit(url).port or 80


def _sockets(pids: set[int]) -> set[int]:
    """Return the inodes of all sockets that processes hold, as far as they may be looked into."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    kind, _, inode = str(descriptor.readlink()).partition(":")
                    if kind == "socket":
                        found.add(int(inode.strip("[]")))
    return found


def _command(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return "gone"
    return line.decode("utf-8", "replace").strip()[:100]
