"""What SGLang cannot follow, with the reason, before anything is started. Pure."""

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
    takes_kv_dtypes,
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
from harness.adapters.sglang.flags import KV_DTYPES, QUANTIZATION, SglangBuild

_CPU_ATTENTION = ("intel_amx", "torch_native")
_BREADTH = "--speculative-ngram-max-bfs-breadth"
_SPECULATIVE = "set the toggle speculative"
_GRAPHS = "set the toggle cuda_graphs"
_ATTENTION = "set the toggle attention_backend"
_NO_PROOF = "without its counters no toggle can be proven"
# Flags that the harness answers for; a second opinion in extra_args would silently win.
_OWN = {
    "host": "harness listens on 127.0.0.1 only",
    "port": "harness chooses a free one",
    "model": "it is the sweep's model",
    "model-path": "it is the sweep's model",
    "served-model-name": "it is the sweep's model",
    "config": NO_FILE,
    "device": "it follows from hardware.gpu",
    "api-key": NO_KEY,
    "admin-api-key": NO_KEY,
    **dict.fromkeys(
        ("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-keyfile-password"), NO_TLS
    ),
    "enable-ssl-refresh": NO_TLS,
    **dict.fromkeys(("grpc-mode", "smg-grpc-mode", "encoder-only"), HTTP_SERVER),
    "disaggregation-mode": "its answers need a second server",
    "trust-remote-code": "set base.trust_remote_code",
    "dtype": "set base.dtype",
    "context-length": "set base.max_model_len",
    "max-running-requests": "set base.max_num_seqs",
    "chunked-prefill-size": "set base.max_batched_tokens, or the toggle chunked_prefill",
    "max-prefill-tokens": "set base.max_batched_tokens",
    "mem-fraction-static": "set base.memory_utilization",
    "tp-size": TENSOR,
    "tensor-parallel-size": TENSOR,
    "pp-size": PIPELINE,
    "pipeline-parallel-size": PIPELINE,
    "dp-size": DATA,
    "data-parallel-size": DATA,
    "ep": EXPERT,
    "ep-size": EXPERT,
    "expert-parallel-size": EXPERT,
    **dict.fromkeys(
        (
            *("attn-dp-size", "attention-data-parallel-size", "enable-dp-attention"),
            *("attn-cp-size", "attention-context-parallel-size", "enable-prefill-cp"),
            *("moe-dp-size", "moe-data-parallel-size", "dwdp-size", "max-ep-size"),
            *("dcp-size", "decode-context-parallel-size", "elastic-ep-initial-size"),
            *("nnodes", "node-rank", "dist-init-addr"),
        ),
        UNCOUNTED,
    ),
    "page-size": "set the toggle block_size",
    "disable-radix-cache": "set the toggle prefix_caching",
    "disable-overlap-schedule": "set the toggle overlap_scheduling",
    "kv-cache-dtype": "set the toggle kv_cache_dtype",
    "quantization": "set the toggle quantization",
    "attention-backend": _ATTENTION,
    "prefill-attention-backend": _ATTENTION,
    "decode-attention-backend": _ATTENTION,
    "speculative-algorithm": _SPECULATIVE,
    "speculative-draft-model": _SPECULATIVE,
    "speculative-draft-model-path": _SPECULATIVE,
    "speculative-num-steps": _SPECULATIVE,
    "speculative-eagle-topk": _SPECULATIVE,
    "speculative-num-draft-tokens": _SPECULATIVE,
    "disable-cuda-graph": _GRAPHS,
    "disable-decode-cuda-graph": _GRAPHS,
    "disable-prefill-cuda-graph": _GRAPHS,
    "disable-piecewise-cuda-graph": _GRAPHS,
    "cuda-graph-backend-decode": _GRAPHS,
    "cuda-graph-backend-prefill": _GRAPHS,
    "cuda-graph-config": _GRAPHS,
    "enable-metrics": _NO_PROOF,
    "enable-cache-report": _NO_PROOF,
    "stream-interval": "each token's time is what is measured",
}


