"""The values of `harness capacity`: memory, sequences that fit, and step times with their floor.

All values come from the memory model and the step-time model of the embedded engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.adapters.base import EngineError, EngineSettings
from harness.adapters.embedded.adapter import deployment, memory_limits
from harness.adapters.embedded.engine import EngineConfig
from harness.adapters.embedded.step_time import (
    Deployment,
    KvCapacity,
    MemoryLimits,
    StepTime,
    all_gpus,
    kv_bytes_per_token,
    kv_capacity,
    unchecked_kv_capacity,
    usable_bytes,
    weight_bytes,
)

CONTEXTS_TOKENS = (2048, 4096, 32_768, 131_072)
CACHE_DTYPES = ("auto", "fp8", "int4")
BATCHES = (1, 32, 256, 1024)
_FLOOR_CONTEXT_TOKENS = 1000
_USED_SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)  # share of the reserved context that is used


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether the weights and one sequence fit. If not, the missing memory and the remedies."""

    fits: bool
    why_not: str | None = None
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The use of memory, per GPU and over all GPUs that share the model."""

    memory_bytes_per_gpu: int
    usable_bytes_per_gpu: int
    weights_bytes: int
    weights_bytes_per_gpu: int
    reserve_bytes_per_gpu: int  # runtime and activations of the largest step
    reserved_step_tokens: int  # tokens of the largest step
    reserved_sequences: int
    kv_room_bytes: int  # negative: bytes that are missing before any KV
    kv_room_bytes_per_gpu: int
    kv_room_tokens: int
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """The KV bytes of one token over all layers."""

    kv_bytes_per_token: int  # each KV head once
    kv_bytes_per_token_per_gpu: int  # GPUs copy KV heads when there are fewer heads than GPUs
    heads: int
    kv_heads: int
    all_heads_kv_bytes_per_token: int  # if each query head had its own KV head
    grouped_heads_saving_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The number of sequences of `context_tokens` tokens that fit at once."""

    context_tokens: int
    kv_cache_dtype: str
    kv_bytes_per_token: int
    users: int
    beyond_the_model: bool  # `context_tokens` exceeds the model's longest context


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The unused KV memory when sequences use only part of the reserved context, by layout."""

    used_tokens: int
    contiguous_users: int
    paged_users: int
    contiguous_waste_share: float
    paged_waste_at_most_share: float  # worst case: the last block contains one token


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """The floor of one decode step by the roofline, and its predicted time."""

    sequences: int
    context_tokens: int  # tokens that each sequence reads; 0: only the weights are read
    bytes_floor_s: float  # bytes moved ÷ peak bandwidth
    flops_floor_s: float  # FLOPs ÷ peak FLOPs per second
    flops_per_byte: float  # relative to the GPU's 16-bit peak
    binding_side: str  # memory | compute
    floor_s: float
    predicted_s: float
    fits_kv_room: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The prefill of one uncached prompt: its floor, and its time in one step and in chunks."""

    prompt_tokens: int
    bytes_floor_s: float
    flops_floor_s: float
    floor_s: float
    predicted_one_step_s: float
    predicted_chunked_s: float
    chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The output of `harness capacity`. All times are predicted, not measured."""

    model: str
    parameters: int
    longest_context_tokens: int  # longest context of the model
    gpu: str
    gpu_count: int
    tensor_parallel: int  # GPUs that share one copy; all values are for one copy
    copies: int
    quantization: str
    kv_cache_dtype: str
    context_tokens: int
    fit: Fit
    memory: Memory
    token: TokenBytes
    users: tuple[Users, ...]
    layouts: tuple[Layout, ...]
    crossover_flops_per_byte: float  # peak FLOPs per second ÷ peak bandwidth
    decode: tuple[DecodeStep, ...]
    prefill: Prefill
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFloor:
    """The shortest possible decode step: reading the weights once and the KV of every context."""

    step_s: float
    context_token_s: float  # additional seconds per token of context that a step reads


def decode_floor(settings: EngineSettings) -> DecodeFloor | None:
    """Return the floor of any engine's decode steps; None for unknown models or hardware.

    The floor is for few sequences, where memory bandwidth is the limit.
    """
    try:
        timer = StepTime(deployment(settings))
    except EngineError:  # a model, a GPU or a setting without step times
        return None
    step_s, _ = timer.roof_sides_s(1, 1, 0, ())
    longer_s, _ = timer.roof_sides_s(1, 1, _FLOOR_CONTEXT_TOKENS, ())
    slope_s = (longer_s - step_s) / _FLOOR_CONTEXT_TOKENS
    return DecodeFloor(step_s=step_s, context_token_s=slope_s)


def capacity_of(settings: EngineSettings) -> Capacity:
    """Return the capacity at contexts of `max_model_len`, and the floors of step times.

    A model that does not fit is reported, not refused. Raises `EngineError` for an unknown model or
    GPU, and when the GPUs cannot share the model.
    """
    built, limits = deployment(settings), memory_limits(settings)
    context = limits.max_model_len
    kv, timer = unchecked_kv_capacity(built, limits), StepTime(built)
    if settings.gpu_count % built.tensor_parallel:
        error = EngineError(
            f"{settings.gpu_count} GPUs cannot be divided into groups of tensor_parallel "
            f"{built.tensor_parallel}"
        )
        error.add_note("set tensor_parallel to a divisor of the number of GPUs")
        error.about = "tensor_parallel"
        raise error
    peaks = built.gpu.flops_per_s, built.gpu.bandwidth_bytes_per_s
    return Capacity(
        model=built.model.name,
        parameters=built.model.parameters,
        longest_context_tokens=built.model.max_position,
        gpu=built.gpu.name,
        gpu_count=settings.gpu_count,
        tensor_parallel=built.tensor_parallel,
        copies=settings.gpu_count // built.tensor_parallel,
        quantization=built.quantization,
        kv_cache_dtype=built.kv_cache_dtype,
        context_tokens=context,
        fit=_fit(built, limits),
        memory=_memory(built, limits, kv),
        token=_token(built),
        users=tuple(_users(built, limits)),
        layouts=tuple(_layouts(kv, context)),
        crossover_flops_per_byte=peaks[0] / peaks[1],
        decode=tuple(_decode(timer, peaks, kv, context)),
        prefill=_prefill(timer, context, settings.max_batched_tokens),
        assumptions=timer.assumptions(),
    )


def _fit(built: Deployment, limits: MemoryLimits) -> Fit:
    try:
        kv_capacity(built, limits)
    except EngineError as error:
        notes = tuple(getattr(error, "__notes__", ()))
        return Fit(fits=False, why_not=str(error), remedies=(*notes, *_larger_gpus(built, limits)))
    return Fit(fits=True)


def _larger_gpus(built: Deployment, limits: MemoryLimits) -> tuple[str, ...]:
    """Return the GPU types with enough memory at the same number of GPUs, smallest first."""
    by_memory = sorted(all_gpus(), key=lambda gpu: gpu.memory_bytes)
    fitting = []
    for gpu in by_memory:
        try:
            kv_capacity(replace(built, gpu=gpu), limits)
        except EngineError:  # also too small, or without FP8 arithmetic
            continue
        fitting.append(f"{built.tensor_parallel} x {gpu.name}")
    return (f"GPUs with enough memory: {', '.join(fitting)}",) if fitting else ()


def _memory(built: Deployment, limits: MemoryLimits, kv: KvCapacity) -> Memory:
    memory_bytes = built.gpu.memory_bytes
    return Memory(
        memory_bytes_per_gpu=memory_bytes,
        usable_bytes_per_gpu=round(usable_bytes(built, limits)),
        weights_bytes=weight_bytes(built.model, built.quantization),
        weights_bytes_per_gpu=kv.weights_bytes,
        reserve_bytes_per_gpu=kv.reserve_bytes,
        reserved_step_tokens=limits.max_batched_tokens,
        reserved_sequences=limits.max_num_seqs,
        kv_room_bytes=kv.free_bytes * built.tensor_parallel,
        kv_room_bytes_per_gpu=kv.free_bytes,
        kv_room_tokens=kv.tokens,
        block_tokens=kv.block_size,
    )


def _token(built: Deployment) -> TokenBytes:
    model, dtype = built.model, built.kv_cache_dtype
    own = kv_bytes_per_token(model, dtype)
    ungrouped = kv_bytes_per_token(replace(model, kv_heads=model.heads), dtype)
    return TokenBytes(
        kv_bytes_per_token=own,
        kv_bytes_per_token_per_gpu=kv_bytes_per_token(model, dtype, built.tensor_parallel),
        heads=model.heads,
        kv_heads=model.kv_heads,
        all_heads_kv_bytes_per_token=ungrouped,
        grouped_heads_saving_ratio=ungrouped / own,
    )


def _users(built: Deployment, limits: MemoryLimits) -> Iterator[Users]:
    """Yield the number of sequences that fit for each context and each KV cache dtype.

    Only the KV cache changes; weights and reserve stay the same.
    """
    dtypes = tuple(dict.fromkeys((*CACHE_DTYPES, built.kv_cache_dtype)))
    by_dtype = {
        one: unchecked_kv_capacity(replace(built, kv_cache_dtype=one), limits) for one in dtypes
    }
    for context in sorted({*CONTEXTS_TOKENS, limits.max_model_len}):
        for dtype, kv in by_dtype.items():
            yield Users(
                context_tokens=context,
                kv_cache_dtype=dtype,
                kv_bytes_per_token=kv_bytes_per_token(built.model, dtype),
                users=_sequences(kv, context, context),
                beyond_the_model=context > built.model.max_position,
            )


def _sequences(kv: KvCapacity, tokens: int, reserved_tokens: int) -> int:
    """Return how many sequences of `tokens` tokens fit in the KV blocks."""
    return kv.blocks // _pool(kv, reserved_tokens).blocks_for(tokens)


def _pool(kv: KvCapacity, context_tokens: int) -> EngineConfig:
    """Return an engine configuration that counts the blocks of `kv`."""
    return EngineConfig(
        num_blocks=kv.blocks, block_size=kv.block_size, max_model_len=context_tokens
    )


def _layouts(kv: KvCapacity, context: int) -> Iterator[Layout]:
    pool, size = _pool(kv, context), kv.block_size
    reserved = pool.blocks_for(context) * size
    for used in dict.fromkeys(max(1, round(context * share)) for share in _USED_SHARES):
        yield Layout(
            used_tokens=used,
            contiguous_users=_sequences(kv, context, context),
            paged_users=_sequences(kv, used, context),
            contiguous_waste_share=1 - used / reserved,
            paged_waste_at_most_share=(size - 1) / (pool.blocks_for(used) * size),
        )


def _decode(
    timer: StepTime, peaks: tuple[float, float], kv: KvCapacity, context: int
) -> Iterator[DecodeStep]:
    """Yield decode steps for each batch size, first without context, then with full context."""
    for each in (0, context):
        for batch in BATCHES:
            read = batch * each
            sides = timer.roof_sides_s(batch, 1, read, ())
            yield DecodeStep(
                sequences=batch,
                context_tokens=each,
                bytes_floor_s=sides[0],
                flops_floor_s=sides[1],
                flops_per_byte=sides[1] * peaks[0] / (sides[0] * peaks[1]),
                binding_side="compute" if sides[1] > sides[0] else "memory",
                floor_s=timer.roof_s(batch, 1, read, ()),
                predicted_s=timer.step_s(batch, 1, read + batch, (), batch),
                fits_kv_room=batch <= _sequences(kv, max(1, each), max(1, each)),
            )


def _prefill(timer: StepTime, prompt: int, chunk: int) -> Prefill:
    whole = [(prompt, 0)]
    bytes_s, flops_s = timer.roof_sides_s(0, 1, 0, whole)
    return Prefill(
        prompt_tokens=prompt,
        bytes_floor_s=bytes_s,
        flops_floor_s=flops_s,
        floor_s=timer.roof_s(0, 1, 0, whole),
        predicted_one_step_s=timer.step_s(0, 1, 0, whole, 1),
        predicted_chunked_s=sum(_chunk_times_s(timer, prompt, chunk)),
        chunk_tokens=chunk,
    )


def _chunk_times_s(timer: StepTime, prompt: int, chunk: int) -> Iterator[float]:
    for earlier in range(0, prompt, chunk):
        part: Sequence[tuple[int, int]] = [(min(chunk, prompt - earlier), earlier)]
        last = earlier + chunk >= prompt
        yield timer.step_s(0, 1, 0, part, 1 if last else 0)
