"""What a running TensorRT-LLM says that it runs, in the words of our toggles. Pure.

Three sources: the arguments that it logs once resolved, what it logs where it could not follow
them, and in newer versions the labels of series such as `trtllm_kv_cache_config_info`. Not yet run
against the real TensorRT-LLM: what it does not say in these words is left out, and cannot be
verified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.adapters.base import ToggleValue
from harness.adapters.server_metrics import ServerMetrics
from harness.adapters.tensorrt_llm.options import POLICIES

_ARGUMENTS = re.compile(r"LLM Args:[ \t]*\n?(.+)")
_SWITCHES = {"True": "on", "true": "on", "False": "off", "false": "off"}
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
class Said:
    """The sources, as far as this server has them."""

    arguments: Mapping[str, str]  # name → value as Python writes it
    metrics: ServerMetrics
    log: str
    block_tokens: int | None  # as its iterations tell

    def argument(self, name: str) -> str | None:
        """Return one argument as plain text; None where the server does not tell."""
        value = self.arguments.get(name)
        return None if value is None else _plain(value)

    def section(self, name: str) -> tuple[str, Mapping[str, str]] | None:
        """Return class and arguments of a nested configuration; None where there is none."""
        found = re.match(r"(\w+)\((.*)\)$", self.arguments.get(name, ""), re.DOTALL)
        return None if found is None else (found[1], _pairs(found[2]))

    def info(self, name: str, key: str) -> str | None:
        """Return a label of a series that only holds labels."""
        return (self.metrics.labels(f"trtllm_{name}_config_info") or {}).get(key)


def said_by(log: str, metrics: ServerMetrics, block_tokens: int | None) -> Said:
    """Return what the server said. Arguments are logged more than once: the last are those."""
    logged = _ARGUMENTS.findall(log)
    return Said(_pairs(logged[-1]) if logged else {}, metrics, log, block_tokens)


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


_Labels = tuple[str | None, ...]  # what each source says, the surest first


def _prefix_caching(server: Said, _: ToggleValue) -> _Labels:
    return (
        _SWITCHES.get(_of_kv_cache(server, "enable_block_reuse") or ""),
        _SWITCHES.get(server.info("kv_cache", "enable_block_reuse") or ""),
        "off" if _NO_REUSE.search(server.log) else None,
    )


def _chunked_prefill(server: Said, _: ToggleValue) -> _Labels:
    given_up = "off" if _NO_CHUNKS.search(server.log) else None
    return _SWITCHES.get(server.argument("enable_chunked_prefill") or ""), given_up


def _batching(server: Said, _: ToggleValue) -> _Labels:
    if server.argument("max_batch_size") == "1":
        return ("none",)
    section = server.section("scheduler_config")
    policy = _plain(section[1].get("capacity_scheduler_policy", "")) if section else ""
    return (_BATCHING.get(policy, "continuous") if policy else None,)


def _paged_kv(_: Said, __: ToggleValue) -> _Labels:
    return ("on",)


def _preemption(_: Said, __: ToggleValue) -> _Labels:
    return ("recompute",)


def _cuda_graphs(server: Said, _: ToggleValue) -> _Labels:
    told = server.argument("cuda_graph_config")
    captured = "on" if _GRAPHS.search(server.log) else None
    return None if told is None else "off" if told == "None" else "on", captured


def _overlap(server: Said, _: ToggleValue) -> _Labels:
    off = _SWITCHES.get(server.argument("disable_overlap_scheduler") or "")
    given_up = "off" if _NO_OVERLAP.search(server.log) else None
    return None if off is None else "off" if off == "on" else "on", given_up


def _kv_cache_dtype(server: Said, _: ToggleValue) -> _Labels:
    return (_of_kv_cache(server, "dtype"),)


def _speculative(server: Said, asked: ToggleValue) -> _Labels:
    if server.argument("speculative_config") == "None":
        return ("off",)
    section = server.section("speculative_config")
    if section is None:
        return ("off" if server.info("speculative", "spec_enabled") == "false" else None,)
    kind, told = section
    draft = told.get("speculative_model", told.get("speculative_model_dir", "nothing"))
    now = {"tokens": told.get("max_draft_len", "nothing"), "draft": _plain(draft)}
    options = tuple((name, now.get(name, "nothing")) for name, _ in asked.options)
    return (ToggleValue(_METHODS.get(kind, kind), options).label,)


def _attention_backend(server: Said, asked: ToggleValue) -> _Labels:
    told = server.argument("attn_backend")
    same = told is not None and told.lower() == asked.kind.lower()
    return (asked.kind if same else told,)


def _tensor_parallel(server: Said, _: ToggleValue) -> _Labels:
    return (
        server.argument("tensor_parallel_size"),
        server.info("parallel", "tensor_parallel_size"),
    )


def _block_size(server: Said, _: ToggleValue) -> _Labels:
    counted = server.block_tokens
    return None if counted is None else str(counted), server.info("kv_cache", "page_size")


def _nothing(_: Said, __: ToggleValue) -> _Labels:
    return ()


def _of_kv_cache(server: Said, key: str) -> str | None:
    section = server.section("kv_cache_config")
    value = section[1].get(key) if section else None
    return None if value is None else _plain(value)


def _pairs(text: str) -> dict[str, str]:
    """Return name → value of `a=1 b='x' c=C(d=2, e=<F.G: 3>)`, the values as they are written."""
    found = (part.partition("=") for part in _parts(text))
    return {name.strip(): value.strip() for name, equals, value in found if equals}


def _parts(text: str) -> Iterator[str]:
    """Yield what blanks and commas part, as far as they stand in no brackets and no quotes."""
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


_READERS: dict[str, Callable[[Said, ToggleValue], _Labels]] = {
    "prefix_caching": _prefix_caching,
    "chunked_prefill": _chunked_prefill,
    "batching": _batching,
    "paged_kv": _paged_kv,
    "cuda_graphs": _cuda_graphs,
    "overlap_scheduling": _overlap,
    "kv_cache_dtype": _kv_cache_dtype,
    "quantization": _nothing,  # a checkpoint's, and no switch
    "speculative": _speculative,
    "preemption": _preemption,
    "attention_backend": _attention_backend,
    "tensor_parallel": _tensor_parallel,
    "block_size": _block_size,
}
