"""The reference server as a process of its own: started, located, ended, its log read."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.adapters import EngineError, Target
from harness.reference.log import ReferenceLog, read_reference_log

_END_S = 10.0  # for its log to be written
_MODEL = "reference"


class ReferenceProcess:
    """A reference server that runs."""

    def __init__(
        self, folder: Path, *, ttft_ms: float, itl_ms: float, cpu: int | None, usage_at_end: bool
    ) -> None:
        self._log_path = folder / "reference.jsonl"
        command = [sys.executable, "-P", "-m", "harness.reference.server", "--end-with-stdin"]
        command += ["--ttft-ms", f"{ttft_ms:g}", "--itl-ms", f"{itl_ms:g}"]
        command += ["--log", str(self._log_path), "--model", _MODEL]
        command += [] if cpu is None else ["--cpu", str(cpu)]
        command += ["--usage-at-end"] if usage_at_end else []
        self._process = subprocess.Popen(  # noqa: S603  this very program
            command,
            stdin=subprocess.PIPE,  # it ends when this process does, however that ends
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C reaches this process, and it alone
        )
        self.pid = self._process.pid

    def target(self, api: str = "completions") -> Target:
        """Return its address and API, once it listens. Raises `EngineError` when it does not."""
        port = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not port:
            raise self._failure("did not start")
        return Target(
            url=f"http://127.0.0.1:{port}",
            model=_MODEL,
            api=api,
            fields=frozenset({"seed", "ignore_eos", "include_usage", "continuous_usage_stats"}),
            vocabulary=4096 if api == "completions" else None,
        )

    def log(self) -> ReferenceLog:
        """End the server and return what it wrote down. Raises `EngineError` when it died."""
        if self._process.poll() is not None:
            raise self._failure("ended before it was told to")
        self.stop()
        try:
            return read_reference_log(self._log_path)
        except (OSError, ValueError) as cause:
            raise self._failure("left no log") from cause

    def stop(self) -> None:
        """End the server, at the latest by force."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the server and let go of its pipes."""
        self.stop()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _failure(self, what: str) -> EngineError:
        self.stop()
        error = EngineError(f"the reference server {what} (exit code {self._process.returncode})")
        errors = self._process.stderr.read().strip() if self._process.stderr else ""
        if errors:
            error.add_note(f"its last line: {errors.splitlines()[-1]}")
        return error


@contextlib.contextmanager
def reference_process(
    *, ttft_ms: float, itl_ms: float, cpu: int | None = None, usage_at_end: bool = False
) -> Iterator[ReferenceProcess]:
    """Start a server, kept on the core `cpu` where one is named; it is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        process = ReferenceProcess(
            Path(folder), ttft_ms=ttft_ms, itl_ms=itl_ms, cpu=cpu, usage_at_end=usage_at_end
        )
        try:
            yield process
        finally:
            process.close()
