"""What vLLM cannot follow, with the reason, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.adapters.base import EngineSettings
from harness.adapters.checks import (
    Check,
    always_admits,
    always_pages,
    always_recomputes,
    chain_refused,
    draft_model_refused,
    quantizes_to,
    whole_number,
)
from harness.adapters.extra_args import (
    DATA,
    EXPERT,
    HTTP_SERVER,
    NO_FILE,
    NO_KEY,
    NO_TLS,
    PIPELINE,
    TENSOR,
    UNCOUNTED,
    flag_owner,
)
from harness.adapters.vllm.flags import QUANTIZATION

_NEEDS_GPU = "needs a GPU: this is vLLM's CPU build"
# Flags that the harness answers for; a second opinion in extra_args would silently win.
_OWN = {
    "host": "harness listens on 127.0.0.1 only",
    "port": "harness chooses a free one",
    "uds": HTTP_SERVER,
    "headless": HTTP_SERVER,
    "config": NO_FILE,
    "model": "it is the sweep's model",
    "served-model-name": "it is the sweep's model",
    "api-key": NO_KEY,
    **dict.fromkeys(
        ("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers"), NO_TLS
    ),
    "enable-ssl-refresh": NO_TLS,
    "dtype": "set base.dtype",
    "max-model-len": "set base.max_model_len",
    "max-num-seqs": "set base.max_num_seqs",
    "max-num-batched-tokens": "set base.max_batched_tokens",
    "gpu-memory-utilization": "set base.memory_utilization",
    "device-memory-utilization": "set base.memory_utilization",
    "tensor-parallel-size": TENSOR,
    "pipeline-parallel-size": PIPELINE,
    "data-parallel-size": DATA,
    "enable-expert-parallel": EXPERT,
    **dict.fromkeys(
        (
            *("data-parallel-size-local", "data-parallel-rank", "data-parallel-start-rank"),
            *("data-parallel-address", "data-parallel-rpc-port", "data-parallel-backend"),
            *("data-parallel-hybrid-lb", "data-parallel-external-lb", "elastic-ep-max-dp-size"),
            *("data-parallel-multi-port-external-lb", "data-parallel-supervisor-port"),
            *("decode-context-parallel-size", "prefill-context-parallel-size", "nnodes"),
            *("node-rank", "master-addr", "master-port", "enable-elastic-ep"),
        ),
        UNCOUNTED,
    ),
    "enable-prefix-caching": "set the toggle prefix_caching",
    "enable-chunked-prefill": "set the toggle chunked_prefill",
    "async-scheduling": "set the toggle overlap_scheduling",
    "kv-cache-dtype": "set the toggle kv_cache_dtype",
    "quantization": "set the toggle quantization",
    "speculative-config": "set the toggle speculative",
    "spec-method": "set the toggle speculative",
    "spec-model": "set the toggle speculative",
    "spec-tokens": "set the toggle speculative",
    "attention-backend": "set the toggle attention_backend",
    "block-size": "set the toggle block_size",
    "compilation-config.cudagraph_mode": "set the toggle cuda_graphs",
    "compilation-config": "write -cc.KEY=VALUE, which is merged with what the toggles set",
    "trust-remote-code": "set base.trust_remote_code",
    "disable-log-stats": "without its counters no toggle can be proven",
}


_SHORT = {
    "tp": TENSOR,
    "pp": PIPELINE,
    "dp": DATA,
    "ep": EXPERT,
    **dict.fromkeys(("dpl", "dpn", "dpr", "dpa", "dpp", "dpb", "dph", "dpe", "dpm"), UNCOUNTED),
    **dict.fromkeys(("dcp", "pcp", "n", "r"), UNCOUNTED),
    "q": _OWN["quantization"],
    "sc": _OWN["speculative-config"],
    "cc": _OWN["compilation-config"],
    "cc.cudagraph_mode": _OWN["compilation-config.cudagraph_mode"],
}
_NOT_OURS = ("dc", "ac", "asc")  # short flags that are not the beginning of one in `_SHORT`
VARIABLES = {
    "VLLM_DP_SIZE": DATA,
    **dict.fromkeys(("VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL"), UNCOUNTED),
    **dict.fromkeys(("VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"), UNCOUNTED),
}


def owner(name: str) -> str | None:
    """Return what sets a flag in the sweep file; vLLM takes beginnings of flags, and _ for -."""
    if not name.startswith("-"):
        return None
    if not name.startswith("--"):
        short = name[1:].rstrip("0123456789")  # -n2 is -n 2
        return None if short in _NOT_OURS else flag_owner(short, _SHORT)
    head, dot, rest = name[2:].partition(".")
    bare = head.replace("_", "-").removeprefix("no-") + dot + rest
    return flag_owner(bare, _OWN)


def forced_off(settings: EngineSettings) -> Mapping[str, str]:
    """Return toggle → why it is off in these settings, whatever was requested."""
    found = {}
    if settings.on_cpu:
        found["cuda_graphs"] = "vLLM's CPU build has no CUDA graphs"
        found["overlap_scheduling"] = "vLLM's CPU build schedules without overlap"
    elif "--enforce-eager" in settings.extra_args:
        found["cuda_graphs"] = "--enforce-eager turns CUDA graphs off"
    if settings.kind("speculative") == "ngram":
        found.setdefault("overlap_scheduling", "vLLM drafts from n-grams without overlap only")
    return found


def _on_gpu_only(toggle: str) -> Check[object]:
    return lambda settings, _: (
        _NEEDS_GPU if settings.on_cpu and settings.kind(toggle) == "on" else None
    )


def _quantization(settings: EngineSettings, _: object) -> str | None:
    refused = quantizes_to(QUANTIZATION)(settings, None)
    needs_gpu = settings.on_cpu and settings.kind("quantization") != "none"
    return refused or (_NEEDS_GPU if needs_gpu else None)


def _speculative(settings: EngineSettings, _: object) -> str | None:
    value = settings.toggles["speculative"]
    return chain_refused(value, "vLLM") or draft_model_refused(value)


def _attention_backend(settings: EngineSettings, _: object) -> str | None:
    known = settings.kind("attention_backend").upper() in ("AUTO", "CPU_ATTN")
    return (
        None
        if known or not settings.on_cpu
        else "would be ignored: vLLM's CPU build has CPU_ATTN only"
    )


def _block_size(settings: EngineSettings, _: object) -> str | None:
    size = settings.kind("block_size")
    if settings.on_cpu and size.isdigit() and int(size) % 32:
        return "is not offered: vLLM's CPU build takes multiples of 32"
    return whole_number("block_size")(settings, None)


CHECKS: Mapping[str, Check[object]] = {
    "batching": always_admits("vLLM"),
    "paged_kv": always_pages("vLLM"),
    "cuda_graphs": _on_gpu_only("cuda_graphs"),
    "overlap_scheduling": _on_gpu_only("overlap_scheduling"),
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": always_recomputes("vLLM"),
    "attention_backend": _attention_backend,
    "tensor_parallel": whole_number("tensor_parallel"),
    "pipeline_parallel": whole_number("pipeline_parallel"),
    "data_parallel": whole_number("data_parallel"),
    "block_size": _block_size,
}
