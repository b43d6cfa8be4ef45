"""The memory model: weights, a reserve, and KV blocks in the remaining GPU memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.adapters.base import EngineError
from harness.adapters.embedded.step_time.deployment import Deployment, shareable
from harness.adapters.embedded.step_time.model_shape import ModelShape

_GIB = 2**30
_WIDE = 2  # bytes of a BF16 or FP16 number
# AWQ and GPTQ checkpoints: a 16-bit scale and a 4-bit zero point for each group of 128 weights.
_INT4_WEIGHT_BYTES = (4 + (16 + 4) / 128) / 8
_WEIGHT_BYTES = {"none": 2.0, "fp8": 1.0, "int8": 1.0, "int4": _INT4_WEIGHT_BYTES}
# Bytes of one number in the KV cache. int8 and int4 also store a 16-bit scale for each token and
# head, as vLLM's int8_per_token_head and int4_per_token_head. FP8 has one scale per tensor.
_KV_BYTES = {"auto": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
_KV_SCALE_BYTES = {"auto": 0, "fp8": 0, "int8": 2, "int4": 2}

# Narrower weights that an error suggests to save memory. FP8 is not suggested: its use is speed.
_NARROWER = {"none": ("int8", "int4"), "fp8": ("int4",), "int8": ("int4",), "int4": ()}

# Assumed: memory of one GPU other than weights, activations and KV.
_RUNTIME_BYTES = int(1.5 * _GIB)  # CUDA context, NCCL buffers, fragmentation
_GRAPH_BYTES = 1 * _GIB  # CUDA graphs, captured after the KV cache is allocated
RESERVE_ASSUMPTION = (
    f"in addition to weights, activations and KV a GPU needs {_RUNTIME_BYTES / _GIB:g} GiB of "
    f"runtime; {_GRAPH_BYTES / _GIB:g} GiB of CUDA graphs is outside the share of memory that an "
    "engine may use"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """The settings that limit an engine's use of memory."""

    max_model_len: int
    max_num_seqs: int
    max_batched_tokens: int
    memory_utilization: float = 0.9  # share of each GPU's memory
    block_size: int = 16  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCapacity:
    """The use of one GPU's memory in bytes, and the KV blocks that fit."""

    weights_bytes: int  # includes the drafter's weights
    reserve_bytes: int
    free_bytes: int  # for KV; negative when the weights and the reserve do not fit
    token_bytes: int  # KV of one token on one GPU, including the drafter's KV
    block_size: int

    @property
    def blocks(self) -> int:
        """The number of whole KV blocks that fit."""
        return max(0, self.free_bytes) // (self.token_bytes * self.block_size)

    @property
    def tokens(self) -> int:
        """The number of tokens whose KV fits, in whole blocks."""
        return self.blocks * self.block_size


def weight_width_bytes(quantization: str) -> float:
    """Return the bytes of one weight of the layers."""
    return _WEIGHT_BYTES[quantization]


def layer_weight_bytes(model: ModelShape, quantization: str = "none") -> float:
    """Return the bytes of one layer's matrices, summed over all GPUs."""
    return model.layer_parameters * _WEIGHT_BYTES[quantization]


def weight_bytes(model: ModelShape, quantization: str = "none") -> int:
    """Return the bytes of all weights, summed over all GPUs.

    In quantized checkpoints (AWQ, GPTQ, vLLM's FP8) embeddings, LM head and norms stay 16 bit.
    """
    layers = model.layers * layer_weight_bytes(model, quantization)
    return round(layers + _WIDE * (model.parameters - model.layers * model.layer_parameters))


