"""TensorRT-LLM: how it is started, what it reports, what it counts. Knows nothing of load.

**Not yet run against the real TensorRT-LLM**: written from its sources, 1.1 to 1.4.0rc1, and tested
with a stand-in that refuses what those refuse. What the stand-in cannot show, nothing has shown.

It has no way to empty its prefix cache. No run needs one: the texts of a run are named by its seed,
so no other run can have left a block of them. Old blocks are only evicted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, ToggleValue
from harness.adapters.checks import check_model, check_sizes, check_step_tokens, check_toggles
from harness.adapters.process import (
    Server,
    ServerStart,
    StartedEndpoint,
    env_for_report,
    program_words,
    running_server,
    version_found,
)
from harness.adapters.reported_config import base_labels, effective_labels
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.tensorrt_llm.checks import CHECKS, check_args, forced_off
from harness.adapters.tensorrt_llm.options import (
    OPTIONS_FILE,
    option_names,
    options_lines,
    serve_words,
    served_name,
)
from harness.adapters.tensorrt_llm.records import POLL_S, RecordReader
from harness.adapters.tensorrt_llm.reported import READERS, base_sources, reported_config
from harness.adapters.tensorrt_llm.stats import (
    CountingRules,
    IterationTotals,
    RequestTotals,
    counters_of,
)

_PROGRAM = "trtllm-serve"
_PACKAGES = ("tensorrt_llm",)
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
_FIELDS = _USAGE | {"seed", "ignore_eos", "detokenize"}


class TensorRtLlmEndpoint(StartedEndpoint):
    """A running TensorRT-LLM."""

    variables = (
        *("TRTLLM_", "TLLM_", "FORCE_DETERMINISTIC", "HF_", "CUDA_", "OMP_", "OMPI_", "NCCL_"),
    )

    def __init__(self, server: Server, records: RecordReader, options: list[str]) -> None:
        """Read the server's version and series, which do not change while it runs."""
        super().__init__(server, server.json("/version"))
        self._records = records
        self._options = options
        self._requests = RequestTotals()
        self._at_start = self._metrics()

    def effective(self) -> Mapping[str, str]:
        """Return what log and series report, toggle or base setting → value label."""
        blocks = self._records.totals.block_tokens
        config = reported_config(self._server.processes.log(), self._at_start, blocks)
        return {
            **effective_labels(config, READERS, self._settings.toggles),
            **base_labels(base_sources(config), self._settings.base()),
        }

    def counters(self) -> ServerCounters:
        """Return the running totals. Raises `EngineError` when the server has ended.

        Waits until every iteration so far is counted: not at all where the number of replies shows
        that, else until the server reports that there is nothing more.
        """
        iterations, settings = self._settled(), self._settings
        static = settings.kind("batching") == "static"
        rules = CountingRules(
            prefix_caching=settings.kind("prefix_caching") == "on",
            # Of a static batch whose prompts are cut some parts come when others are done.
            counts_admissions=not (static and settings.kind("chunked_prefill") == "on"),
            max_prompt_tokens=settings.max_model_len,
        )
        return counters_of(iterations, self._requests, self._metrics(), rules)

    def reset(self) -> None:
        """Begin a run, for which the cache is cold without being emptied: see the module.

        Raises `EngineError` while requests are in flight.
        """
        if self._settled().busy:
            raise EngineError("TensorRT-LLM has requests in flight: no run can begin")
        self._records.forget_peak()

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        totals = self._records.totals
        size, blocks = totals.block_tokens, totals.most_blocks
        return {
            "block_size": size,
            "kv_blocks": blocks,
            "kv_tokens": size * blocks if size and blocks else None,
            "running_limit": self._settings.running_limit,
            "step_tokens": self._settings.step_tokens,
            "dtype": self._settings.dtype,
            "memory_utilization_of": "what the weights leave",
            "cache_emptied": False,
            "stats_poll_s": self._records.poll_s,
            "stats_lost": totals.lost,
            "options": self._options,
            **super().facts(),
            "environment": env_for_report({**os.environ, **self._settings.env}, self.variables),
        }

    def _settled(self) -> IterationTotals:
        finished = self._server.json("/perf_metrics")  # each finished request once
        self._requests.add(finished if isinstance(finished, list) else ())
        return self._records.settle(self._requests.finished or None)

    def _metrics(self) -> ServerMetrics:
        reply = self._server.query("/prometheus/metrics")
        return ServerMetrics(reply.text if reply.status == 200 else "")


