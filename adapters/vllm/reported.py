"""What a running vLLM says that it runs, in the words of our toggles. Pure.

Three sources: the resolved configuration (`/server_info`, with VLLM_SERVER_DEV_MODE=1), the labels
of a series (`vllm:cache_config_info`), and the line that starts an engine's log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters.base import ServerCounters, ToggleValue
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.flags import KV_DTYPES, METHODS, QUANTIZATION

_KV_NAMES = {flag: label for label, flag in KV_DTYPES.items()}
_METHOD_NAMES = {method: kind for kind, method in METHODS.items()}
_QUANTIZATION_NAMES = {flag: label for label, flag in QUANTIZATION.items()}
_START = re.compile(r"Initializing a V1 LLM engine .*")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend")


@dataclass(frozen=True, slots=True)
class Said:
    """The sources, as far as this server has them."""

    info: Mapping[str, Any]  # vllm_config of /server_info
    cache: Mapping[str, str]  # labels of vllm:cache_config_info
    log: str

    def part(self, name: str) -> Mapping[str, Any]:
        """Return one section of the resolved configuration; empty when there is none."""
        section = self.info.get(name)
        return section if isinstance(section, Mapping) else {}

    def number(self, section: str, key: str) -> int | None:
        """Return a whole number of the configuration, or of the labels of its series."""
        value = self.part(section).get(key, self.cache.get(key))
        return int(value) if str(value).isdigit() else None


def said_by(server_info: Any, metrics: ServerMetrics, log: str) -> Said:
    """Return what the server said; `server_info` is None where it does not tell."""
    info = server_info.get("vllm_config") if isinstance(server_info, Mapping) else None
    return Said(
        info if isinstance(info, Mapping) else {},
        metrics.labels("vllm:cache_config_info") or {},
        log,
    )


def effective_labels(server: Said, asked: Mapping[str, ToggleValue]) -> dict[str, str]:
    """Return toggle → label, of all toggles of which the server says anything.

    Where its sources disagree, the one that contradicts what was asked is shown: a doubt counts.
    """
    labels = {}
    for toggle, value in asked.items():
        told = [label for label in _READERS[toggle](server, value) if label is not None]
        if told:
            labels[toggle] = next((label for label in told if label != value.label), told[0])
    return labels


def sizes_of(server: Said) -> dict[str, Any]:
    """Return sizes of the engine for reports and checks; None for what it does not say."""
    blocks, block_size = (
        server.number("cache_config", key) for key in ("num_gpu_blocks", "block_size")
    )
    tokens = server.number("cache_config", "kv_cache_size_tokens")
    derived = blocks * block_size if blocks and block_size else None
    return {
        "block_size": block_size,
        "kv_blocks": blocks,
        "kv_tokens": derived if tokens is None else tokens,
        "running_limit": server.number("scheduler_config", "max_num_seqs"),
        "step_tokens": server.number("scheduler_config", "max_num_batched_tokens"),
        "dtype": str(server.part("model_config").get("dtype", "")).removeprefix("torch.") or None,
        "checkpoint_quantization": server.part("model_config").get("quantization"),
        "compilation_mode": server.part("compilation_config").get("mode"),
    }


def totals_of(metrics: ServerMetrics, step_tokens: int | None) -> ServerCounters:
    """Return the totals of one scrape; names are those of 0.10 to 0.32, the newest first.

    Only steps that brought a token are counted, a prompt's chunks before its last are not. So a
    step that seems to hold more than `step_tokens` ended a prompt that began in an earlier one.
    """
    prompt = metrics.count("vllm:prompt_tokens")
    cached = metrics.count(
        "vllm:prompt_tokens_cached", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"
    )
    output = metrics.count("vllm:generation_tokens")
    first = metrics.count("vllm:time_to_first_token_seconds_count")
    later = metrics.count(
        "vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"
    )
    seen = metrics.count("vllm:iteration_tokens_total_sum")
    # older versions counted cached prompt tokens too: then the sum is larger, and proves nothing
    computed_only = seen is not None and seen <= (prompt or 0) - (cached or 0) + (output or 0)
    split = None
    if step_tokens is not None and computed_only:
        split = metrics.above("vllm:iteration_tokens_total", step_tokens)
    unspeculative = 0 if metrics.has("vllm:generation_tokens") else None  # no series when off
    drafted = metrics.count("vllm:spec_decode_num_draft_tokens")
    return ServerCounters(
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
        looked_up_prompt_tokens=metrics.count(
            "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"
        ),
        output_tokens=output,
        drafted_tokens=unspeculative if drafted is None else drafted,
        accepted_tokens=metrics.count("vllm:spec_decode_num_accepted_tokens"),
        verify_steps=metrics.count("vllm:spec_decode_num_drafts"),
        preemptions=metrics.count("vllm:num_preemptions"),
        steps=metrics.count("vllm:iteration_tokens_total_count"),
        sequence_steps=None if first is None or later is None else first + later,
        split_prefills_at_least=split,
        queued_ns=metrics.nanoseconds("vllm:request_queue_time_seconds_sum"),
    )


_Labels = tuple[str | None, ...]  # what each source says, the surest first


def _switch(value: Any) -> str | None:
    """Return on or off for a bool, as data or as text."""
    return {"True": "on", "False": "off"}.get(str(value))


def _logged(server: Said, key: str) -> str | None:
    """Return `key=VALUE` from the line that starts the log; a last resort."""
    start = _START.search(server.log)
    found = re.search(rf"\b{key}=([\w.]+)", start[0]) if start else None
    return found[1] if found else None


def _prefix_caching(server: Said, _: ToggleValue) -> _Labels:
    key = "enable_prefix_caching"
    told = server.part("cache_config").get(key), server.cache.get(key), _logged(server, key)
    return tuple(_switch(value) for value in told)


def _chunked_prefill(server: Said, _: ToggleValue) -> _Labels:
    section, key = server.part("scheduler_config"), "enable_chunked_prefill"
    return _switch(section.get(key)), _switch(_logged(server, key))


def _batching(server: Said, _: ToggleValue) -> _Labels:
    limit = server.number("scheduler_config", "max_num_seqs")
    return (None if limit is None else "none" if limit == 1 else "continuous",)


def _paged_kv(_: Said, __: ToggleValue) -> _Labels:
    return ("on",)


def _preemption(_: Said, __: ToggleValue) -> _Labels:
    return ("recompute",)


def _cuda_graphs(server: Said, _: ToggleValue) -> _Labels:
    section = server.part("compilation_config")
    if "cudagraph_mode" in section:
        return ("off" if section["cudagraph_mode"] in (0, None, "NONE") else "on",)
    logged = re.search(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", server.log)
    return (None if logged is None else "off" if logged[1] == "NONE" else "on",)


def _overlap(server: Said, _: ToggleValue) -> _Labels:
    return (_switch(server.part("scheduler_config").get("async_scheduling")),)


def _kv_cache_dtype(server: Said, _: ToggleValue) -> _Labels:
    told = (
        server.part("cache_config").get("cache_dtype"),
        server.cache.get("cache_dtype"),
        _logged(server, "kv_cache_dtype"),
    )
    return tuple(
        None if name is None else _KV_NAMES.get(name, "fp8" if name.startswith("fp8") else name)
        for name in (None if name is None else str(name) for name in told)
    )


def _quantization(server: Said, asked: ToggleValue) -> _Labels:
    """Read it back where it was asked for: of a model that is quantized already vLLM tells too."""
    section, logged = server.part("model_config"), _logged(server, "quantization")
    if "quantization" not in section and logged is None:
        return (None,)
    if asked.kind == "none":
        return ("none",)
    told = section.get("quantization", logged)
    return (_QUANTIZATION_NAMES.get(None if told == "None" else told, str(told)),)


def _speculative(server: Said, asked: ToggleValue) -> _Labels:
    if "speculative_config" not in server.info:
        logged = _logged(server, "speculative_config")
        return ("off" if logged == "None" else None,)
    config = server.info["speculative_config"]
    if not isinstance(config, Mapping):
        return ("off",)
    kind = _METHOD_NAMES.get(str(config.get("method")), str(config.get("method")))
    now = {"tokens": config.get("num_speculative_tokens"), "draft": config.get("model")}
    options = tuple((name, now.get(name) or "nothing") for name, _ in asked.options)
    return (ToggleValue(kind, options).label,)


def _attention_backend(server: Said, asked: ToggleValue) -> _Labels:
    configured = server.part("attention_config").get("backend")
    logged = _BACKEND.search(server.log)  # what was taken in the end, where the log says so
    told = logged[1] if logged else configured
    if told is None:
        return ("auto" if server.part("attention_config") else None,)
    return (asked.kind if str(told).lower() == asked.kind.lower() else str(told),)


def _tensor_parallel(server: Said, _: ToggleValue) -> _Labels:
    told = server.part("parallel_config").get("tensor_parallel_size")
    return None if told is None else str(told), _logged(server, "tensor_parallel_size")


def _block_size(server: Said, _: ToggleValue) -> _Labels:
    told = server.part("cache_config").get("block_size")
    return None if told is None else str(told), server.cache.get("block_size")


_READERS: dict[str, Callable[[Said, ToggleValue], _Labels]] = {
    "prefix_caching": _prefix_caching,
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": _paged_kv,
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _overlap,
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _tensor_parallel,
    "block_size": _block_size,
}
