"""What SGLang cannot follow, with the reason: before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Callable

from harness.adapters.base import EngineError, EngineSettings, ToggleValue, UnsupportedToggleError
from harness.adapters.sglang.flags import KV_DTYPES, QUANTIZATION, Place, kind

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
    "config": "what it holds belongs into extra_args",
    "device": "it follows from hardware.gpu",
    "api-key": "harness asks its own servers without a key",
    "admin-api-key": "harness asks its own servers without a key",
    "ssl-keyfile": "harness asks its own servers in plain HTTP",
    "trust-remote-code": "set base.trust_remote_code",
    "dtype": "set base.dtype",
    "context-length": "set base.max_model_len",
    "max-running-requests": "set base.max_num_seqs",
    "chunked-prefill-size": "set base.max_batched_tokens, or the toggle chunked_prefill",
    "max-prefill-tokens": "set base.max_batched_tokens",
    "mem-fraction-static": "set base.memory_utilization",
    "tp-size": "set the toggle tensor_parallel",
    "tensor-parallel-size": "set the toggle tensor_parallel",
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


def check_extra_args(settings: EngineSettings) -> None:
    """Raise `EngineError` for an extra argument that says again what the sweep says."""
    for word in settings.extra_args:
        name = word.partition("=")[0]
        if name.startswith("--") and (reason := _owner(name[2:])):
            raise EngineError(f"extra_args: {name} cannot stand there: {reason}")


def check_toggles(settings: EngineSettings, place: Place) -> None:
    """Raise `UnsupportedToggleError`, with the reason, for a value that SGLang cannot follow."""
    for toggle, check in _CHECKS.items():
        if reason := check(settings, place):
            raise UnsupportedToggleError(f"{toggle}: {settings.toggles[toggle].label} {reason}")


def off_all_the_same(settings: EngineSettings, place: Place) -> dict[str, str]:
    """Return toggle → why it is off in these settings, whatever was asked."""
    found = {}
    if place.cpu:
        found["cuda_graphs"] = "a CPU has no CUDA graphs"
    if kind(settings, "speculative") != "off":
        if place.cpu:
            found["overlap_scheduling"] = "SGLang speculates on a CPU without overlap only"
        elif not place.dialect.overlaps_drafts:
            found["overlap_scheduling"] = "this version of SGLang speculates without overlap only"
    return found


def _owner(name: str) -> str | None:
    """Return whose a flag is; beginnings of flags are taken too, where no other begins so."""
    begun = (reason for own, reason in _OWN.items() if own.startswith(name))
    return _OWN.get(name) or next(begun, None)


def _batching(settings: EngineSettings, _: Place) -> str | None:
    static = kind(settings, "batching") == "static"
    return "is not offered: SGLang admits requests at every step" if static else None


def _paged_kv(settings: EngineSettings, _: Place) -> str | None:
    off = kind(settings, "paged_kv") == "off"
    return "is not offered: SGLang always pages its KV" if off else None


def _preemption(settings: EngineSettings, _: Place) -> str | None:
    swap = kind(settings, "preemption") == "swap"
    return "is not offered: SGLang computes anew what it preempted" if swap else None


def _never_on(toggle: str) -> Callable[[EngineSettings, Place], str | None]:
    def check(settings: EngineSettings, place: Place) -> str | None:
        reason = off_all_the_same(settings, place).get(toggle)
        return None if reason is None or kind(settings, toggle) == "off" else f"is off: {reason}"

    return check


def _kv_cache_dtype(settings: EngineSettings, place: Place) -> str | None:
    if kind(settings, "kv_cache_dtype") not in KV_DTYPES:
        return f"is not offered: it takes {' and '.join(KV_DTYPES)}"
    return _gpu_only(settings, place, "kv_cache_dtype", "auto")


def _quantization(settings: EngineSettings, place: Place) -> str | None:
    if kind(settings, "quantization") not in QUANTIZATION:
        return "is not offered while loading: give a model that is quantized already"
    return _gpu_only(settings, place, "quantization", "none")


def _gpu_only(settings: EngineSettings, place: Place, toggle: str, plain: str) -> str | None:
    needs = place.cpu and kind(settings, toggle) != plain
    return "needs a GPU: hardware.gpu is cpu" if needs else None


def _speculative(settings: EngineSettings, place: Place) -> str | None:
    value = settings.toggles["speculative"]
    if value.kind == "off":
        return None
    if value.kind not in place.dialect.methods:
        return "is not offered by this version of SGLang"
    native = kind(settings, "attention_backend").lower() == "torch_native"
    if place.cpu and (native or not place.verifies_on_cpu):
        return "would end the server at its first draft: torch_native attention verifies none"
    return _speculative_options(value)


def _speculative_options(value: ToggleValue) -> str | None:
    options = dict(value.options)
    if "tree" in options:
        return "drafts a tree, which only the embedded engine does here; SGLang is given chains"
    if "acceptance" in options:
        return "assumes an acceptance, which only the embedded engine does; SGLang shows its own"
    if value.kind == "ngram" and "draft" in options:
        return "drafts without a model: leave draft out"
    if value.kind != "ngram" and "draft" not in options:
        return "needs a draft model: add draft: MODEL"
    return None


def _attention_backend(settings: EngineSettings, place: Place) -> str | None:
    name = kind(settings, "attention_backend").lower()
    if not place.cpu or name == "auto":
        return None
    if name not in _CPU_ATTENTION:
        return f"needs a GPU: on a CPU SGLang has {' and '.join(_CPU_ATTENTION)}"
    needs_amx = name == "intel_amx" and not place.verifies_on_cpu
    return "would become torch_native: this processor has no AMX" if needs_amx else None


def _tensor_parallel(settings: EngineSettings, _: Place) -> str | None:
    return _not_whole(kind(settings, "tensor_parallel"))


def _block_size(settings: EngineSettings, _: Place) -> str | None:
    size = kind(settings, "block_size")
    if size == "auto" or (wrong := _not_whole(size)):
        return None if size == "auto" else wrong
    chunks = kind(settings, "chunked_prefill") == "on"
    if chunks and settings.max_batched_tokens % int(size):
        return f"does not divide max_batched_tokens {settings.max_batched_tokens}, the chunk"
    trees = kind(settings, "speculative") == "ngram" and not any(
        word.startswith(_BREADTH) for word in settings.extra_args
    )
    if trees and size != "1" and kind(settings, "attention_backend").lower() != "flashinfer":
        return "does not go with n-gram drafts, which branch: only with flashinfer attention"
    return None


def _not_whole(text: str) -> str | None:
    whole = text.isdigit() and int(text) > 0
    return None if whole else "is no whole number of at least 1"


_CHECKS: dict[str, Callable[[EngineSettings, Place], str | None]] = {
    "batching": _batching,
    "paged_kv": _paged_kv,
    "cuda_graphs": _never_on("cuda_graphs"),
    "overlap_scheduling": _never_on("overlap_scheduling"),
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _tensor_parallel,
    "block_size": _block_size,
}
