"""The reported configuration of a running vLLM, and what it counts. Pure.

Three sources: the resolved configuration (`/server_info`, with VLLM_SERVER_DEV_MODE=1), the labels
of a series (`vllm:cache_config_info`), and the line that starts an engine's log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters.base import ServerCounters, ToggleValue
from harness.adapters.reported_config import (
    Labels,
    Reader,
    always,
    backend_label,
    batching_label,
    dtype_of,
    speculation_label,
    switch,
    text_of,
)
from harness.adapters.reported_values import whole
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.vllm.flags import KV_DTYPES, METHODS, QUANTIZATION

_KV_NAMES = {flag: label for label, flag in KV_DTYPES.items()}
_METHOD_NAMES = {method: kind for kind, method in METHODS.items()}
_QUANTIZATION_NAMES = {flag: label for label, flag in QUANTIZATION.items()}
_START = re.compile(r"Initializing a V1 LLM engine .*")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention )?backend")


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """The sources of a reported configuration, as far as this server has them."""

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
        return whole(value)


def reported_config(server_info: Any, metrics: ServerMetrics, log: str) -> VllmConfig:
    """Return what the server reports; `server_info` is None where it has no such route."""
    info = server_info.get("vllm_config") if isinstance(server_info, Mapping) else None
    return VllmConfig(
        info if isinstance(info, Mapping) else {},
        metrics.labels("vllm:cache_config_info") or {},
        log,
    )


def sizes_of(reported: VllmConfig) -> dict[str, Any]:
    """Return sizes of the engine for reports and checks; None for what it does not report."""
    blocks, block_size = (
        reported.number("cache_config", key) for key in ("num_gpu_blocks", "block_size")
    )
    tokens = reported.number("cache_config", "kv_cache_size_tokens")
    derived = blocks * block_size if blocks and block_size else None
    return {
        "block_size": block_size,
        "kv_blocks": blocks,
        "kv_tokens": derived if tokens is None else tokens,
        "running_limit": reported.number("scheduler_config", "max_num_seqs"),
        "step_tokens": reported.number("scheduler_config", "max_num_batched_tokens"),
        "dtype": str(reported.part("model_config").get("dtype", "")).removeprefix("torch.") or None,
        "checkpoint_quantization": reported.part("model_config").get("quantization"),
        "compilation_mode": reported.part("compilation_config").get("mode"),
    }


def totals_of(metrics: ServerMetrics, step_tokens: int | None) -> ServerCounters:
    """Return the totals of one scrape; names are those of 0.10 to 0.32, the newest first.

    Only steps that produced a token are counted, a prompt's chunks before its last are not. So a
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


def _logged(reported: VllmConfig, key: str) -> str | None:
    """Return `key=VALUE` from the line that starts the log; the least reliable source."""
    start = _START.search(reported.log)
    found = re.search(rf"\b{key}=([\w.]+)", start[0]) if start else None
    return found[1] if found else None


def _prefix_caching(reported: VllmConfig, _: ToggleValue) -> Labels:
    key = "enable_prefix_caching"
    values = reported.part("cache_config").get(key), reported.cache.get(key), _logged(reported, key)
    return tuple(map(switch, values))


def _chunked_prefill(reported: VllmConfig, _: ToggleValue) -> Labels:
    section, key = reported.part("scheduler_config"), "enable_chunked_prefill"
    return switch(section.get(key)), switch(_logged(reported, key))


def _batching(reported: VllmConfig, _: ToggleValue) -> Labels:
    return (batching_label(reported.number("scheduler_config", "max_num_seqs")),)


def _cuda_graphs(reported: VllmConfig, _: ToggleValue) -> Labels:
    section = reported.part("compilation_config")
    if "cudagraph_mode" in section:
        return ("off" if section["cudagraph_mode"] in (0, None, "NONE") else "on",)
    logged = re.search(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", reported.log)
    return (None if logged is None else "off" if logged[1] == "NONE" else "on",)


def _overlap(reported: VllmConfig, _: ToggleValue) -> Labels:
    return (switch(reported.part("scheduler_config").get("async_scheduling")),)


def _kv_cache_dtype(reported: VllmConfig, _: ToggleValue) -> Labels:
    names = (
        text_of(reported.part("cache_config").get("cache_dtype")),
        reported.cache.get("cache_dtype"),
        _logged(reported, "kv_cache_dtype"),
    )
    return tuple(
        name and _KV_NAMES.get(name, "fp8" if name.startswith("fp8") else name) for name in names
    )


def _quantization(reported: VllmConfig, requested: ToggleValue) -> Labels:
    """Return it where it was requested: vLLM also reports what a checkpoint comes with."""
    section, logged = reported.part("model_config"), _logged(reported, "quantization")
    if "quantization" not in section and logged is None:
        return (None,)
    if requested.kind == "none":
        return ("none",)
    name = text_of(section.get("quantization", logged))
    return (_QUANTIZATION_NAMES.get(None if name == "None" else name, str(name)),)


def _speculative(reported: VllmConfig, requested: ToggleValue) -> Labels:
    if "speculative_config" not in reported.info:
        logged = _logged(reported, "speculative_config")
        return ("off" if logged == "None" else None,)
    config = reported.info["speculative_config"]
    if not isinstance(config, Mapping):
        return ("off",)
    kind = _METHOD_NAMES.get(str(config.get("method")), str(config.get("method")))
    options = {"tokens": config.get("num_speculative_tokens"), "draft": config.get("model")}
    return (speculation_label(kind, options, requested),)


def _attention_backend(reported: VllmConfig, requested: ToggleValue) -> Labels:
    configured = reported.part("attention_config").get("backend")
    logged = _BACKEND.search(reported.log)  # what was taken in the end, where the log has it
    label = backend_label(logged[1] if logged else configured, requested)
    return ("auto" if label is None and reported.part("attention_config") else label,)


def _parallel(key: str) -> Reader[VllmConfig]:
    return lambda reported, _: (
        text_of(reported.part("parallel_config").get(key)),
        _logged(reported, key),
    )


def _expert_parallel(reported: VllmConfig, _: ToggleValue) -> Labels:
    return (switch(reported.part("parallel_config").get("enable_expert_parallel")),)


def _block_size(reported: VllmConfig, _: ToggleValue) -> Labels:
    key = "block_size"
    return text_of(reported.part("cache_config").get(key)), reported.cache.get(key)


def base_sources(reported: VllmConfig) -> dict[str, Labels]:
    """Return base setting → what each source reports of it."""
    model, scheduler = reported.part("model_config"), reported.part("scheduler_config")
    share = "gpu_memory_utilization"
    return {
        "dtype": (dtype_of(model.get("dtype")), dtype_of(_logged(reported, "dtype"))),
        "max_model_len": (text_of(model.get("max_model_len")), _logged(reported, "max_seq_len")),
        "max_num_seqs": (text_of(scheduler.get("max_num_seqs")),),
        "max_batched_tokens": (text_of(scheduler.get("max_num_batched_tokens")),),
        "memory_utilization": (
            text_of(reported.part("cache_config").get(share)),
            reported.cache.get(share),
        ),
    }


READERS: Mapping[str, Reader[VllmConfig]] = {
    "prefix_caching": _prefix_caching,
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": always("on"),
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _overlap,
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": always("recompute"),
    "attention_backend": _attention_backend,
    "tensor_parallel": _parallel("tensor_parallel_size"),
    "pipeline_parallel": _parallel("pipeline_parallel_size"),
    "data_parallel": _parallel("data_parallel_size"),
    "expert_parallel": _expert_parallel,
    "block_size": _block_size,
}
