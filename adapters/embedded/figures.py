"""What the embedded engine predicts for a figure that somebody else measured on real GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adapters.embedded.config import EngineConfig
from adapters.embedded.core import EngineCore
from adapters.embedded.deployment import Deployment
from adapters.embedded.forward import ForwardPass
from adapters.embedded.hardware import find_gpu
from adapters.embedded.memory import MemoryLimits, kv_room
from adapters.embedded.models import find_model
from adapters.embedded.roofline import StepTime

UNITS = {"decode": "ms", "prefill": "ms", "first_token": "ms", "batch": "tokens/s"}
_STEP_TOKENS = 8192  # of prompts; engines that serve a batch of fixed lengths do not chunk them


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and the conditions that it was measured under.

    kind          value
    `decode`      milliseconds of the layers' kernels; each of `sequences` reads `prompt_tokens`
    `prefill`     milliseconds of the layers' kernels; one prompt of `prompt_tokens`
    `first_token` milliseconds from a request to its first token, alone and without a cache
    `batch`       output tokens a second of `sequences` equal requests that come at once
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

    @property
    def name(self) -> str:
        """The conditions in few words."""
        lengths = str(self.prompt_tokens)
        lengths += f"+{self.output_tokens}" if self.kind == "batch" else ""
        return f"{self.kind} {self.model} {self.gpus} x {self.gpu}, {self.sequences} x {lengths}"


def predicted(figure: Figure) -> float:
    """Return the engine's own figure, in the unit of `figure`'s kind."""
    deployment = Deployment(
        model=find_model(figure.model), gpu=find_gpu(figure.gpu), tensor_parallel=figure.gpus
    )
    if figure.kind == "batch":
        return _batch_tokens_per_s(deployment, figure)
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
    limits = MemoryLimits(
        max_model_len=figure.prompt_tokens + figure.output_tokens,
        max_num_seqs=figure.sequences,
        max_batched_tokens=_STEP_TOKENS,
    )
    config = EngineConfig(
        num_blocks=kv_room(deployment, limits).blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_batched_tokens,
        chunked_prefill=False,
        prefix_caching=False,
    )
    core, now_ns = EngineCore(config, StepTime(deployment)), 0
    prompt = np.zeros(figure.prompt_tokens, np.int32)
    for _ in range(figure.sequences):
        core.submit(prompt, figure.output_tokens, 0)
    while core.has_work:
        now_ns, _ = core.advance(now_ns)
    return figure.sequences * figure.output_tokens * 1e9 / now_ns
