"""Engine-neutral settings → vLLM's command line. Pure; `tests/` holds it against its parser.

Every flag is said outright, also where vLLM's default is the same: defaults change with its
version and with the GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ToggleValue, UnsupportedToggleError

DEFAULT_DRAFT_TOKENS = 5
KV_DTYPES = {
    "auto": "auto",
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
}
QUANTIZATION = {"none": None, "fp8": "fp8", "int8": "int8_per_channel_weight_only"}
METHODS = {"ngram": "ngram", "draft": "draft_model", "eagle": "eagle", "eagle3": "eagle3"}

# Flags that the harness answers for; a second opinion in extra_args would silently win.
_OWN = {
    "host": "harness listens on 127.0.0.1 only",
    "port": "harness chooses a free one",
    "uds": "harness asks over TCP",
    "model": "it is the sweep's model",
    "served-model-name": "it is the sweep's model",
    "api-key": "harness asks its own servers without a key",
    "dtype": "set base.dtype",
    "max-model-len": "set base.max_model_len",
    "max-num-seqs": "set base.max_num_seqs",
    "max-num-batched-tokens": "set base.max_batched_tokens",
    "gpu-memory-utilization": "set base.memory_utilization",
    "tensor-parallel-size": "set the toggle tensor_parallel",
    "tp": "set the toggle tensor_parallel",
    "enable-prefix-caching": "set the toggle prefix_caching",
    "enable-chunked-prefill": "set the toggle chunked_prefill",
    "async-scheduling": "set the toggle overlap_scheduling",
    "kv-cache-dtype": "set the toggle kv_cache_dtype",
    "quantization": "set the toggle quantization",
    "q": "set the toggle quantization",
    "speculative-config": "set the toggle speculative",
    "sc": "set the toggle speculative",
    "spec-method": "set the toggle speculative",
    "spec-model": "set the toggle speculative",
    "spec-tokens": "set the toggle speculative",
    "attention-backend": "set the toggle attention_backend",
    "block-size": "set the toggle block_size",
    "compilation-config.cudagraph_mode": "set the toggle cuda_graphs",
    "cc.cudagraph_mode": "set the toggle cuda_graphs",
    "compilation-config": "write -cc.KEY=VALUE, which is merged with what the toggles set",
    "cc": "write -cc.KEY=VALUE, which is merged with what the toggles set",
    "trust-remote-code": "set base.trust_remote_code",
    "disable-log-stats": "without its counters no toggle can be proven",
}


def serve_words(settings: EngineSettings, port: int | str) -> list[str]:
    """Return the words after the program: `serve MODEL --flags…`, with the author's own last."""
    flags = {**_limits(settings), **_toggles(settings), **_ours(port)}
    words = [word for name, value in flags.items() for word in _words(name, value)]
    return ["serve", settings.model, *words, *settings.extra_args]


def step_tokens(settings: EngineSettings) -> int:
    """Return the tokens of a step at most: without chunks a whole prompt must fit into one."""
    if _kind(settings, "chunked_prefill") == "off":
        return max(settings.max_batched_tokens, settings.max_model_len)
    return settings.max_batched_tokens


def check_extra_args(settings: EngineSettings) -> None:
    """Raise `EngineError` for an extra argument that says again what the sweep says."""
    for word in settings.extra_args:
        name = word.partition("=")[0]
        if name.startswith("-") and (reason := _owner(name)):
            raise EngineError(f"extra_args: {name} cannot stand there: {reason}")


def check_toggles(settings: EngineSettings, *, cpu: bool) -> None:
    """Raise `UnsupportedToggleError`, with the reason, for a value that vLLM cannot follow."""
    for toggle, check in _CHECKS.items():
        if reason := check(settings.toggles[toggle], cpu):
            raise UnsupportedToggleError(f"{toggle}: {settings.toggles[toggle].label} {reason}")


def _limits(settings: EngineSettings) -> dict[str, Any]:
    alone = _kind(settings, "batching") == "none"
    return {
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": 1 if alone else settings.max_num_seqs,
        "max_num_batched_tokens": step_tokens(settings),
        "gpu_memory_utilization": settings.memory_utilization,
        "trust_remote_code": True if settings.trust_remote_code else None,
    }


