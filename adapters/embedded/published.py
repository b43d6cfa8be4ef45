"""What the embedded engine predicts for a figure that somebody else measured on real GPUs."""

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
    kv_room,
)

UNITS = {
    "decode": "ms",
    "prefill": "ms",
    "first_token": "ms",
    "batch": "tokens/s",
    "between_tokens": "ms",
}
_GOLDEN = 0.6180339887  # its multiples fill an interval evenly, in no order
_ROUNDS = 5  # requests of each client of a closed loop; the first and the last are not counted
_STEP_TOKENS = 8192  # of prompts; engines that serve a batch of fixed lengths do not chunk them


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and the conditions that it was measured under.

    kind          value
    `decode`      milliseconds of the layers' kernels; each of `sequences` reads `prompt_tokens`
    `prefill`     milliseconds of the layers' kernels; one prompt of `prompt_tokens`
    `first_token` milliseconds from a request to its first token, alone and without a cache
    `batch`       output tokens a second of `sequences` equal requests that come at once
    `between_tokens` milliseconds between tokens, on average, of `sequences` clients that each
                  send anew when answered; prompts and answers of 0.8 to 1 of their lengths
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
    engine: str = "current"  # current | vllm-2024 | trtllm-2023 | trtllm-2024: whose software
    quantization: str = "none"
    kv_cache_dtype: str = "auto"

    @property
    def name(self) -> str:
        """The conditions in few words."""
        lengths = str(self.prompt_tokens)
        lengths += f"+{self.output_tokens}" if self.output_tokens > 1 else ""
        return f"{self.kind} {self.model} {self.gpus} x {self.gpu}, {self.sequences} x {lengths}"


def predicted(figure: Figure) -> float:
    """Return the engine's own figure, in the unit of `figure`'s kind."""
    deployment = Deployment(
        model=find_model(figure.model),
        gpu=find_gpu(figure.gpu),
        tensor_parallel=figure.gpus,
        quantization=figure.quantization,
        kv_cache_dtype=figure.kv_cache_dtype,
        overlap=figure.engine != "vllm-2024",
        software=figure.engine,
    )
    if figure.kind == "batch":
        return _batch_tokens_per_s(deployment, figure)
    if figure.kind == "between_tokens":
        return _between_tokens_ms(deployment, figure)
    if figure.kind == "first_token":
        return 1e3 * StepTime(deployment).step_s(0, 1, 0, [(figure.prompt_tokens, 0)], 1)
    return 1e3 * _kernels_s(deployment, figure)


def error_percent(figure: Figure) -> float:
    """Return by how many percent the prediction is above (+) or below (-) what was measured."""
    return 100 * (predicted(figure) / figure.value - 1)


def _kernels_s(deployment: Deployment, figure: Figure) -> float:
    """Return the seconds of all layers' kernels, without LM head, sampling and host."""
    layers = ForwardPass(deployment, deployment.model, tensor_parallel=deployment.tensor_parallel)
    if figure.kind == "prefill":
        tokens = figure.prompt_tokens
        return layers.dense_s(tokens) + layers.prefill_attention_s([(tokens, 0)])
    start_s, slope_s = layers.decode_attention(figure.sequences, 1)
    read = figure.sequences * figure.prompt_tokens
    return layers.dense_s(figure.sequences) + start_s + slope_s * read


def _batch_tokens_per_s(deployment: Deployment, figure: Figure) -> float:
    """Return the tokens a second of equal requests at once; those without KV room wait."""
    core, now_ns = _core(deployment, figure, chunked=False), 0
    prompt = np.zeros(figure.prompt_tokens, np.int32)
    for _ in range(figure.sequences):
        core.submit(prompt, figure.output_tokens, 0)
    while core.has_work:
        now_ns, _ = core.advance(now_ns)
    return figure.sequences * figure.output_tokens * 1e9 / now_ns


def _between_tokens_ms(deployment: Deployment, figure: Figure) -> float:
    """Return the mean milliseconds between tokens of a closed loop, once it is full."""
    core, now_ns = _core(deployment, figure, chunked=True), 0
    shares = 0.8 + 0.2 * np.modf(np.arange(_ROUNDS * figure.sequences) * _GOLDEN)[0]
    prompts = np.rint(shares[::-1] * figure.prompt_tokens).astype(int)
    answers = np.rint(shares * figure.output_tokens).astype(int)
    sent, done = 0, list[Sequence]()
    while len(done) < len(shares):
        while sent < min(len(shares), len(done) + figure.sequences):
            core.submit(np.zeros(prompts[sent], np.int32), int(answers[sent]), now_ns)
            sent += 1
        now_ns, finished = core.advance(now_ns)
        done += finished
    steady = done[figure.sequences : -figure.sequences]
    events = [core.token_events(one)[:, 0] for one in steady]
    return float(np.mean([(at[-1] - at[0]) / (len(at) - 1) for at in events])) / 1e6


def _core(deployment: Deployment, figure: Figure, *, chunked: bool) -> EngineCore:
    """Return the engine of a figure of requests; all of them may run where KV has room."""
    limits = MemoryLimits(
        max_model_len=figure.prompt_tokens + figure.output_tokens,
        max_num_seqs=figure.sequences,
        max_batched_tokens=_STEP_TOKENS,
    )
    blocks = -(-limits.max_model_len // limits.block_size) * figure.sequences
    if figure.engine != "trtllm-2023":  # a session of one batch, which was chosen to fit
        blocks = kv_room(deployment, limits).blocks
    config = EngineConfig(
        num_blocks=blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_batched_tokens,
        chunked_prefill=chunked,
        prefix_caching=False,
        paged_kv=figure.engine != "trtllm-2024",  # it began no request without room for all of it
    )
    return EngineCore(config, StepTime(deployment))
