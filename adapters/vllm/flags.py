"""Engine-neutral settings → vLLM's command line. Pure; `tests/` checks it with vLLM's parser.

Every flag is written, also where vLLM's default is the same: defaults change with its version and
with the GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from harness.adapters.base import EngineSettings, ToggleValue

DEFAULT_DRAFT_TOKENS = 5
KV_DTYPES = {
    "auto": "auto",
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
}
QUANTIZATION = {"none": None, "fp8": "fp8", "int8": "int8_per_channel_weight_only"}
METHODS = {"ngram": "ngram", "draft": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}


def serve_words(settings: EngineSettings, port: int | str) -> list[str]:
    """Return the words after the program: `serve MODEL --flags…`, with the author's own last."""
    flags = {**_limits(settings), **_toggles(settings), **_ours(port)}
    words = [word for name, value in flags.items() for word in _words(name, value)]
    return ["serve", settings.model, *words, *settings.extra_args]


def _limits(settings: EngineSettings) -> dict[str, Any]:
    return {
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.running_limit,
        "max_num_batched_tokens": settings.step_tokens,
        "gpu_memory_utilization": settings.memory_utilization,
        "trust_remote_code": True if settings.trust_remote_code else None,
    }


def _toggles(settings: EngineSettings) -> dict[str, Any]:
    graphs = settings.kind("cuda_graphs") == "on"
    return {
        "tensor_parallel_size": settings.kind("tensor_parallel"),
        "pipeline_parallel_size": _unless(settings.kind("pipeline_parallel"), "1"),
        "data_parallel_size": _unless(settings.kind("data_parallel"), "1"),
        "enable_expert_parallel": True if settings.kind("expert_parallel") == "on" else None,
        "block_size": _unless(settings.kind("block_size"), "auto"),
        "enable_prefix_caching": settings.kind("prefix_caching") == "on",
        "enable_chunked_prefill": settings.kind("chunked_prefill") == "on",
        "async_scheduling": settings.kind("overlap_scheduling") == "on",
        "kv_cache_dtype": KV_DTYPES[settings.kind("kv_cache_dtype")],
        "quantization": QUANTIZATION[settings.kind("quantization")],
        "attention_backend": _unless(settings.kind("attention_backend"), "auto"),
        # Dotted: the author's own -cc.… words are merged with it, a whole JSON would be replaced.
        "compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE" if graphs else "NONE",
        "speculative_config": _speculative_config(settings.toggles["speculative"]),
    }


def _ours(port: int | str) -> dict[str, Any]:
    return {
        "generation_config": "vllm",  # no sampling defaults of the model's own
        "enable_prompt_tokens_details": True,  # cached tokens of each request, in its usage
        "uvicorn_log_level": "warning",  # no line a request in the log
        "host": "127.0.0.1",
        "port": port,
    }


def _speculative_config(value: ToggleValue) -> dict[str, Any] | None:
    if value.kind == "off":
        return None
    options = dict(value.options)
    config: dict[str, Any] = {
        "method": METHODS[value.kind],
        "num_speculative_tokens": options.get("tokens", DEFAULT_DRAFT_TOKENS),
    }
    return {**config, "model": options["draft"]} if "draft" in options else config


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield a flag as vLLM reads it: --flag, --no-flag, --flag VALUE; a mapping is JSON."""
    head, dot, rest = name.partition(".")
    flag = head.replace("_", "-")
    if dot:
        yield f"--{flag}.{rest}={value}"
    elif isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif value is not None:
        yield f"--{flag}"
        yield json.dumps(value) if isinstance(value, Mapping) else str(value)


def _unless(value: str, nothing: str) -> str | None:
    return None if value == nothing else value
