"""The nouns of every engine adapter: toggles, settings, counters, errors, the HTTP target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from harness.adapters.http_queries import Access
from harness.adapters.request_shape import API_PATHS, AS_MADE, RequestShape
from harness.adapters.runtime import Runtime


class EngineError(Exception):
    """An engine that cannot be configured or started, for a reason that the user can fix."""

    about: str | None = None  # the field of `EngineSettings` or the toggle that is at fault, if one


class UnsupportedToggleError(EngineError):
    """A toggle value that this engine cannot follow; the plan shows the message as the reason."""


@dataclass(frozen=True, slots=True)
class ToggleValue:
    """One value of a toggle: a kind (`on`, `fp8`, `ngram`, `8`) and, of speculation, options."""

    kind: str
    options: tuple[tuple[str, str | int | float], ...] = ()

    @property
    def label(self) -> str:
        """The string that results store, such as `on`, `8` or `ngram(tokens=4)`."""
        if not self.options:
            return self.kind
        return f"{self.kind}({','.join(f'{key}={value}' for key, value in self.options)})"

    @property
    def tree(self) -> tuple[int, int] | None:
        """Of speculation that drafts a tree, written `2x3`: (branches, depth); None of a chain."""
        tree = dict(self.options).get("tree")
        if tree is None:
            return None
        branches, depth = str(tree).split("x")
        return int(branches), int(depth)


# The engine-neutral toggles: name → the kinds it may take. An empty tuple takes any word or number.
TOGGLES: dict[str, tuple[str, ...]] = {
    "prefix_caching": ("on", "off"),
    "chunked_prefill": ("on", "off"),
    "batching": ("continuous", "static", "none"),
    "paged_kv": ("on", "off"),
    "cuda_graphs": ("on", "off"),
    "overlap_scheduling": ("on", "off"),
    "kv_cache_dtype": ("auto", "fp8", "int8", "int4"),
    "quantization": ("none", "fp8", "int8", "int4"),
    "speculative": ("off", "ngram", "draft", "eagle", "eagle3"),
    "preemption": ("recompute", "swap"),
    "attention_backend": (),
    "tensor_parallel": (),
    "pipeline_parallel": (),
    "data_parallel": (),
    "expert_parallel": ("on", "off"),
    "block_size": (),
}

# What a toggle is on a server that somebody else started: no value was requested.
AS_IT_IS = ToggleValue("as it is")

# One baseline for all engines of a sweep; tensor_parallel comes from the hardware's count.
BASELINE: dict[str, ToggleValue] = {
    "prefix_caching": ToggleValue("on"),
    "chunked_prefill": ToggleValue("on"),
    "batching": ToggleValue("continuous"),
    "paged_kv": ToggleValue("on"),
    "cuda_graphs": ToggleValue("on"),
    "overlap_scheduling": ToggleValue("on"),
    "kv_cache_dtype": ToggleValue("auto"),
    "quantization": ToggleValue("none"),
    "speculative": ToggleValue("off"),
    "preemption": ToggleValue("recompute"),
    "attention_backend": ToggleValue("auto"),
    "pipeline_parallel": ToggleValue("1"),
    "data_parallel": ToggleValue("1"),
    "expert_parallel": ToggleValue("off"),
    "block_size": ToggleValue("auto"),
}

# The toggles whose values multiply to the GPUs of one engine. Expert parallelism adds none: it
# spreads the experts over the same GPUs.
GPU_TOGGLES = ("tensor_parallel", "pipeline_parallel", "data_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The configuration requested of one server start, in engine-neutral words."""

    model: str
    gpu: str
    gpu_count: int
    dtype: str = "bfloat16"
    max_model_len: int
    toggles: Mapping[str, ToggleValue]  # every toggle of the baseline, with this arm's value
    max_num_seqs: int = 256  # sequences running at most
    max_batched_tokens: int = 512  # tokens a step at most; the chunk of chunked prefill
    memory_utilization: float = 0.9  # share of each GPU's memory that the engine may take
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    runtime: Runtime | None = None  # None: the engine's program is on PATH
    start_timeout_s: float = 900.0  # until it must have generated its first token
    trust_remote_code: bool = False  # whether code that comes with the model may run
    url: str | None = None  # of a server that runs already, which is not started
    api_key_env: str | None = None  # the variable with the key of that server
    metrics_urls: tuple[str, ...] = ()  # of the replicas behind `url`, whose counters are added up
    model_check: bool = True  # whether that server must list or answer the model's name
    shape: RequestShape = AS_MADE  # what the user sets of every request
    step_profile: Mapping[str, Any] | None = None  # fitted step times, for the embedded engine
    log_path: Path | None = None  # of the engine's output; None: a temporary file

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the CPU, where the client runs too."""
        return self.gpu.lower() == "cpu"

    @property
    def gpus(self) -> int:
        """The GPUs that one engine takes: tensor × pipeline × data parallel.

        On a server that somebody else started, `tensor_parallel` is the number of all its GPUs.
        """
        kinds = (self.kind(toggle) for toggle in GPU_TOGGLES)
        return math.prod(int(kind) for kind in kinds if kind.isdigit())

    @property
    def running_limit(self) -> int:
        """The sequences that may run at once."""
        return 1 if self.kind("batching") == "none" else self.max_num_seqs

    @property
    def step_tokens(self) -> int:
        """The tokens that a step may compute: without chunks a whole prompt must fit into one."""
        whole = self.max_model_len if self.kind("chunked_prefill") == "off" else 0
        return max(self.max_batched_tokens, whole)

    def base(self) -> dict[str, str]:
        """Return the requested settings that are no toggles, as results store them."""
        return {
            "dtype": self.dtype,
            "max_model_len": str(self.max_model_len),
            "max_num_seqs": str(self.running_limit),
            "max_batched_tokens": str(self.step_tokens),
            "memory_utilization": f"{self.memory_utilization:g}",
        }

    def kind(self, toggle: str) -> str:
        """Return the kind of a toggle's value, such as `on`."""
        return self.toggles[toggle].kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """The server's own running totals. None: this server does not count it."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    looked_up_prompt_tokens: int | None = None  # prompt tokens that a prefix cache was searched for
    output_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    verify_steps: int | None = None  # sequence-steps that verified a draft
    preemptions: int | None = None
    swapped_tokens: int | None = None  # whose KV a preemption moved to the host's memory
    steps: int | None = None  # of a real server those that produced a token
    sequence_steps: int | None = None  # over all steps, the sequences that got tokens in them
    graph_steps: int | None = None  # steps replayed from a CUDA graph
    split_prefills: int | None = None  # prompts whose prefill took more than one step
    split_prefills_at_least: int | None = (
        None  # so many for sure, where the server counts no splits
    )
    partial_prefill_steps: int | None = None  # parts of prompts that were not a prompt's last
    mixed_steps: int | None = None  # steps with prefill and decode tokens
    late_admissions: int | None = None  # sequences admitted while others were decoding
    peak_running: int | None = None
    evicted_blocks: int | None = None
    # summed over requests, from arrival until it first ran; real servers add it when one has ended
    queued_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a model is served over HTTP, and what requests may contain."""

    url: str  # of the server: /health and /metrics are below it
    model: str  # the name that requests carry
    api_path: str = "/v1"  # root of the API below `url`; empty: `url` is the root
    api: str = "completions"  # completions | chat | responses | messages
    # What the server takes beyond model, prompt, max_tokens, temperature and stream; nothing else
    # is sent. Of `seed`, `ignore_eos`, `include_usage`, `continuous_usage_stats`, `cache_salt`,
    # `return_token_ids`, `detokenize`.
    fields: frozenset[str] = frozenset()
    vocabulary: int | None = None  # prompts are token ids below it; None: prompts are text
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys: never stored
    body: Mapping[str, Any] = field(default_factory=dict)  # the user's fields of every request
    lora: Mapping[str, float] = field(default_factory=dict)  # adapter → share of requests
    verify_tls: bool | str = True  # a text: the file with the authorities to trust
    # Fields of every request that this server refuses: `temperature` is left out, `max_tokens`
    # is sent as `max_completion_tokens`.
    refused: frozenset[str] = frozenset()
    engine_pid: int | None = None  # of the engine's first process, where it was started here

    virtual_time: ClassVar[Literal[False]] = False
    counts_prompts: ClassVar[Literal[True]] = True  # by a tokenizer and a template of its own
    may_refuse_fields: ClassVar[Literal[True]] = True

    @property
    def endpoint(self) -> str:
        """The address that requests go to."""
        return f"{self.url.rstrip('/')}{self.api_path}{API_PATHS[self.api]}"

    @property
    def access(self) -> Access:
        """What queries beside the load need."""
        return Access(headers=self.headers, verify_tls=self.verify_tls)

    @property
    def live_history(self) -> bool:
        """Whether its own answers can stand in later prompts: it reports and takes token ids."""
        by_ids = self.api == "completions" and self.vocabulary is not None
        return by_ids and not self.fields.isdisjoint(("return_token_ids", "detokenize"))

    def facts(self) -> dict[str, list[str]]:
        """Return what a manifest holds of the form of requests."""
        refused = {"refused_fields": sorted(self.refused)} if self.refused else {}
        return {"fields": sorted(self.fields), **refused}