def kv_heads_per_gpu(model: ModelShape, tensor_parallel: int) -> int:
    """Return the KV heads that each GPU caches, at least 1 (heads are copied if necessary)."""
    return max(1, model.kv_heads // tensor_parallel)


def kv_bytes_per_token(
    model: ModelShape, kv_cache_dtype: str = "auto", tensor_parallel: int = 1
) -> int:
    """Return the KV bytes of one token on one of `tensor_parallel` GPUs, over all layers."""
    head = model.head_dim * _KV_BYTES[kv_cache_dtype] + _KV_SCALE_BYTES[kv_cache_dtype]
    return round(2 * model.layers * kv_heads_per_gpu(model, tensor_parallel) * head)


def kv_capacity(deployment: Deployment, limits: MemoryLimits) -> KvCapacity:
    """Return the memory for KV on each GPU.

    Raises `EngineError` when the weights or one sequence of `max_model_len` do not fit. The error
    has the missing memory and the remedies.
    """
    kv = unchecked_kv_capacity(deployment, limits)
    if kv.free_bytes <= 0:
        raise _too_large(deployment, limits, kv)
    if kv.tokens < limits.max_model_len:
        raise _too_short(deployment, limits, kv)
    return kv


def usable_bytes(deployment: Deployment, limits: MemoryLimits) -> float:
    """Return the bytes of one GPU for weights, activations, runtime and KV.

    This is `memory_utilization` of the memory, reduced if the CUDA graphs need more than the rest.
    vLLM and SGLang capture CUDA graphs last and do not count them.
    """
    total = deployment.gpu.memory_bytes
    graphs = _GRAPH_BYTES if deployment.cuda_graphs else 0
    return min(total * limits.memory_utilization, total - graphs)


def unchecked_kv_capacity(deployment: Deployment, limits: MemoryLimits) -> KvCapacity:
    """Return the memory for KV on each GPU without checking that it is sufficient."""
    model, gpus = deployment.model, deployment.tensor_parallel
    weights = weight_bytes(model, deployment.quantization) / gpus
    token_bytes = kv_bytes_per_token(model, deployment.kv_cache_dtype, gpus)
    if drafter := deployment.drafter:
        shared = deployment.drafter_parallel
        weights += _drafter_bytes(deployment, drafter) / shared
        token_bytes += kv_bytes_per_token(drafter, deployment.kv_cache_dtype, shared)
    reserve = _reserve_bytes(deployment, limits)
    usable = usable_bytes(deployment, limits)
    return KvCapacity(
        weights_bytes=round(weights),
        reserve_bytes=reserve,
        free_bytes=round(usable - weights - reserve),
        token_bytes=token_bytes,
        block_size=limits.block_size,
    )


def _drafter_bytes(deployment: Deployment, drafter: ModelShape) -> int:
    """Return the bytes of the drafter's 16-bit weights.

    EAGLE uses the target's embeddings and LM head; EAGLE-3 has its own LM head.
    """
    if deployment.speculative == "draft":
        return weight_bytes(drafter)
    head = drafter.vocabulary * drafter.hidden if deployment.speculative == "eagle3" else 0
    return _WIDE * (drafter.layer_parameters + deployment.drafter_input_parameters + head)


def _reserve_bytes(deployment: Deployment, limits: MemoryLimits) -> int:
    """Return the bytes of runtime and of the largest step's activations on each GPU."""
    model, gpus = deployment.model, deployment.tensor_parallel
    tokens = max(limits.max_batched_tokens, limits.max_num_seqs)
    heads = (model.heads + 2 * model.kv_heads) * model.head_dim / gpus
    activations = tokens * _WIDE * (4 * model.hidden + heads + 3 * model.active_intermediate / gpus)
    logits = limits.max_num_seqs * model.vocabulary * 4 * 2  # 32 bit, and a copy to sort
    return _RUNTIME_BYTES + round(activations + logits)


def _too_large(deployment: Deployment, limits: MemoryLimits, kv: KvCapacity) -> EngineError:
    need = kv.weights_bytes + kv.reserve_bytes
    usable = usable_bytes(deployment, limits)
    error = EngineError(
        f"{_name(deployment)} does not fit: each GPU needs {need / _GIB:.1f} GiB before any KV "
        f"({kv.weights_bytes / _GIB:.1f} GiB of weights) but has {usable / _GIB:.1f} GiB; "
        f"{-kv.free_bytes / _GIB:.1f} GiB are missing"
    )
    error.about, remedies = _remedies(deployment, limits, "gpu")
    error.add_note(remedies)
    return error


def _too_short(deployment: Deployment, limits: MemoryLimits, kv: KvCapacity) -> EngineError:
    blocks = -(-limits.max_model_len // limits.block_size)
    missing = blocks * limits.block_size * kv.token_bytes - kv.free_bytes
    error = EngineError(
        f"{_name(deployment)} has KV capacity for {kv.tokens:,} tokens, less than one sequence of "
        f"max_model_len {limits.max_model_len:,}: {missing / _GIB:.1f} GiB are missing on each GPU"
    )
    if kv.tokens:
        error.add_note(f"set max_model_len to at most {kv.tokens}")
    error.about, remedies = _remedies(deployment, limits, "max_model_len")
    error.add_note(remedies)
    return error


def _remedies(deployment: Deployment, limits: MemoryLimits, about: str) -> tuple[str, str]:
    """Return the setting that causes the error (default: `about`) and the remedies.

    Tries the default memory_utilization and block_size first, then more GPUs, narrower weights, and
    both together.
    """
    usual = MemoryLimits(max_model_len=1, max_num_seqs=1, max_batched_tokens=1)
    share = max(limits.memory_utilization, usual.memory_utilization)
    block = min(limits.block_size, usual.block_size)
    for name, changed in (
        ("memory_utilization", replace(limits, memory_utilization=share)),
        ("block_size", replace(limits, block_size=block)),
    ):
        if unchecked_kv_capacity(deployment, changed).tokens >= limits.max_model_len:
            found, would = getattr(limits, name), getattr(changed, name)
            return name, f"the cause is {name} {found}; set {name} to {would}"
    return about, _larger(deployment, limits)


def _larger(deployment: Deployment, limits: MemoryLimits) -> str:
    """Return the number of GPUs or the quantization that makes the model fit."""
    more = [
        count
        for count in (2, 4, 8)
        if count > deployment.tensor_parallel and shareable(deployment.model, count)
    ]
    narrower = _NARROWER[deployment.quantization]

    def fits(gpus: int, quantization: str) -> bool:
        other = replace(deployment, tensor_parallel=gpus, quantization=quantization)
        return unchecked_kv_capacity(other, limits).tokens >= limits.max_model_len

    counts = [f"{count} GPUs" for count in more if fits(count, deployment.quantization)][:1]
    widths = [f"quantization {kind}" for kind in narrower if fits(deployment.tensor_parallel, kind)]
    both = [
        f"{count} GPUs with quantization {kind}"
        for count in more
        for kind in narrower
        if fits(count, kind)
    ][:1]
    if found := counts + widths or both:
        return f"use {', or '.join(found)}"
    return "use a larger GPU: up to 8 GPUs and every quantization are not enough"


def _name(deployment: Deployment) -> str:
    weights = "16-bit" if deployment.quantization == "none" else deployment.quantization
    return (
        f"{deployment.model.name} in {weights} weights on "
        f"{deployment.tensor_parallel} × {deployment.gpu.name}"
    )
