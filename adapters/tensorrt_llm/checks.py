"""What TensorRT-LLM cannot follow, and what its values drag along: said before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.adapters.base import EngineError, EngineSettings, UnsupportedToggleError
from harness.adapters.limits import check_limits
from harness.adapters.tensorrt_llm.options import (
    Dialect,
    batch_limit,
    split_extra_args,
    step_tokens,
)

ATTENTION_BACKENDS = ("TRTLLM", "FLASHINFER", "VANILLA")
_KV_DTYPES = ("auto", "fp8")

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
    "tp_size": "set the toggle tensor_parallel",
    "tensor_parallel_size": "set the toggle tensor_parallel",
    "max_batch_size": "set base.max_num_seqs",
    "max_num_tokens": "set base.max_batched_tokens",
    "max_seq_len": "set base.max_model_len",
    "kv_cache_free_gpu_memory_fraction": "set base.memory_utilization",
    "free_gpu_memory_fraction": "set base.memory_utilization",
    "kv_cache_dtype": "set the toggle kv_cache_dtype",
    "enable_chunked_prefill": "set the toggle chunked_prefill",
}
_OPTIONS = {
    **{name: _FLAGS[name] for name in ("backend", "tensor_parallel_size", "max_batch_size")},
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


def check_extra_args(settings: EngineSettings) -> None:
    """Raise `EngineError` for an extra argument that says again what the sweep says."""
    flags, sets = split_extra_args(settings.extra_args)
    for word in flags:
        name = word.partition("=")[0]
        bare = name.lstrip("-").replace("-", "_")
        if name.startswith("--") and bare in _FLAGS:
            raise EngineError(f"extra_args: {name} cannot stand there: {_FLAGS[bare]}")
    for path, _ in sets:
        for own, reason in _OPTIONS.items():
            if path == own or path.startswith(f"{own}.") or own.startswith(f"{path}."):
                raise EngineError(f"extra_args: --set {path} cannot stand there: {reason}")


def check_toggles(settings: EngineSettings, dialect: Dialect) -> None:
    """Raise `UnsupportedToggleError`, with the reason, for a value that cannot be followed."""
    for toggle, check in _CHECKS.items():
        if reason := check(settings, dialect):
            raise UnsupportedToggleError(f"{toggle}: {settings.toggles[toggle].label} {reason}")


def check_sizes(settings: EngineSettings) -> None:
    """Raise `EngineError` for sizes that the engine would refuse, or that say another toggle."""
    if settings.gpu.lower() == "cpu":
        raise EngineError("TensorRT-LLM needs an NVIDIA GPU: hardware.gpu is cpu")
    check_limits(settings, batches=("continuous", "static"))
    if batch_limit(settings) > step_tokens(settings):
        raise EngineError(
            f"max_num_seqs {settings.max_num_seqs} must be at most max_batched_tokens "
            f"{step_tokens(settings)}: each running sequence takes a token of a step"
        )


def off_all_the_same(settings: EngineSettings) -> Mapping[str, str]:
    """Return toggle → why it is off in these settings, whatever was asked."""
    found = {}
    if _kind(settings, "speculative") == "ngram":
        found["overlap_scheduling"] = "TensorRT-LLM drafts from n-grams without overlap only"
    if _kind(settings, "attention_backend").upper() == "FLASHINFER":
        found["prefix_caching"] = "FLASHINFER attention turns the reuse of blocks off"
    if settings.env.get("FORCE_DETERMINISTIC") == "1":
        found["prefix_caching"] = "FORCE_DETERMINISTIC=1 turns the reuse of blocks off"
    return found


def _kind(settings: EngineSettings, toggle: str) -> str:
    return settings.toggles[toggle].kind


def _paged_kv(settings: EngineSettings, _: Dialect) -> str | None:
    off = _kind(settings, "paged_kv") == "off"
    return "is not offered: TensorRT-LLM always pages its KV" if off else None


def _preemption(settings: EngineSettings, _: Dialect) -> str | None:
    swap = _kind(settings, "preemption") == "swap"
    return "is not offered: TensorRT-LLM computes anew what it preempted" if swap else None


def _kv_cache_dtype(settings: EngineSettings, _: Dialect) -> str | None:
    known = _kind(settings, "kv_cache_dtype") in _KV_DTYPES
    return None if known else f"is not offered: it takes {' and '.join(_KV_DTYPES)}"


def _quantization(settings: EngineSettings, _: Dialect) -> str | None:
    if _kind(settings, "quantization") == "none":
        return None
    return "is no switch of TensorRT-LLM: it needs another checkpoint, one that is quantized"


def _speculative(settings: EngineSettings, dialect: Dialect) -> str | None:
    value = settings.toggles["speculative"]
    options = dict(value.options)
    for option, does in (("acceptance", "assumes an acceptance"), ("tree", "drafts a tree")):
        if option in options:
            return f"{does}, which only the embedded engine does here"
    if value.kind == "eagle":
        return "is not offered: heads of EAGLE 1 and 2 do not run, those of eagle3 do"
    if value.kind == "draft" and dialect.draft_type is None:
        return "is spelled by the version, which cannot be told here: give runtime a venv or path"
    if value.kind in ("draft", "eagle3") and "draft" not in options:
        return "needs a draft model: add draft: MODEL"
    if value.kind == "ngram" and "draft" in options:
        return "drafts without a model: leave draft out"
    return None


def _attention_backend(settings: EngineSettings, _: Dialect) -> str | None:
    name = _kind(settings, "attention_backend").upper()
    if name in ("AUTO", *ATTENTION_BACKENDS):
        return None
    return f"would silently be TRTLLM: known are {', '.join(ATTENTION_BACKENDS)}"


def _tensor_parallel(settings: EngineSettings, _: Dialect) -> str | None:
    return _not_whole(_kind(settings, "tensor_parallel"))


def _block_size(settings: EngineSettings, _: Dialect) -> str | None:
    size = _kind(settings, "block_size")
    if size == "auto":
        return None
    if _kind(settings, "attention_backend").upper() == "VANILLA":
        return "is not offered with VANILLA attention, whose blocks hold max_num_tokens"
    return _not_whole(size)


def _not_whole(text: str) -> str | None:
    whole = text.isdigit() and int(text) > 0
    return None if whole else "is no whole number of at least 1"


_CHECKS: dict[str, Callable[[EngineSettings, Dialect], str | None]] = {
    "paged_kv": _paged_kv,
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _tensor_parallel,
    "block_size": _block_size,
}
