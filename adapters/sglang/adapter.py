"""SGLang: how it is started, and what is asked of it while it runs. Knows nothing of load."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, Target, ToggleValue
from harness.adapters.limits import check_context, check_limits
from harness.adapters.model_folder import model_folder, ordinary_tokens, weights_bytes
from harness.adapters.process import (
    PASSING_FOLDER,
    Container,
    MissingProgramError,
    Server,
    ServerStart,
    container_of,
    engine_env,
    image_version,
    in_image,
    installed_version,
    program_words,
    running_server,
    told_env,
)
from harness.adapters.runtime import Runtime
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang.checks import check_extra_args, check_toggles, off_all_the_same
from harness.adapters.sglang.flags import Place, serve_words
from harness.adapters.sglang.reported import (
    assumptions_of,
    effective_labels,
    said_by,
    sizes_of,
    totals_of,
)
from harness.adapters.sglang.versions import dialect_of

_PROGRAM = "sglang"
_MODULE = ("-m", "sglang.launch_server")
_PACKAGES = ("sglang",)
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
# Older versions ignore what they do not know.
_FIELDS = _USAGE | {"seed", "ignore_eos", "return_token_ids"}
_TOLD = ("SGLANG_", "SGL_", "HF_", "CUDA_", "OMP_", "NCCL_", "TORCHINDUCTOR_", "LD_PRELOAD")
_RESET_S = 10.0  # a request that has just ended, or one of /health, is in flight a moment longer
_PROCESSOR = Path("/proc/cpuinfo")


class SglangEndpoint:
    """A running SGLang."""

    notes: tuple[str, ...] = ()

    def __init__(self, server: Server, settings: EngineSettings) -> None:
        """Ask the server what it is; it does not change while it runs."""
        self._server = server
        self._settings = settings
        info = server.json("/server_info") or server.json("/get_server_info")  # before 0.5.6
        told = info if isinstance(info, Mapping) else {}
        self._said = said_by(told)
        self.engine_version = str(told.get("version") or version_of(settings) or "unknown")
        self.engine_kind = str(told.get("engine_kind", "real"))
        self._dialect = dialect_of(self.engine_version)
        folder = model_folder(settings.model, server.env)
        self._weights_bytes = None if folder is None else weights_bytes(folder)
        self.target: Target | None = replace(
            server.target,
            fields=_FIELDS,
            vocabulary=None if folder is None else ordinary_tokens(folder),
        )

    def effective(self) -> Mapping[str, str]:
        """Return what SGLang's resolved arguments say, toggle name → value label."""
        return effective_labels(self._said, self._settings.toggles)

    def counters(self) -> ServerCounters:
        """Return SGLang's running totals. Raises `EngineError` when it has ended."""
        metrics = ServerMetrics(self._server.ask("/metrics").text)
        return totals_of(metrics, self._said, self._dialect)

    def reset(self) -> None:
        """Make the prefix cache cold, and forget what n-gram drafts were learnt.

        Raises `EngineError` while requests are in flight: SGLang then flushes nothing.
        """
        deadline_s = time.monotonic() + _RESET_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            # Newer ones wait for the last request themselves, at most so long.
            answer = self._server.ask(f"/flush_cache?timeout={left_s:.1f}", post=True)
            if answer.status == 200:
                return
            time.sleep(0.1)
        raise EngineError("SGLang did not flush its cache: are requests still in flight?")

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        asked = self._settings.toggles["speculative"]
        return {
            **sizes_of(self._said),
            "command": list(self._server.command),
            "environment": told_env(self._server.env, _TOLD),
            "startup_s": round(self._server.startup_s, 3),
            "log": self._settings.log_path and self._settings.log_path.name,
            "assumptions": assumptions_of(self._said, asked, self._weights_bytes),
        }


class SglangAdapter:
    """Starts SGLang. Knows its flags; knows nothing of load or latency."""

    name = "sglang"
    engine_kind = "real"

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        check_extra_args(settings)
        check_toggles(settings, _place(settings))
        check_limits(settings, batches=("continuous",))
        check_context(settings, unless="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
        if re.match(r"[~./]", settings.model) and model_folder(settings.model, {}) is None:
            raise EngineError(f"there is no model folder {settings.model} with a config.json")

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values drag along; `reasons` says why."""
        return {toggle: ToggleValue("off") for toggle in self.reasons(settings)}

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was asked."""
        return off_all_the_same(settings, _place(settings))

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line; its port is chosen when it is started."""
        place = _place(settings)
        words = [*_program(settings), *serve_words(settings, "PORT", place)]
        container = _container(settings, place)
        return words if container is None else container.words("NAME", words)

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that is installed where `settings` point to; None: it cannot be told.

        Cheap: nothing is imported or started.
        """
        return version_of(settings)

    def start(self, settings: EngineSettings) -> AbstractContextManager[SglangEndpoint]:
        """Start SGLang; leaving the context stops all its processes. Raises `EngineError`."""
        return _started(settings)


def version_of(settings: EngineSettings) -> str | None:
    """Return the installed version, read from the names of metadata folders."""
    if (image := in_image(settings)) is not None:
        return image_version(image)
    found = installed_version(_program(settings), _PACKAGES)
    return None if found is None else found[1]


@contextmanager
def _started(settings: EngineSettings) -> Iterator[SglangEndpoint]:
    words, place = _program(settings), _place(settings)
    start = ServerStart(
        engine=SglangAdapter.name,
        command=lambda port: [*words, *serve_words(settings, port, place)],
        env=lambda folder: engine_env(words, _own_env(folder, place), settings.env),
        target=lambda port: Target(url=f"http://127.0.0.1:{port}", model=settings.model),
        timeout_s=settings.start_timeout_s,
        log_path=settings.log_path,
        on_cpu=settings.gpu.lower() == "cpu",
        container=_container(settings, place),
    )
    with running_server(start) as server:
        yield SglangEndpoint(server, settings)


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
    """Return a program with what makes it serve; the author's own command is whole already."""
    if runtime is None or runtime.venv is not None:
        return (*words, *_MODULE)
    serves = runtime.path is not None and Path(words[0]).name == _PROGRAM
    return (*words, "serve") if serves else words


def _place(settings: EngineSettings) -> Place:
    words = _program(settings)
    return Place(
        dialect=dialect_of(version_of(settings)),
        cpu=settings.gpu.lower() == "cpu",
        verifies_on_cpu=_has_amx() or (words[-2:] != _MODULE and words[-1] != "serve"),
    )


def _has_amx() -> bool:
    """Return whether this processor has Intel AMX: only with it SGLang verifies drafts on one."""
    try:
        return "amx_tile" in _PROCESSOR.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def _container(settings: EngineSettings, place: Place) -> Container | None:
    return container_of(settings, _own_env(PASSING_FOLDER, place))


def _own_env(folder: Path, place: Place) -> dict[str, str]:
    compiled = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    return {
        "PROMETHEUS_MULTIPROC_DIR": str(folder),  # else another server's counts are added
        "TMPDIR": str(folder),  # sockets, of which it leaves six behind at every start
        # What torch compiles lies there too, and is worth keeping.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", compiled),
        **({"SGLANG_USE_CPU_ENGINE": "1"} if place.cpu else {}),
    }
