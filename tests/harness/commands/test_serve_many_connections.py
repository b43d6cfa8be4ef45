"""`harness serve` with more connections than files: it goes on, and takes new ones later."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone
SERVE = "ulimit -Sn {soft}; ulimit -Hn {hard}; exec {python} -P -m harness.cli serve --port 0"


def started(soft: int, hard: int) -> tuple[subprocess.Popen[str], int]:
    """Return a server with such limits, and its port."""
    command = SERVE.format(soft=soft, hard=hard, python=sys.executable)
    process = subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.rpartition(":")[2])


def completion(port: int, tokens: int) -> socket.socket:
    """Send a streamed request; return its connection once the answer has begun."""
    body = json.dumps(
        {"model": "llama-3-70b", "prompt": "a b", "max_tokens": tokens, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(head.encode() + body)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    return connection


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("hard", "more"), [(100, 100), (200, 500), (400, 2000)])
def test_connections_beyond_the_limit_wait_and_harm_nobody(hard: int, more: int) -> None:
    """A stream that is open goes on; nothing spins; room for others is used again."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, most), most))
    process, port = started(50, hard)
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(completion(port, 4000))
            for _ in range(hard + more):
                idle = socket.socket()
                stack.enter_context(idle)
                idle.settimeout(0)
                idle.connect_ex(("127.0.0.1", port))
            time.sleep(1.0)
            used_s = processor_s(process.pid)
            for _ in range(20):
                assert b"data: " in stream.recv(1 << 20)
            time.sleep(2.0)
            assert processor_s(process.pid) - used_s < 1.5
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) > hard - 20
        completion(port, 2).close()
    finally:
        process.terminate()
        _, error = process.communicate(timeout=20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))

    assert process.returncode == 0
    assert error.count("no more connections are accepted") == 1
    assert "Traceback" not in error
