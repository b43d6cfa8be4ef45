"""What TensorRT-LLM cannot follow, with the reason, before anything is started. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.adapters.base import EngineSettings
from harness.adapters.checks import (
    Check,
    always_pages,
    always_recomputes,
    draft_model_refused,
    takes_kv_dtypes,
    whole_number,
)
from harness.adapters.extra_args import (
    EXPERT,
    PIPELINE,
    TENSOR,
    UNCOUNTED,
    check_command,
    check_env,
    check_extra_args,
)
from harness.adapters.tensorrt_llm.options import OptionNames, split_extra_args

ATTENTION_BACKENDS = ("TRTLLM", "FLASHINFER", "VANILLA")
_SET = "--set "

_PARALLEL = {
    "tensor_parallel_size": TENSOR,
    "pipeline_parallel_size": PIPELINE,
    "moe_expert_parallel_size": EXPERT,
    **dict.fromkeys(
        (
            *("context_parallel_size", "moe_tensor_parallel_size", "moe_cluster_parallel_size"),
            *("gpus_per_node", "enable_attention_dp"),
        ),
        UNCOUNTED,
    ),
}
# What the harness answers for: a second opinion in extra_args would win or lose by the version.
_FLAGS = {
    "host": "harness listens on 127.0.0.1 only",
    "port": "harness chooses a free one",
    "report_addr": "harness chooses a free port",
    "backend": "harness starts the PyTorch backend, the only one of all versions",
    "config": "harness writes the options file: write --set KEY=VALUE",
    "extra_llm_api_options": "harness writes the options file: write --set KEY=VALUE",
    "served_model_name": "it is the sweep's model",
    "grpc": "harness asks over HTTP",
    "num_serve_frontends": "each would count its own requests only",
    "trust_remote_code": "set base.trust_remote_code",
    "log_level": "what took effect is read from the log",
    **_PARALLEL,
    "tp_size": TENSOR,
    "pp_size": PIPELINE,
    "ep_size": EXPERT,
    **dict.fromkeys(("cp_size", "cluster_size"), UNCOUNTED),
    "max_batch_size": "set base.max_num_seqs",
    "max_num_tokens": "set base.max_batched_tokens",
    "max_seq_len": "set base.max_model_len",
    "kv_cache_free_gpu_memory_fraction": "set base.memory_utilization",
    "free_gpu_memory_fraction": "set base.memory_utilization",
    "kv_cache_dtype": "set the toggle kv_cache_dtype",
    "enable_chunked_prefill": "set the toggle chunked_prefill",
}
_OPTIONS = {
    **_PARALLEL,
    **{name: _FLAGS[name] for name in ("backend", "max_batch_size")},
    **{name: _FLAGS[name] for name in ("max_num_tokens", "max_seq_len", "enable_chunked_prefill")},
    "model": "it is the sweep's model",
    "dtype": "set base.dtype",
    "trust_remote_code": "set base.trust_remote_code",
    "kv_cache_config.free_gpu_memory_fraction": "set base.memory_utilization",
    "kv_cache_config.enable_block_reuse": "set the toggle prefix_caching",
    "kv_cache_config.enable_partial_reuse": "it is off, so that hits are blocks and can be counted",
    "kv_cache_config.dtype": "set the toggle kv_cache_dtype",
    "kv_cache_config.tokens_per_block": "set the toggle block_size",
    "scheduler_config.capacity_scheduler_policy": "set the toggle batching",
    "cuda_graph_config": "set the toggle cuda_graphs",
    "disable_overlap_scheduler": "set the toggle overlap_scheduling",
    "attn_backend": "set the toggle attention_backend",
    "speculative_config": "set the toggle speculative",
    "stream_interval": "each token's time is what is measured",
    **dict.fromkeys(
        ("enable_iter_perf_stats", "return_perf_metrics", "perf_metrics_max_requests"),
        "without its counters no toggle can be proven",
    ),
    "max_stats_len": "without its counters no toggle can be proven",
}


def check_args(settings: EngineSettings) -> None:
    """Raise `EngineError` for an argument or variable that repeats what the sweep sets."""
    flags, sets = split_extra_args(settings.extra_args)
    options = (f"{_SET}{path}={json.dumps(value)}" for path, value in sets)
    check_extra_args([*flags, *options], _owner)
    check_command(settings)
    check_env(settings, {})


def forced_off(settings: EngineSettings) -> Mapping[str, str]:
    """Return toggle → why it is off in these settings, whatever was requested."""
    found = {}
    if settings.kind("speculative") == "ngram":
        found["overlap_scheduling"] = "TensorRT-LLM drafts from n-grams without overlap only"
    if settings.kind("attention_backend").upper() == "FLASHINFER":
        found["prefix_caching"] = "FLASHINFER attention turns the reuse of blocks off"
    if settings.env.get("FORCE_DETERMINISTIC") == "1":
        found["prefix_caching"] = "FORCE_DETERMINISTIC=1 turns the reuse of blocks off"
    return found


def _owner(name: str) -> str | None:
    """Return what sets a flag, or the option of a `--set`, in the sweep file."""
    if name.startswith(_SET):
        path = f"{name.removeprefix(_SET)}."
        owned = ((f"{own}.", reason) for own, reason in _OPTIONS.items())
        overlap = (why for own, why in owned if path.startswith(own) or own.startswith(path))
        return next(overlap, None)
    return _FLAGS.get(name.lstrip("-").replace("-", "_")) if name.startswith("--") else None


def _quantization(settings: EngineSettings, _: OptionNames) -> str | None:
    if settings.kind("quantization") == "none":
        return None
    return "is no switch of TensorRT-LLM: it needs another checkpoint, one that is quantized"


def _data_parallel(settings: EngineSettings, _: OptionNames) -> str | None:
    if settings.kind("data_parallel") == "1":
        return None
    return "is not offered: trtllm-serve starts one copy of the model"


def _speculative(settings: EngineSettings, names: OptionNames) -> str | None:
    value = settings.toggles["speculative"]
    options = dict(value.options)
    for option, does in (("acceptance", "assumes an acceptance"), ("tree", "drafts a tree")):
        if option in options:
            return f"{does}, which only the embedded engine does here"
    if value.kind == "eagle":
        return "is not offered: heads of EAGLE 1 and 2 do not run, those of eagle3 do"
    if value.kind == "draft" and names.draft_type is None:
        return "is spelled by the version, which cannot be told here: give runtime a venv or path"
    return draft_model_refused(value)


def _attention_backend(settings: EngineSettings, _: OptionNames) -> str | None:
    name = settings.kind("attention_backend").upper()
    if name in ("AUTO", *ATTENTION_BACKENDS):
        return None
    return f"would silently be TRTLLM: known are {', '.join(ATTENTION_BACKENDS)}"


def _block_size(settings: EngineSettings, _: OptionNames) -> str | None:
    vanilla = settings.kind("attention_backend").upper() == "VANILLA"
    if vanilla and settings.kind("block_size") != "auto":
        return "is not offered with VANILLA attention, whose blocks hold max_num_tokens"
    return whole_number("block_size")(settings, None)


CHECKS: Mapping[str, Check[OptionNames]] = {
    "paged_kv": always_pages("TensorRT-LLM"),
    "kv_cache_dtype": takes_kv_dtypes(("auto", "fp8")),
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": always_recomputes("TensorRT-LLM"),
    "attention_backend": _attention_backend,
    "tensor_parallel": whole_number("tensor_parallel"),
    "pipeline_parallel": whole_number("pipeline_parallel"),
    "data_parallel": _data_parallel,
    "block_size": _block_size,
}
