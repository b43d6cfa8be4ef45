"""TensorRT-LLM: how it is started, and what is asked of it while it runs. Knows nothing of load.

**Not yet run against the real TensorRT-LLM**: written from its sources, 1.1 to 1.4.0rc1, and held
against a stand-in that refuses what those refuse. What the stand-in cannot show, nothing has shown.

It has no way to empty its prefix cache. No run needs one: the texts of a run are named by its seed,
so that nothing it asks can have been left there by another. Old blocks only have to make room.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ServerCounters, Target, ToggleValue
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
from harness.adapters.tensorrt_llm.checks import (
    check_extra_args,
    check_sizes,
    check_toggles,
    off_all_the_same,
)
from harness.adapters.tensorrt_llm.options import (
    OPTIONS_FILE,
    batch_limit,
    dialect_of,
    model_word,
    options_lines,
    serve_words,
    served_name,
    step_tokens,
)
from harness.adapters.tensorrt_llm.records import POLL_S, RecordReader
from harness.adapters.tensorrt_llm.reported import effective_labels, said_by
from harness.adapters.tensorrt_llm.stats import Asked, IterationTotals, RequestTotals, counters_of

_PROGRAM = "trtllm-serve"
_PACKAGES = ("tensorrt_llm",)
_USAGE = frozenset({"include_usage", "continuous_usage_stats"})
_FIELDS = _USAGE | {"seed", "ignore_eos", "detokenize"}
_TOLD = ("TRTLLM_", "TLLM_", "FORCE_DETERMINISTIC", "HF_", "CUDA_", "OMP_", "OMPI_", "NCCL_")


class TensorRtLlmEndpoint:
    """A running TensorRT-LLM."""

    notes: tuple[str, ...] = ()

    def __init__(
        self, server: Server, settings: EngineSettings, records: RecordReader, options: list[str]
    ) -> None:
        """Ask the server what it is; it does not change while it runs."""
        self._server = server
        self._settings = settings
        self._records = records
        self._options = options
        self._requests = RequestTotals()
        self._at_start = self._metrics()
        told = server.json("/version") or {}
        self.engine_version = str(told.get("version", "unknown"))
        self.engine_kind = str(told.get("engine_kind", "real"))
        folder = model_folder(model_word(settings), server.env)
        self.target: Target | None = replace(
            server.target,
            fields=_FIELDS,
            vocabulary=None if folder is None else ordinary_tokens(folder),
        )

    def effective(self) -> Mapping[str, str]:
        """Return what the start-up log and the series say, toggle name → value label."""
        blocks = self._records.totals.block_tokens
        said = said_by(self._server.processes.log(), self._at_start, blocks)
        return effective_labels(said, self._settings.toggles)

    def counters(self) -> ServerCounters:
        """Return the running totals. Raises `EngineError` when the server has ended.

        Waits until every iteration so far is counted: at once where the number of answers tells
        that, else as long as the server takes to say that there is nothing more.
        """
        iterations = self._settled()
        kinds = {name: value.kind for name, value in self._settings.toggles.items()}
        cut_static = kinds["batching"] == "static" and kinds["chunked_prefill"] == "on"
        asked = Asked(
            caches=kinds["prefix_caching"] == "on",
            # Of a static batch whose prompts are cut some parts come when others are done.
            tells_joining=not cut_static,
            most_tokens=self._settings.max_model_len,
        )
        return counters_of(iterations, self._requests, self._metrics(), asked)

    def reset(self) -> None:
        """Begin a run, for which the cache is cold without being emptied: see the module.

        Raises `EngineError` while requests are in flight.
        """
        if self._settled().busy:
            raise EngineError("TensorRT-LLM has requests in flight: no run can begin")
        self._records.forget_peak()

    def facts(self) -> Mapping[str, Any]:
        """Return sizes, and how exactly this server was started."""
        told = self._records.totals
        size, blocks = told.block_tokens, told.most_blocks
        return {
            "block_size": size,
            "kv_blocks": blocks,
            "kv_tokens": size * blocks if size and blocks else None,
            "running_limit": batch_limit(self._settings),
            "step_tokens": step_tokens(self._settings),
            "dtype": self._settings.dtype,
            "memory_utilization_of": "what the weights leave",
            "cache_emptied": False,
            "stats_poll_s": self._records.poll_s,
            "stats_lost": told.lost,
            "command": list(self._server.command),
            "options": self._options,
            "environment": told_env({**os.environ, **self._settings.env}, _TOLD),
            "startup_s": round(self._server.startup_s, 3),
            "log": self._settings.log_path and self._settings.log_path.name,
            "assumptions": [],
        }

    def _settled(self) -> IterationTotals:
        told = self._server.json("/perf_metrics")  # each finished request is told once
        self._requests.add(told if isinstance(told, list) else ())
        return self._records.settle(self._requests.finished or None)

    def _metrics(self) -> ServerMetrics:
        answer = self._server.ask("/prometheus/metrics")
        return ServerMetrics(answer.text if answer.status == 200 else "")


class TensorRtLlmAdapter:
    """Starts TensorRT-LLM. Knows its options; knows nothing of load or latency."""

    name = "tensorrt-llm"
    engine_kind = "real"

    def __init__(self, poll_s: float = POLL_S) -> None:
        """Read the server's records every `poll_s` seconds while it runs."""
        self._poll_s = poll_s

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` for what can never start, its subclass for what is not offered."""
        check_extra_args(settings)
        check_toggles(settings, dialect_of(self.version_of(settings)))
        check_sizes(settings)
        if re.match(r"[~./]", settings.model) and model_folder(settings.model, {}) is None:
            raise EngineError(f"there is no model folder {settings.model} with a config.json")

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return what the values drag along; `reasons` says why."""
        return {toggle: ToggleValue("off") for toggle in off_all_the_same(settings)}

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return toggle → why it is off in these settings, whatever was asked."""
        return off_all_the_same(settings)

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the command line, and after it the lines of its options file, each a word."""
        words = serve_words(settings, "PORT", OPTIONS_FILE)
        lines = options_lines(settings, dialect_of(self.version_of(settings)))
        started = [*_program(settings), *words]
        if (container := _container(settings)) is not None:
            started = container.words("NAME", started, [Path(OPTIONS_FILE)])
        return [*started, f"# {OPTIONS_FILE}:", *lines]

    def version_of(self, settings: EngineSettings) -> str | None:
        """Return the version that is installed where `settings` point to; None: it cannot be told.

        Cheap: nothing is imported or started.
        """
        if (image := in_image(settings)) is not None:
            return image_version(image)
        found = installed_version(_program(settings), _PACKAGES)
        return None if found is None else found[1]

    def start(self, settings: EngineSettings) -> AbstractContextManager[TensorRtLlmEndpoint]:
        """Start TensorRT-LLM; leaving the context stops all of it. Raises `EngineError`."""
        return self._started(settings)

    @contextmanager
    def _started(self, settings: EngineSettings) -> Iterator[TensorRtLlmEndpoint]:
        words = _program(settings)
        lines = options_lines(settings, dialect_of(self.version_of(settings)))
        with ExitStack() as stack:
            file = _written(lines, settings.log_path, stack)
            start = ServerStart(
                engine=self.name,
                command=lambda port: [*words, *serve_words(settings, port, str(file))],
                env=lambda folder: engine_env(words, _own_env(folder), settings.env),
                target=lambda port: Target(
                    url=f"http://127.0.0.1:{port}", model=served_name(settings)
                ),
                timeout_s=settings.start_timeout_s,
                log_path=settings.log_path,
                container=_container(settings),
                files=(file,),
            )
            server = stack.enter_context(running_server(start))
            records = stack.enter_context(RecordReader(server.target.url, self._poll_s))
            yield TensorRtLlmEndpoint(server, settings, records, lines)


def _container(settings: EngineSettings) -> Container | None:
    return container_of(settings, _own_env(PASSING_FOLDER))


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
