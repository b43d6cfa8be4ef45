"""Engine-neutral settings → SGLang's command line. Pure; `tests/` checks it with SGLang's parser.

Every flag is written, also where SGLang's default is the same. Its switches have no opposite: of
what is on by default only `off` can be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.adapters.base import EngineSettings, ToggleValue
from harness.adapters.sglang.versions import Release

KV_DTYPES = {"auto": "auto", "fp8": "fp8_e4m3"}  # the one that vLLM's fp8 is
QUANTIZATION = {"none": None, "fp8": "fp8"}
METHODS = {"ngram": "NGRAM", "draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}
VERIFIED_WITH = 1  # the token that a draft follows is one of SGLang's "draft tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangBuild:
    """The SGLang that is started: what its flags depend on beside the settings."""

    release: Release
    cpu: bool = False
    # Whether drafts can be verified on a CPU: SGLang has that with Intel AMX only. A program or
    # command of the author's own may have attention that can.
    verifies_on_cpu: bool = False


def serve_words(settings: EngineSettings, port: int | str, build: SglangBuild) -> list[str]:
    """Return the words after the program, with the author's own last."""
    flags = {
        "model-path": settings.model,
        **_limits(settings),
        **_toggles(settings, build),
        **_ours(port, build),
    }
    words = [word for name, value in flags.items() for word in _words(name, value)]
    return [*words, *settings.extra_args]


def _limits(settings: EngineSettings) -> dict[str, Any]:
    chunks, most = settings.kind("chunked_prefill") == "on", settings.max_batched_tokens
    return {
        "dtype": settings.dtype,
        "context-length": settings.max_model_len,
        "max-running-requests": settings.running_limit,
        "chunked-prefill-size": most if chunks else -1,
        # Without chunks a prompt is one piece, and this only limits what comes along with it.
        "max-prefill-tokens": None if chunks else max(most, settings.max_model_len),
        "mem-fraction-static": settings.memory_utilization,
        "trust-remote-code": settings.trust_remote_code,
    }


def _toggles(settings: EngineSettings, build: SglangBuild) -> dict[str, Any]:
    return {
        "tp-size": settings.kind("tensor_parallel"),
        "pp-size": _unless(settings.kind("pipeline_parallel"), "1"),
        "dp-size": _unless(settings.kind("data_parallel"), "1"),
        # The experts are spread over the GPUs of one stage.
        "ep-size": settings.kind("tensor_parallel")
        if settings.kind("expert_parallel") == "on"
        else None,
        "page-size": _unless(settings.kind("block_size"), "auto"),
        "disable-radix-cache": settings.kind("prefix_caching") == "off",
        "disable-overlap-schedule": settings.kind("overlap_scheduling") == "off",
        "kv-cache-dtype": KV_DTYPES[settings.kind("kv_cache_dtype")],
        "quantization": QUANTIZATION[settings.kind("quantization")],
        "attention-backend": _unless(settings.kind("attention_backend").lower(), "auto"),
        **_cuda_graphs(settings, build.release),
        **_speculative_flags(settings.toggles["speculative"]),
    }


def _cuda_graphs(settings: EngineSettings, release: Release) -> dict[str, Any]:
    """Return the flags that turn graphs off; where they are on, those of every batch there is."""
    if settings.kind("cuda_graphs") == "on":
        return {release.graph_batch: settings.running_limit}
    named = (flag.partition("=") for flag in release.graphs_off)
    return {name: value or True for name, _, value in named}


def _speculative_flags(value: ToggleValue) -> dict[str, Any]:
    """Return SGLang's words for a chain of drafts; without a length all are SGLang's to choose."""
    if value.kind == "off":
        return {}
    options = dict(value.options)
    flags: dict[str, Any] = {
        "speculative-algorithm": METHODS[value.kind],
        "speculative-draft-model-path": options.get("draft"),
    }
    if "tokens" in options:
        flags["speculative-num-draft-tokens"] = int(options["tokens"]) + VERIFIED_WITH
        if value.kind != "ngram":
            flags |= {"speculative-num-steps": options["tokens"], "speculative-eagle-topk": 1}
    return flags


def _ours(port: int | str, build: SglangBuild) -> dict[str, Any]:
    return {
        "device": "cpu" if build.cpu else None,
        # no sampling defaults of the model's own
        "sampling-defaults": "openai" if build.release.sampling_defaults else None,
        "enable-metrics": True,
        "enable-cache-report": True,  # cached tokens of each request, in its usage
        "stream-interval": 1,
        "log-level-http": "warning",  # no line a request in the log
        "host": "127.0.0.1",
        "port": port,
    }


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield a flag as SGLang reads it: --flag, or --flag VALUE."""
    if value is None or value is False:
        return
    yield f"--{name}"
    if value is not True:
        yield str(value)


def _unless(value: str, nothing: str) -> str | None:
    return None if value == nothing else value
