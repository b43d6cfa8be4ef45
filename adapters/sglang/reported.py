"""What a running SGLang says that it runs and counts, in the words of our toggles. Pure.

Two sources: the arguments that it resolved (`/server_info`) and its series. Of speculation it
counts verify steps alone. How many tokens they verified, and how many of those stood, is worked out
as SGLang does it for its own acceptance rate: every step verifies as many as was set, padding
included, and an answer has one token of its prefill, one of each verify step, and the drafts that
stood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.adapters.base import ServerCounters, ToggleValue
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.sglang.flags import KV_DTYPES, METHODS, QUANTIZATION, VERIFIED_WITH
from harness.adapters.sglang.versions import Dialect

_KV_NAMES = {flag: label for label, flag in KV_DTYPES.items()}
_METHOD_NAMES = {method: kind for kind, method in METHODS.items()}
_PASSES = "sglang:cuda_graph_passes_total"
_STAGES = "sglang:per_stage_req_latency_seconds_count"
_PARTS = "chunked_prefill"  # the stage of a chunk that does not end its prompt
_TOY_BYTES = 100_000_000  # below it no model says anything
_FIRST_RANK = "0"  # of tensor parallel ranks, which all do the same; some series are of each


@dataclass(frozen=True, slots=True)
class Said:
    """The resolved arguments; those of a scheduler are the surer ones."""

    info: Mapping[str, Any]
    scheduler: Mapping[str, Any]  # the state of the first one

    def get(self, name: str) -> Any:
        """Return one argument; None where the server does not tell."""
        return self.scheduler.get(name, self.info.get(name))

    def number(self, *names: str) -> int | None:
        """Return the first that is a whole number."""
        found = (self.get(name) for name in names)
        return next((value for value in found if type(value) is int), None)


def said_by(server_info: Any) -> Said:
    """Return what the server said; `server_info` is None where it does not tell."""
    info = server_info if isinstance(server_info, Mapping) else {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    return Said(info, state if isinstance(state, Mapping) else {})


def effective_labels(server: Said, asked: Mapping[str, ToggleValue]) -> dict[str, str]:
    """Return toggle → label, of all toggles of which the server says anything."""
    told = {toggle: _READERS[toggle](server, value) for toggle, value in asked.items()}
    return {toggle: label for toggle, label in told.items() if label is not None}


def sizes_of(server: Said) -> dict[str, Any]:
    """Return sizes of the engine for reports and checks; None for what it does not say."""
    block_size, tokens = server.number("page_size"), server.number("max_total_num_tokens")
    return {
        "block_size": block_size,
        "kv_blocks": tokens // block_size if tokens and block_size else None,
        "kv_tokens": tokens,
        "running_limit": _running_limit(server),
        "step_tokens": server.number("chunked_prefill_size"),
        "dtype": server.get("dtype"),
        "kv_cache_dtype": server.get("kv_cache_dtype"),
        "attention_backend": server.get("attention_backend"),
        "memory_utilization_of": "weights and KV cache, without what steps need",
    }


def assumptions_of(server: Said, asked: ToggleValue, weights_bytes: int | None = None) -> list[str]:
    """Return what a reader of acceptance rates must know, where this server speculates."""
    if asked.kind == "off":
        return []
    most = server.number("speculative_num_draft_tokens")
    drafts = "as many" if most is None else str(most - VERIFIED_WITH)
    counted = f"each verify step counts as {drafts} drafted tokens, padding included"
    notes = [f"{asked.kind}: {counted}, as SGLang does; accepted are those that answers held"]
    if weights_bytes is not None and weights_bytes < _TOY_BYTES:
        size = f"a model of {weights_bytes / 1e6:.0f} MB"
        notes.append(f"{asked.kind}: {size} repeats itself: that drafts stand is an artefact of it")
    return notes


def totals_of(metrics: ServerMetrics, server: Said, dialect: Dialect) -> ServerCounters:
    """Return the totals of one scrape. A series comes up with its first count: absent is 0.

    Where a version counts something at all is looked up, not guessed from what is absent. Requests
    to `/health` are in what the scheduler counts and not in what is counted of requests.
    """
    if not metrics.has("sglang:prompt_tokens"):
        return ServerCounters()
    speculates = server.get("speculative_algorithm") is not None
    verified = _since(dialect.counts_verifies, metrics.count("sglang:spec_verify_calls"))
    output = metrics.count("sglang:generation_tokens")
    evicted, retracted = metrics.count("sglang:evicted_tokens"), _retracted(metrics, dialect)
    decoded = _of_rank(metrics, "sglang:realtime_tokens", "decode")
    return ServerCounters(
        prompt_tokens=metrics.count("sglang:prompt_tokens"),
        cached_prompt_tokens=metrics.count("sglang:cached_tokens") or 0,
        output_tokens=output,
        drafted_tokens=_drafted(verified, server, speculates),
        accepted_tokens=_accepted(metrics, verified, output, retracted) if speculates else None,
        verify_steps=verified,
        preemptions=retracted,
        steps=_passes(metrics, dialect, "decode_none", "decode_cuda_graph"),
        sequence_steps=verified if speculates else _since(dialect.counts_passes, decoded),
        graph_steps=_passes(metrics, dialect, "decode_cuda_graph", "prefill_cuda_graph"),
        partial_prefill_steps=_since(
            dialect.counts_passes, metrics.count(_STAGES, stage=_PARTS, tp_rank=_FIRST_RANK)
        ),
        queued_ns=metrics.nanoseconds("sglang:queue_time_seconds_sum", tp_rank=_FIRST_RANK),
        evicted_blocks=None if evicted is None else evicted // (server.number("page_size") or 1),
    )


def _since(counted: bool, total: int | None) -> int | None:
    """Return a total of versions that count it: 0 until there was something to count."""
    return (total or 0) if counted else None


def _of_rank(metrics: ServerMetrics, name: str, mode: str) -> int | None:
    return metrics.count(name, mode=mode, tp_rank=_FIRST_RANK)


def _passes(metrics: ServerMetrics, dialect: Dialect, *modes: str) -> int | None:
    found = sum(_of_rank(metrics, _PASSES, mode) or 0 for mode in modes)
    return _since(dialect.counts_passes, found)


def _retracted(metrics: ServerMetrics, dialect: Dialect) -> int | None:
    total = metrics.count("sglang:num_retracted_requests", tp_rank=_FIRST_RANK)
    return _since(dialect.counts_passes, total)


def _drafted(verified: int | None, server: Said, speculates: bool) -> int | None:
    most = server.number("speculative_num_draft_tokens")
    if verified is None or (speculates and most is None):
        return None
    return verified * (most - VERIFIED_WITH) if speculates and most else verified


def _accepted(
    metrics: ServerMetrics, verified: int | None, output: int | None, retracted: int | None
) -> int | None:
    """Return the drafts that answers held; a request that was put back is prefilled once more."""
    requests = metrics.count("sglang:num_requests")
    if verified is None or output is None or requests is None:
        return None
    return max(0, output - requests - verified - (retracted or 0))


def _running_limit(server: Said) -> int | None:
    return server.number("effective_max_running_requests_per_dp", "max_running_requests")


def _unless_disabled(name: str) -> Callable[[Said, ToggleValue], str | None]:
    def read(server: Said, _: ToggleValue) -> str | None:
        return {True: "off", False: "on"}.get(server.get(name))

    return read


def _chunked_prefill(server: Said, _: ToggleValue) -> str | None:
    size = server.number("chunked_prefill_size")
    return None if size is None else "on" if size > 0 else "off"


def _batching(server: Said, _: ToggleValue) -> str | None:
    limit = _running_limit(server)
    return None if limit is None else "none" if limit == 1 else "continuous"


def _paged_kv(_: Said, __: ToggleValue) -> str:
    return "on"


def _preemption(_: Said, __: ToggleValue) -> str:
    return "recompute"


def _cuda_graphs(server: Said, asked: ToggleValue) -> str | None:
    config = server.get("cuda_graph_config")
    if not isinstance(config, Mapping):
        return _unless_disabled("disable_cuda_graph")(server, asked)
    decode = config.get("decode")
    backend = decode.get("backend") if isinstance(decode, Mapping) else None
    return None if backend is None else "off" if backend == "disabled" else "on"


def _kv_cache_dtype(server: Said, _: ToggleValue) -> str | None:
    told = server.get("kv_cache_dtype")
    return None if told is None else _KV_NAMES.get(str(told), str(told))


def _quantization(server: Said, asked: ToggleValue) -> str | None:
    """Read it back where it was asked for: of a model quantized already SGLang tells it too."""
    if asked.kind == "none":
        return "none"
    told = server.get("quantization")
    names = {flag: label for label, flag in QUANTIZATION.items()}
    return names.get(told, str(told))


def _speculative(server: Said, asked: ToggleValue) -> str | None:
    if "speculative_algorithm" not in {**server.info, **server.scheduler}:
        return None
    algorithm = server.get("speculative_algorithm")
    if algorithm is None:
        return "off"
    most = server.number("speculative_num_draft_tokens")
    now = {
        "tokens": None if most is None else most - VERIFIED_WITH,
        "draft": server.get("speculative_draft_model_path"),
    }
    options = tuple((name, now.get(name) or "nothing") for name, _ in asked.options)
    return ToggleValue(_METHOD_NAMES.get(str(algorithm), str(algorithm)), options).label


def _attention_backend(server: Said, asked: ToggleValue) -> str | None:
    told = server.get("attention_backend")
    if told is None:
        return None
    return asked.kind if str(told).lower() == asked.kind.lower() else str(told)


def _number(name: str) -> Callable[[Said, ToggleValue], str | None]:
    def read(server: Said, _: ToggleValue) -> str | None:
        told = server.number(name)
        return None if told is None else str(told)

    return read


_READERS: dict[str, Callable[[Said, ToggleValue], str | None]] = {
    "prefix_caching": _unless_disabled("disable_radix_cache"),
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": _paged_kv,
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _unless_disabled("disable_overlap_schedule"),
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _quantization,
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _number("tp_size"),
    "block_size": _number("page_size"),
}