class TensorRtLlmAdapter:
    """Starts TensorRT-LLM. Knows its options; knows nothing of load or latency."""

    name = "tensorrt-llm"
    engine_kind = "real"

    def __init__(self, poll_s: float = POLL_S) -> None:
        """Read the server's records every `poll_s` seconds while it runs."""
        self._poll_s = poll_s

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        check_args(settings)
        check_toggles(settings, CHECKS, option_names(self.version_of(settings)))
        if settings.on_cpu:
            raise EngineError("TensorRT-LLM needs an NVIDIA GPU: hardware.gpu is cpu")
        check_sizes(settings)
        check_step_tokens(settings)
        check_model(settings)

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values force on others; `reasons` has the reasons."""
        return dict.fromkeys(self.reasons(settings), ToggleValue("off"))

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was requested."""
        return forced_off(settings)

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line, and after it the lines of its options file, each a word."""
        lines = self._options(settings)
        command = _server_start(settings, Path(OPTIONS_FILE)).launch_line()
        return [*command, f"# {OPTIONS_FILE}:", *lines]

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that `settings` start; None: not found.

        Cheap: nothing is imported or started.
        """
        found = version_found(settings, _program(settings), _PACKAGES)
        return None if found is None else found[1]

    def start(self, settings: EngineSettings) -> AbstractContextManager[TensorRtLlmEndpoint]:
        """Start TensorRT-LLM; leaving the context stops all of it. Raises `EngineError`."""
        return self._started(settings)

    @contextmanager
    def _started(self, settings: EngineSettings) -> Iterator[TensorRtLlmEndpoint]:
        options = self._options(settings)
        with ExitStack() as stack:
            file = _written(options, settings.log_path, stack)
            server = stack.enter_context(running_server(_server_start(settings, file)))
            records = stack.enter_context(RecordReader(server.target.url, self._poll_s))
            yield TensorRtLlmEndpoint(server, records, options)

    def _options(self, settings: EngineSettings) -> list[str]:
        return options_lines(settings, option_names(self.version_of(settings)))


def _server_start(settings: EngineSettings, options_file: Path) -> ServerStart:
    return ServerStart(
        engine=TensorRtLlmAdapter.name,
        settings=settings,
        program=_program(settings),
        words=lambda port: serve_words(settings, port, str(options_file)),
        own_env=_own_env,
        model=served_name(settings),
        fields=_FIELDS,
        token_ids=True,
        files=(options_file,),
    )


def _program(settings: EngineSettings) -> tuple[str, ...]:
    return program_words(_PROGRAM, settings.runtime, TensorRtLlmAdapter.name)


def _written(lines: list[str], log_path: Path | None, stack: ExitStack) -> Path:
    """Return the options file: beside the log, where there is one, to be kept with it."""
    if log_path is None:
        folder = tempfile.TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True)
        path = Path(stack.enter_context(folder)) / "options.yaml"
    else:
        path = log_path.with_suffix(".options.yaml").absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise EngineError(f"the engine's options cannot be written: {error}") from error
    return path


def _own_env(folder: Path) -> dict[str, str]:
    return {
        "TRTLLM_NO_USAGE_STATS": "1",  # its flag for that is another in each version
        "TLLM_LOG_LEVEL": "info",  # what took effect is read from the log
        "FORCE_DETERMINISTIC": "0",  # one that the shell happens to have would stop all reuse
        "PROMETHEUS_MULTIPROC_DIR": str(folder),  # else another server's counts are added
    }