def _toggles(settings: EngineSettings) -> dict[str, Any]:
    graphs = _kind(settings, "cuda_graphs") == "on"
    return {
        "tensor_parallel_size": _kind(settings, "tensor_parallel"),
        "block_size": _unless(_kind(settings, "block_size"), "auto"),
        "enable_prefix_caching": _kind(settings, "prefix_caching") == "on",
        "enable_chunked_prefill": _kind(settings, "chunked_prefill") == "on",
        "async_scheduling": _kind(settings, "overlap_scheduling") == "on",
        "kv_cache_dtype": KV_DTYPES[_kind(settings, "kv_cache_dtype")],
        "quantization": QUANTIZATION[_kind(settings, "quantization")],
        "attention_backend": _unless(_kind(settings, "attention_backend"), "auto"),
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


def _owner(name: str) -> str | None:
    """Return whose a flag is; vLLM takes beginnings of flags and _ for - all the same."""
    if not name.startswith("--"):
        return _OWN.get(name[1:])
    head, dot, rest = name[2:].partition(".")
    bare = head.replace("_", "-").removeprefix("no-") + dot + rest
    exact = _OWN.get(bare)
    begun = (reason for own, reason in _OWN.items() if len(bare) > 3 and own.startswith(bare))
    return exact or next(begun, None)


def _kind(settings: EngineSettings, toggle: str) -> str:
    return settings.toggles[toggle].kind


def _unless(value: str, nothing: str) -> str | None:
    return None if value == nothing else value


def _batching(value: ToggleValue, _: bool) -> str | None:
    return "is not offered: vLLM admits requests at every step" if value.kind == "static" else None


def _paged_kv(value: ToggleValue, _: bool) -> str | None:
    return "is not offered: vLLM always pages its KV" if value.kind == "off" else None


def _preemption(value: ToggleValue, _: bool) -> str | None:
    swap = value.kind == "swap"
    return "is not offered: vLLM computes anew what it preempted" if swap else None


def _on_gpu_only(value: ToggleValue, cpu: bool) -> str | None:
    return "needs a GPU: this is vLLM's CPU build" if cpu and value.kind == "on" else None


def _quantization(value: ToggleValue, cpu: bool) -> str | None:
    if value.kind not in QUANTIZATION:
        return "is not offered while loading: give a model that is quantized already"
    return "needs a GPU: this is vLLM's CPU build" if cpu and value.kind != "none" else None


def _speculative(value: ToggleValue, _: bool) -> str | None:
    options = dict(value.options)
    if "tree" in options:
        return "drafts a tree, which only the embedded engine does here; vLLM is given chains"
    if "acceptance" in options:
        return "assumes an acceptance, which only the embedded engine does; vLLM shows its own"
    if value.kind in ("draft", "eagle", "eagle3") and "draft" not in options:
        return "needs a draft model: add draft: MODEL"
    if value.kind == "ngram" and "draft" in options:
        return "drafts without a model: leave draft out"
    return None


def _attention_backend(value: ToggleValue, cpu: bool) -> str | None:
    usable = not cpu or value.kind.upper() in ("AUTO", "CPU_ATTN")
    return None if usable else "would be ignored: vLLM's CPU build has CPU_ATTN only"


def _number(value: ToggleValue, _: bool) -> str | None:
    usable = value.kind == "auto" or (value.kind.isdigit() and int(value.kind) > 0)
    return None if usable else "is no whole number of at least 1"


def _block_size(value: ToggleValue, cpu: bool) -> str | None:
    if cpu and value.kind.isdigit() and int(value.kind) % 32:
        return "is not offered: vLLM's CPU build takes multiples of 32"
    return _number(value, cpu)


_CHECKS: dict[str, Callable[[ToggleValue, bool], str | None]] = {
    "batching": _batching,
    "paged_kv": _paged_kv,
    "cuda_graphs": _on_gpu_only,
    "overlap_scheduling": _on_gpu_only,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _number,
    "block_size": _block_size,
}
