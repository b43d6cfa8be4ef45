"""SGLang: how it is started, what it reports, what it counts. Knows nothing of load."""

from __future__ import annotations

import getpass
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.checks import (
    check_context,
    check_model,
    check_sizes,
    check_toggles,
)
from harness.adapters.extra_args import check_command, check_env, check_extra_args
from harness.adapters.model_folder import model_folder, weights_bytes
from harness.adapters.process import (
    MissingProgramError,
    Server,
    ServerStart,
    StartedEndpoint,
    installed_version,
    program_words,
    running_endpoint,
    version_found,
)
from harness.adapters.reported_config import base_labels, effective_labels
from harness.adapters.runtime import Runtime
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang.checks import CHECKS, forced_off, owner
from harness.adapters.sglang.flags import SglangBuild, serve_words
from harness.adapters.sglang.reported import (
    READERS,
    assumptions_of,
    base_sources,
    reported_config,
    sizes_of,
    totals_of,
)
from harness.adapters.sglang.versions import release_of

_PROGRAM = "sglang"
_MODULE = ("-m", "sglang.launch_server")
_PACKAGES = ("sglang",)
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
# Older versions ignore what they do not know.
_FIELDS = _USAGE | {"seed", "ignore_eos", "return_token_ids"}
_RESET_S = 10.0  # a request that has just ended, or one of /health, is in flight a moment longer
_PROCESSOR = Path("/proc/cpuinfo")


class SglangEndpoint(StartedEndpoint):
    """A running SGLang."""

    variables = (
        *("SGLANG_", "SGL_", "HF_", "CUDA_", "OMP_", "NCCL_", "TORCHINDUCTOR_", "LD_PRELOAD"),
    )

    def __init__(self, server: Server) -> None:
        """Read the server's configuration, which does not change while it runs."""
        info = server.json("/server_info") or server.json("/get_server_info")  # before 0.5.6
        super().__init__(server, info, _version_of(server.start.settings))
        self._config = reported_config(info)
        self._release = release_of(self.engine_version)
        folder = model_folder(self._settings.model, server.env)
        self._weights_bytes = None if folder is None else weights_bytes(folder)

    def effective(self) -> Mapping[str, str]:
        """Return SGLang's resolved arguments, toggle or base setting → value label."""
        return {
            **effective_labels(self._config, READERS, self._settings.toggles),
            **base_labels(base_sources(self._config), self._settings.base()),
        }

    def counters(self) -> ServerCounters:
        """Return SGLang's running totals. Raises `EngineError` when it has ended."""
        metrics = ServerMetrics(self._server.query("/metrics").text)
        return totals_of(metrics, self._config, self._release)

    def reset(self) -> None:
        """Make the prefix cache cold, and forget what n-gram drafts were learnt.

        Raises `EngineError` while requests are in flight: SGLang then flushes nothing.
        """
        deadline_s = time.monotonic() + _RESET_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            # Newer ones wait for the last request themselves, at most so long.
            reply = self._server.query(f"/flush_cache?timeout={left_s:.1f}", post=True)
            if reply.status == 200:
                return
            time.sleep(0.1)
        raise EngineError("SGLang did not flush its cache: are requests still in flight?")

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        requested = self._settings.toggles["speculative"]
        return {
            **sizes_of(self._config),
            **super().facts(),
            "assumptions": assumptions_of(self._config, requested, self._weights_bytes),
        }


class SglangAdapter:
    """Starts SGLang. Knows its flags; knows nothing of load or latency."""

    name = "sglang"
    engine_kind = "real"

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        check_extra_args(settings.extra_args, owner)
        check_command(settings)
        check_env(settings, {})
        check_toggles(settings, CHECKS, _build(settings))
        check_sizes(settings)
        check_context(settings, unless="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
        check_model(settings)

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values force on others; `reasons` has the reasons."""
        return dict.fromkeys(self.reasons(settings), ToggleValue("off"))

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was requested."""
        return forced_off(settings, _build(settings))

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line; its port is chosen when it is started."""
        return _server_start(settings).launch_line()

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that `settings` start; None: not found.

        Cheap: nothing is imported or started.
        """
        return _version_of(settings)

    def start(self, settings: EngineSettings) -> AbstractContextManager[SglangEndpoint]:
        """Start SGLang; leaving the context stops all its processes. Raises `EngineError`."""
        return running_endpoint(_server_start(settings), SglangEndpoint)


def _version_of(settings: EngineSettings) -> str | None:
    found = version_found(settings, _program(settings), _PACKAGES)
    return None if found is None else found[1]


def _server_start(settings: EngineSettings) -> ServerStart:
    build = _build(settings)
    return ServerStart(
        engine=SglangAdapter.name,
        settings=settings,
        program=_program(settings),
        words=lambda port: serve_words(settings, port, build),
        own_env=lambda folder: _own_env(folder, on_cpu=settings.on_cpu),
        fields=_FIELDS,
        token_ids=True,
    )


def _program(settings: EngineSettings) -> tuple[str, ...]:
    """Return the words before the flags: a module of an environment's Python, or the author's own.

    Raises `MissingProgramError` when there is no such program.
    """
    runtime = settings.runtime
    if runtime is not None and runtime.docker is not None:
        return ("python3", *_MODULE)
    by_module = runtime is None or runtime.venv is not None
    try:
        words = program_words("python" if runtime and runtime.venv else _PROGRAM, runtime)
    except MissingProgramError as error:
        error.words = _whole(runtime, ("python",) if runtime is None else error.words)
        raise
    if runtime is None:
        words = (str(Path(words[0]).resolve().with_name("python")),)
    if by_module and installed_version(words, _PACKAGES) is None:
        message = f"SGLang is not installed in the environment of {words[0]}"
        raise MissingProgramError(message, _whole(runtime, words))
    return _whole(runtime, words)


def _whole(runtime: Runtime | None, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a program with what makes it serve; the author's own command is complete."""
    if runtime is None or runtime.venv is not None:
        return (*words, *_MODULE)
    serves = runtime.path is not None and Path(words[0]).name == _PROGRAM
    return (*words, "serve") if serves else words


def _build(settings: EngineSettings) -> SglangBuild:
    words = _program(settings)
    return SglangBuild(
        release=release_of(_version_of(settings)),
        cpu=settings.on_cpu,
        verifies_on_cpu=_has_amx() or (words[-2:] != _MODULE and words[-1] != "serve"),
    )


def _has_amx() -> bool:
    """Return whether this processor has Intel AMX: only with it SGLang verifies drafts on one."""
    try:
        return "amx_tile" in _PROCESSOR.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def _own_env(folder: Path, *, on_cpu: bool) -> dict[str, str]:
    compiled = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    return {
        "PROMETHEUS_MULTIPROC_DIR": str(folder),  # else another server's counts are added
        "TMPDIR": str(folder),  # sockets, of which it leaves six behind at every start
        # What torch compiles lies there too, and is worth keeping.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled),
        **({"SGLANG_USE_CPU_ENGINE": "1"} if on_cpu else {}),
    }
