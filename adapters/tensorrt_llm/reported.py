"""The reported configuration of a running TensorRT-LLM. Pure.

Three sources: the arguments that it logs once resolved, what it logs where it could not follow
them, and in newer versions the labels of series such as `trtllm_kv_cache_config_info`. Not yet run
against the real TensorRT-LLM: what it does not report in this form is left out, and cannot be
verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.adapters.base import ToggleValue
from harness.adapters.reported_config import (
    Labels,
    Reader,
    always,
    backend_label,
    dtype_of,
    opposite,
    speculation_label,
    switch,
    text_of,
)
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.tensorrt_llm.options import POLICIES

_ARGUMENTS = re.compile(r"LLM Args:[ \t]*\n?(.+)")
_METHODS = {
    "NGramDecodingConfig": "ngram",
    "DraftTargetDecodingConfig": "draft",
    "Eagle3DecodingConfig": "eagle3",
}
_BATCHING = {policy: label for label, policy in POLICIES.items()}
_NO_REUSE = re.compile(r"Disabling block reuse|disable enable_block_reuse")
_NO_CHUNKS = re.compile(r"Disabling chunked context|disable enable_chunked_context")
_NO_OVERLAP = re.compile(r"Disable overlap scheduler|Overlap scheduler is not supported")
_GRAPHS = re.compile(r"Creating CUDA graph instances for [1-9]")
_OPENING, _CLOSING = "([{<", ")]}>"


@dataclass(frozen=True, slots=True)
class TensorRtLlmConfig:
    """The sources of a reported configuration, as far as this server has them."""

    arguments: Mapping[str, str]  # name → value as Python writes it
    metrics: ServerMetrics
    log: str
    block_tokens: int | None  # from its iterations

    def argument(self, name: str) -> str | None:
        """Return one argument as plain text; None where the server does not report it."""
        value = self.arguments.get(name)
        return None if value is None else _plain(value)

    def section(self, name: str) -> tuple[str, Mapping[str, str]] | None:
        """Return class and arguments of a nested configuration; None where there is none."""
        found = re.match(r"(\w+)\((.*)\)$", self.arguments.get(name, ""), re.DOTALL)
        return None if found is None else (found[1], _pairs(found[2]))

    def info(self, name: str, key: str) -> str | None:
        """Return a label of a series that consists of labels."""
        return (self.metrics.labels(f"trtllm_{name}_config_info") or {}).get(key)


def reported_config(
    log: str, metrics: ServerMetrics, block_tokens: int | None
) -> TensorRtLlmConfig:
    """Return what the server reports. Arguments are logged more than once: the last ones count."""
    logged = _ARGUMENTS.findall(log)
    return TensorRtLlmConfig(_pairs(logged[-1]) if logged else {}, metrics, log, block_tokens)


def _prefix_caching(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    return (
        switch(_of_kv_cache(reported, "enable_block_reuse")),
        switch(reported.info("kv_cache", "enable_block_reuse")),
        "off" if _NO_REUSE.search(reported.log) else None,
    )


def _chunked_prefill(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    dropped = "off" if _NO_CHUNKS.search(reported.log) else None
    return switch(reported.argument("enable_chunked_prefill")), dropped


def _batching(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    if reported.argument("max_batch_size") == "1":
        return ("none",)
    section = reported.section("scheduler_config")
    policy = _plain(section[1].get("capacity_scheduler_policy", "")) if section else ""
    return (_BATCHING.get(policy, "continuous") if policy else None,)


def _cuda_graphs(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    config = reported.argument("cuda_graph_config")
    captured = "on" if _GRAPHS.search(reported.log) else None
    return None if config is None else "off" if config == "None" else "on", captured


def _overlap(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    dropped = "off" if _NO_OVERLAP.search(reported.log) else None
    return opposite(reported.argument("disable_overlap_scheduler")), dropped


def _kv_cache_dtype(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    return (_of_kv_cache(reported, "dtype"),)


def _speculative(reported: TensorRtLlmConfig, requested: ToggleValue) -> Labels:
    if reported.argument("speculative_config") == "None":
        return ("off",)
    section = reported.section("speculative_config")
    if section is None:
        return ("off" if reported.info("speculative", "spec_enabled") == "false" else None,)
    kind, config = section
    draft = config.get("speculative_model", config.get("speculative_model_dir", ""))
    options = {"tokens": config.get("max_draft_len"), "draft": _plain(draft)}
    return (speculation_label(_METHODS.get(kind, kind), options, requested),)


def _attention_backend(reported: TensorRtLlmConfig, requested: ToggleValue) -> Labels:
    return (backend_label(reported.argument("attn_backend"), requested),)


def _parallel(key: str) -> Reader[TensorRtLlmConfig]:
    return lambda reported, _: (reported.argument(key), reported.info("parallel", key))


def _expert_parallel(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    """Return it from the GPUs that share the experts: on one GPU it changes nothing."""
    size = reported.argument("moe_expert_parallel_size")
    if reported.argument("tensor_parallel_size") == "1" or size is None:
        return (None,)
    return ("on" if size.isdigit() and int(size) > 1 else "off",)


def _block_size(reported: TensorRtLlmConfig, _: ToggleValue) -> Labels:
    return text_of(reported.block_tokens), reported.info("kv_cache", "page_size")


def base_sources(reported: TensorRtLlmConfig) -> dict[str, Labels]:
    """Return base setting → what each source reports of it."""
    return {
        "dtype": (dtype_of(reported.argument("dtype")),),
        "max_model_len": (reported.argument("max_seq_len"),),
        "max_num_seqs": (reported.argument("max_batch_size"),),
        "max_batched_tokens": (reported.argument("max_num_tokens"),),
        "memory_utilization": (_of_kv_cache(reported, "free_gpu_memory_fraction"),),
    }


def _of_kv_cache(reported: TensorRtLlmConfig, key: str) -> str | None:
    section = reported.section("kv_cache_config")
    value = section[1].get(key) if section else None
    return None if value is None else _plain(value)


def _pairs(text: str) -> dict[str, str]:
    """Return name → value of `a=1 b='x' c=C(d=2, e=<F.G: 3>)`, the values as they are written."""
    found = (part.partition("=") for part in _parts(text))
    return {name.strip(): value.strip() for name, equals, value in found if equals}


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between blanks and commas, except those in brackets and in quotes."""
    depth, quote, start = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif sign in " ," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _plain(value: str) -> str:
    """Return a value without what Python writes around texts, paths and members of an enum."""
    member = re.match(r"<\w+\.(\w+):", value)
    text = re.match(r"(?:\w*Path\()?(['\"])(.*)\1\)?$", value)
    return member[1] if member else text[2] if text else value


READERS: Mapping[str, Reader[TensorRtLlmConfig]] = {
    "prefix_caching": _prefix_caching,
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": always("on"),
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _overlap,
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": always(None),  # part of the checkpoint, not a switch
    "speculative": _speculative,
    "preemption": always("recompute"),
    "attention_backend": _attention_backend,
    "tensor_parallel": _parallel("tensor_parallel_size"),
    "pipeline_parallel": _parallel("pipeline_parallel_size"),
    "data_parallel": always(None),  # not reported: trtllm-serve starts one copy of the model
    "expert_parallel": _expert_parallel,
    "block_size": _block_size,
}