def forced_off(settings: EngineSettings, build: SglangBuild) -> dict[str, str]:
    """Return toggle → why it is off in these settings, whatever was requested."""
    found = {}
    if build.cpu:
        found["cuda_graphs"] = "a CPU has no CUDA graphs"
    if settings.kind("speculative") != "off":
        if build.cpu:
            found["overlap_scheduling"] = "SGLang speculates on a CPU without overlap only"
        elif not build.release.overlaps_drafts:
            found["overlap_scheduling"] = "this version of SGLang speculates without overlap only"
    return found


def owner(name: str) -> str | None:
    """Return what sets a flag in the sweep file; SGLang takes unambiguous beginnings of flags."""
    if not name.startswith("--"):
        return None
    return flag_owner(name[2:].replace("_", "-"), _OWN)


def _never_on(toggle: str) -> Check[SglangBuild]:
    def check(settings: EngineSettings, build: SglangBuild) -> str | None:
        reason = forced_off(settings, build).get(toggle)
        return None if reason is None or settings.kind(toggle) == "off" else f"is off: {reason}"

    return check


def _kv_cache_dtype(settings: EngineSettings, build: SglangBuild) -> str | None:
    refused = takes_kv_dtypes(KV_DTYPES)(settings, build)
    return refused or _gpu_only(settings, build, "kv_cache_dtype", "auto")


def _quantization(settings: EngineSettings, build: SglangBuild) -> str | None:
    refused = quantizes_to(QUANTIZATION)(settings, build)
    return refused or _gpu_only(settings, build, "quantization", "none")


def _gpu_only(settings: EngineSettings, build: SglangBuild, toggle: str, plain: str) -> str | None:
    needs = build.cpu and settings.kind(toggle) != plain
    return "needs a GPU: hardware.gpu is cpu" if needs else None


def _speculative(settings: EngineSettings, build: SglangBuild) -> str | None:
    value = settings.toggles["speculative"]
    if value.kind == "off":
        return None
    if value.kind not in build.release.methods:
        return "is not offered by this version of SGLang"
    native = settings.kind("attention_backend").lower() == "torch_native"
    if build.cpu and (native or not build.verifies_on_cpu):
        return "would end the server at its first draft: torch_native attention verifies none"
    return chain_refused(value, "SGLang") or draft_model_refused(value)


def _attention_backend(settings: EngineSettings, build: SglangBuild) -> str | None:
    name = settings.kind("attention_backend").lower()
    if not build.cpu or name == "auto":
        return None
    if name not in _CPU_ATTENTION:
        return f"needs a GPU: on a CPU SGLang has {' and '.join(_CPU_ATTENTION)}"
    needs_amx = name == "intel_amx" and not build.verifies_on_cpu
    return "would become torch_native: this processor has no AMX" if needs_amx else None


def _block_size(settings: EngineSettings, _: SglangBuild) -> str | None:
    size, refused = settings.kind("block_size"), whole_number("block_size")(settings, None)
    if size == "auto" or refused:
        return refused
    chunks = settings.kind("chunked_prefill") == "on"
    if chunks and settings.max_batched_tokens % int(size):
        return f"does not divide max_batched_tokens {settings.max_batched_tokens}, the chunk"
    trees = settings.kind("speculative") == "ngram" and not any(
        word.startswith(_BREADTH) for word in settings.extra_args
    )
    if trees and size != "1" and settings.kind("attention_backend").lower() != "flashinfer":
        return "does not go with n-gram drafts, which branch: only with flashinfer attention"
    return None


CHECKS: Mapping[str, Check[SglangBuild]] = {
    "batching": always_admits("SGLang"),
    "paged_kv": always_pages("SGLang"),
    "cuda_graphs": _never_on("cuda_graphs"),
    "overlap_scheduling": _never_on("overlap_scheduling"),
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": always_recomputes("SGLang"),
    "attention_backend": _attention_backend,
    "tensor_parallel": whole_number("tensor_parallel"),
    "pipeline_parallel": whole_number("pipeline_parallel"),
    "data_parallel": whole_number("data_parallel"),
    "block_size": _block_size,
}
