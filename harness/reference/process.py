"""The process of the reference server: start, address, end and log."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.adapters import EngineError, Target
from harness.reference.log import ReferenceLog, read_reference_log

_END_S = 10.0  # time to write the log
_MODEL = "reference"


class ReferenceProcess:
    """A running reference server."""

    def __init__(
        self, folder: Path, *, ttft_ms: float, itl_ms: float, cpu: int | None, usage_at_end: bool
    ) -> None:
        self._log_path = folder / "reference.jsonl"
        command = [sys.executable, "-P", "-m", "harness.reference.server", "--end-with-stdin"]
        command += ["--ttft-ms", f"{ttft_ms:g}", "--itl-ms", f"{itl_ms:g}"]
        command += ["--log", str(self._log_path), "--model", _MODEL]
        command += [] if cpu is None else ["--cpu", str(cpu)]
        command += ["--usage-at-end"] if usage_at_end else []
        self._process = subprocess.Popen(  # noqa: S603  this program
            command,
            stdin=subprocess.PIPE,  # the server ends when this process ends, even if it is killed
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal reaches only this process
        )
        self.pid = self._process.pid

    def target(self, api: str = "completions") -> Target:
        """Wait until the server listens, and return its target. Raises `EngineError`."""
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
        """End the server and return its log. Raises `EngineError` if it ended too early."""
        if self._process.poll() is not None:
            raise self._failure("ended unexpectedly")
        self.stop()
        try:
            return read_reference_log(self._log_path)
        except (OSError, ValueError) as cause:
            raise self._failure("wrote no log") from cause

    def stop(self) -> None:
        """End the server; kill it if it does not end in time."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the server and close its pipes."""
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
    """Start a server, pinned to the core `cpu` if given, and end it with the block."""
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        process = ReferenceProcess(
            Path(folder), ttft_ms=ttft_ms, itl_ms=itl_ms, cpu=cpu, usage_at_end=usage_at_end
        )
        try:
            yield process
        finally:
            process.close()
