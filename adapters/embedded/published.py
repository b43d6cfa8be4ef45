"""Predictions of the embedded engine for published measurements on real GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.adapters.embedded.engine import EngineConfig, EngineCore, Sequence
from harness.adapters.embedded.step_time import (
    Deployment,
    ForwardPass,
    MemoryLimits,
    StepTime,
    find_gpu,
    find_model,
    kv_capacity,
)

UNITS = {
    "decode": "ms",
    "prefill": "ms",
    "first_token": "ms",
    "batch": "tokens/s",
    "between_tokens": "ms",
}
_GOLDEN = 0.6180339887  # the fractional parts of its multiples are evenly distributed
_ROUNDS = 5  # requests of each closed-loop client; the first and the last are not counted
_STEP_TOKENS = 8192  # prompt tokens per step; benchmarks of fixed batches do not chunk prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedValue:
    """One measured value and its conditions.

    kind          value
    `decode`      milliseconds of the layers' kernels; each of `sequences` reads `prompt_tokens`
    `prefill`     milliseconds of the layers' kernels; one prompt of `prompt_tokens`
    `first_token` milliseconds from a single request to its first token, without a prefix cache
    `batch`       output tokens/s of `sequences` equal requests that arrive at once
    `between_tokens` mean milliseconds between tokens of `sequences` clients in closed loop, with
                  prompts and outputs of 0.8 to 1 of their lengths
    """

    kind: str
    gpu: str
    gpus: int
    model: str
    sequences: int
    prompt_tokens: int
    output_tokens: int
    value: float
    source: str
    engine: str = "current"  # software: current | vllm-2024 | trtllm-2023 | trtllm-2024
    quantization: str = "none"
    kv_cache_dtype: str = "auto"

    @property
    def name(self) -> str:
        """The conditions as short text."""
        lengths = str(self.prompt_tokens)
        lengths += f"+{self.output_tokens}" if self.output_tokens > 1 else ""
        return f"{self.kind} {self.model} {self.gpus} x {self.gpu}, {self.sequences} x {lengths}"


def predicted(published: PublishedValue) -> float:
    """Return the prediction for `published`, in the unit of its kind."""
    deployment = Deployment(
        model=find_model(published.model),
        gpu=find_gpu(published.gpu),
        tensor_parallel=published.gpus,
        quantization=published.quantization,
        kv_cache_dtype=published.kv_cache_dtype,
        overlap=published.engine != "vllm-2024",
        software=published.engine,
    )
    if published.kind == "batch":
        return _batch_tokens_per_s(deployment, published)
    if published.kind == "between_tokens":
        return _between_tokens_ms(deployment, published)
    if published.kind == "first_token":
        return 1e3 * StepTime(deployment).step_s(0, 1, 0, [(published.prompt_tokens, 0)], 1)
    return 1e3 * _kernels_s(deployment, published)


def error_percent(published: PublishedValue) -> float:
    """Return the error in percent: + if the prediction is above the measured value, - if below."""
    return 100 * (predicted(published) / published.value - 1)


def _kernels_s(deployment: Deployment, published: PublishedValue) -> float:
    """Return the seconds of all layers' kernels, without LM head, sampling and host time."""
    layers = ForwardPass(deployment, deployment.model, tensor_parallel=deployment.tensor_parallel)
    if published.kind == "prefill":
        tokens = published.prompt_tokens
        return layers.dense_s(tokens) + layers.prefill_attention_s([(tokens, 0)])
    start_s, slope_s = layers.decode_attention(published.sequences, 1)
    read = published.sequences * published.prompt_tokens
    return layers.dense_s(published.sequences) + start_s + slope_s * read


def _batch_tokens_per_s(deployment: Deployment, published: PublishedValue) -> float:
    """Return the output tokens/s of equal requests that arrive at once and may wait for blocks."""
    core, now_ns = _core(deployment, published, chunked=False), 0
    prompt = np.zeros(published.prompt_tokens, np.int32)
    for _ in range(published.sequences):
        core.submit(prompt, published.output_tokens, 0)
    while core.has_work:
        now_ns, _ = core.advance(now_ns)
    return published.sequences * published.output_tokens * 1e9 / now_ns


def _between_tokens_ms(deployment: Deployment, published: PublishedValue) -> float:
    """Return the mean milliseconds between tokens of a closed loop in steady state."""
    core, now_ns = _core(deployment, published, chunked=True), 0
    shares = 0.8 + 0.2 * np.modf(np.arange(_ROUNDS * published.sequences) * _GOLDEN)[0]
    prompts = np.rint(shares[::-1] * published.prompt_tokens).astype(int)
    outputs = np.rint(shares * published.output_tokens).astype(int)
    sent, done = 0, list[Sequence]()
    while len(done) < len(shares):
        while sent < min(len(shares), len(done) + published.sequences):
            core.submit(np.zeros(prompts[sent], np.int32), int(outputs[sent]), now_ns)
            sent += 1
        now_ns, finished = core.advance(now_ns)
        done += finished
    steady = done[published.sequences : -published.sequences]
    events = [core.token_events(one)[:, 0] for one in steady]
    return float(np.mean([(at[-1] - at[0]) / (len(at) - 1) for at in events])) / 1e6


def _core(deployment: Deployment, published: PublishedValue, *, chunked: bool) -> EngineCore:
    """Return an engine for the requests of `published`. KV blocks limit the running requests."""
    limits = MemoryLimits(
        max_model_len=published.prompt_tokens + published.output_tokens,
        max_num_seqs=published.sequences,
        max_batched_tokens=_STEP_TOKENS,
    )
    blocks = -(-limits.max_model_len // limits.block_size) * published.sequences
    if published.engine != "trtllm-2023":  # that one ran a single batch chosen to fit in memory
        blocks = kv_capacity(deployment, limits).blocks
    config = EngineConfig(
        num_blocks=blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_batched_tokens,
        chunked_prefill=chunked,
        prefix_caching=False,
        # TensorRT-LLM of 2024 starts a request only when its whole KV fits.
        paged_kv=published.engine != "trtllm-2024",
    )
    return EngineCore(config, StepTime(deployment))
