"""The reported configuration of a running SGLang, and what it counts. Pure.

Two sources: the arguments that it resolved (`/server_info`) and its series. Of speculation it
counts verify steps alone. Verified and accepted tokens are derived as SGLang does it for its own
acceptance rate: every step verifies as many as was set, padding included, and an answer has one
token of its prefill, one of each verify step, and the accepted drafts.
"""

from __future__ import annotations

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
    opposite,
    speculation_label,
    text_of,
)
from harness.adapters.reported_values import whole
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang.flags import KV_DTYPES, METHODS, QUANTIZATION, VERIFIED_WITH
from harness.adapters.sglang.versions import Release

_KV_NAMES = {flag: label for label, flag in KV_DTYPES.items()}
_METHOD_NAMES = {method: kind for kind, method in METHODS.items()}
_QUANTIZATION_NAMES = {flag: label for label, flag in QUANTIZATION.items()}
_PASSES = "sglang:cuda_graph_passes_total"
_STAGES = "sglang:per_stage_req_latency_seconds_count"
_PARTS = "chunked_prefill"  # the stage of a chunk that does not end its prompt
_TOY_BYTES = 100_000_000  # below it no acceptance rate means anything
_FIRST_RANK = "0"  # of tensor parallel ranks, which all do the same; some series are of each


@dataclass(frozen=True, slots=True)
class SglangConfig:
    """The resolved arguments; those of a scheduler are the more reliable ones."""

    info: Mapping[str, Any]
    scheduler: Mapping[str, Any]  # the state of the first one

    def get(self, name: str) -> Any:
        """Return one argument; None where the server does not report it."""
        return self.scheduler.get(name, self.info.get(name))

    def number(self, *names: str) -> int | None:
        """Return the first that is a whole number."""
        found = (whole(self.get(name)) for name in names)
        return next((value for value in found if value is not None), None)


def reported_config(server_info: Any) -> SglangConfig:
    """Return what the server reports; `server_info` is None where it has no such route."""
    info = server_info if isinstance(server_info, Mapping) else {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    return SglangConfig(info, state if isinstance(state, Mapping) else {})


def sizes_of(reported: SglangConfig) -> dict[str, Any]:
    """Return sizes of the engine for reports and checks; None for what it does not report."""
    block_size, tokens = reported.number("page_size"), reported.number("max_total_num_tokens")
    return {
        "block_size": block_size,
        "kv_blocks": tokens // block_size if tokens and block_size else None,
        "kv_tokens": tokens,
        "running_limit": _running_limit(reported),
        "step_tokens": reported.number("chunked_prefill_size"),
        "dtype": reported.get("dtype"),
        "kv_cache_dtype": reported.get("kv_cache_dtype"),
        "attention_backend": reported.get("attention_backend"),
        "memory_utilization_of": "weights and KV cache, without what steps need",
    }


def assumptions_of(
    reported: SglangConfig, requested: ToggleValue, weights_bytes: int | None = None
) -> list[str]:
    """Return what a reader of acceptance rates must know, where this server speculates."""
    if requested.kind == "off":
        return []
    most = reported.number("speculative_num_draft_tokens")
    drafts = "as many" if most is None else str(most - VERIFIED_WITH)
    counted = f"each verify step counts as {drafts} drafted tokens, padding included"
    notes = [f"{requested.kind}: {counted}, as SGLang does; accepted are those that answers held"]
    if weights_bytes is not None and weights_bytes < _TOY_BYTES:
        size = f"a model of {weights_bytes / 1e6:.0f} MB"
        artefact = f"{size} repeats itself: that drafts stand is an artefact of it"
        notes.append(f"{requested.kind}: {artefact}")
    return notes


def totals_of(metrics: ServerMetrics, reported: SglangConfig, release: Release) -> ServerCounters:
    """Return the totals of one scrape. A series comes up with its first count: absent is 0.

    Where a version counts something at all is looked up, not guessed from what is absent. Requests
    to `/health` are in what the scheduler counts and not in what is counted of requests.
    """
    if not metrics.has("sglang:prompt_tokens"):
        return ServerCounters()
    speculates = reported.get("speculative_algorithm") is not None
    verified = _since(release.counts_verifies, metrics.count("sglang:spec_verify_calls"))
    output = metrics.count("sglang:generation_tokens")
    evicted, retracted = metrics.count("sglang:evicted_tokens"), _retracted(metrics, release)
    decoded = _of_rank(metrics, "sglang:realtime_tokens", "decode")
    return ServerCounters(
        prompt_tokens=metrics.count("sglang:prompt_tokens"),
        cached_prompt_tokens=metrics.count("sglang:cached_tokens") or 0,
        output_tokens=output,
        drafted_tokens=_drafted(verified, reported, speculates),
        accepted_tokens=_accepted(metrics, verified, output, retracted) if speculates else None,
        verify_steps=verified,
        preemptions=retracted,
        steps=_passes(metrics, release, "decode_none", "decode_cuda_graph"),
        sequence_steps=verified if speculates else _since(release.counts_passes, decoded),
        graph_steps=_passes(metrics, release, "decode_cuda_graph", "prefill_cuda_graph"),
        partial_prefill_steps=_since(
            release.counts_passes, metrics.count(_STAGES, stage=_PARTS, tp_rank=_FIRST_RANK)
        ),
        queued_ns=metrics.nanoseconds("sglang:queue_time_seconds_sum", tp_rank=_FIRST_RANK),
        evicted_blocks=None if evicted is None else evicted // (reported.number("page_size") or 1),
    )


def _since(counted: bool, total: int | None) -> int | None:
    """Return a total of versions that count it: 0 until there was something to count."""
    return (total or 0) if counted else None


def _of_rank(metrics: ServerMetrics, name: str, mode: str) -> int | None:
    return metrics.count(name, mode=mode, tp_rank=_FIRST_RANK)


def _passes(metrics: ServerMetrics, release: Release, *modes: str) -> int | None:
    found = sum(_of_rank(metrics, _PASSES, mode) or 0 for mode in modes)
    return _since(release.counts_passes, found)


def _retracted(metrics: ServerMetrics, release: Release) -> int | None:
    total = metrics.count("sglang:num_retracted_requests", tp_rank=_FIRST_RANK)
    return _since(release.counts_passes, total)


def _drafted(verified: int | None, reported: SglangConfig, speculates: bool) -> int | None:
    most = reported.number("speculative_num_draft_tokens")
    if verified is None or (speculates and most is None):
        return None
    return verified * (most - VERIFIED_WITH) if speculates and most else verified


def _accepted(
    metrics: ServerMetrics, verified: int | None, output: int | None, retracted: int | None
) -> int | None:
    """Return the drafts in answers; a request that was retracted is prefilled once more."""
    requests = metrics.count("sglang:num_requests")
    if verified is None or output is None or requests is None:
        return None
    return max(0, output - requests - verified - (retracted or 0))


def _running_limit(reported: SglangConfig) -> int | None:
    return reported.number("effective_max_running_requests_per_dp", "max_running_requests")


def _unless_disabled(name: str) -> Reader[SglangConfig]:
    return lambda reported, _: (opposite(reported.get(name)),)


def _chunked_prefill(reported: SglangConfig, _: ToggleValue) -> Labels:
    size = reported.number("chunked_prefill_size")
    return (None if size is None else "on" if size > 0 else "off",)


def _batching(reported: SglangConfig, _: ToggleValue) -> Labels:
    return (batching_label(_running_limit(reported)),)


def _cuda_graphs(reported: SglangConfig, _: ToggleValue) -> Labels:
    config = reported.get("cuda_graph_config")
    if not isinstance(config, Mapping):
        return (opposite(reported.get("disable_cuda_graph")),)
    decode = config.get("decode")
    backend = decode.get("backend") if isinstance(decode, Mapping) else None
    return (None if backend is None else "off" if backend == "disabled" else "on",)


def _kv_cache_dtype(reported: SglangConfig, _: ToggleValue) -> Labels:
    name = text_of(reported.get("kv_cache_dtype"))
    return (name and _KV_NAMES.get(name, name),)


def _quantization(reported: SglangConfig, requested: ToggleValue) -> Labels:
    """Return it where it was requested: SGLang also reports what a checkpoint comes with."""
    name = text_of(reported.get("quantization"))
    return ("none" if requested.kind == "none" else _QUANTIZATION_NAMES.get(name, str(name)),)


def _speculative(reported: SglangConfig, requested: ToggleValue) -> Labels:
    if "speculative_algorithm" not in {**reported.info, **reported.scheduler}:
        return (None,)
    algorithm = reported.get("speculative_algorithm")
    if algorithm is None:
        return ("off",)
    most = reported.number("speculative_num_draft_tokens")
    options = {
        "tokens": None if most is None else most - VERIFIED_WITH,
        "draft": reported.get("speculative_draft_model_path"),
    }
    kind = _METHOD_NAMES.get(str(algorithm), str(algorithm))
    return (speculation_label(kind, options, requested),)


def _attention_backend(reported: SglangConfig, requested: ToggleValue) -> Labels:
    return (backend_label(reported.get("attention_backend"), requested),)


def _expert_parallel(reported: SglangConfig, _: ToggleValue) -> Labels:
    """Return it from the ranks that share the experts: on one GPU it changes nothing."""
    size, gpus = reported.number("ep_size"), reported.number("tp_size")
    if size is None or (size == 1 == gpus):
        return (None,)
    return ("on" if size > 1 else "off",)


def _number(name: str) -> Reader[SglangConfig]:
    return lambda reported, _: (text_of(reported.number(name)),)


def base_sources(reported: SglangConfig) -> dict[str, Labels]:
    """Return base setting → what each source reports of it.

    A running limit that memory lowers is no other setting: `max_running_requests` stays as it was
    set. Without chunks a step takes `max_prefill_tokens`.
    """
    chunk = reported.number("chunked_prefill_size")
    most = chunk if chunk is None or chunk > 0 else reported.number("max_prefill_tokens")
    return {
        "dtype": (dtype_of(reported.get("dtype")),),
        "max_model_len": (text_of(reported.get("context_length")),),
        "max_num_seqs": (text_of(reported.get("max_running_requests")),),
        "max_batched_tokens": (text_of(most),),
        "memory_utilization": (text_of(reported.get("mem_fraction_static")),),
    }


READERS: Mapping[str, Reader[SglangConfig]] = {
    "prefix_caching": _unless_disabled("disable_radix_cache"),
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": always("on"),
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _unless_disabled("disable_overlap_schedule"),
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": always("recompute"),
    "attention_backend": _attention_backend,
    "tensor_parallel": _number("tp_size"),
    "pipeline_parallel": _number("pp_size"),
    "data_parallel": _number("dp_size"),
    "expert_parallel": _expert_parallel,
    "block_size": _number("page_size"),
}
