"""The only place for measured kernel times and for what is assumed: small tables, each with source.

Sources, both public:
* [ops] NVIDIA aiconfigurator 0.12.0, Apache-2.0: single operations on A100-SXM4-80GB in BF16
  (vLLM 0.14.0, SGLang 0.5.10, TensorRT-LLM 1.0.0, NCCL 2.27.3).
* [vidur] microsoft/vidur, MIT: kernel and CPU medians on A100-80GB, FP16, engines of early 2024.

What no public table gives is a named constant below, and a sentence of `ASSUMPTIONS` that reports
print beside the values that depend on it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right


class Curve:
    """Straight lines between measured points; flat before the first point.

    Beyond the last point it is flat too, or goes on as its last line does (`extend`).
    """

    __slots__ = ("_slopes", "_x", "_y")

    def __init__(self, points: tuple[tuple[float, float], ...], *, extend: bool = False) -> None:
        self._x = [x for x, _ in points]
        self._y = [y for _, y in points]
        lines = itertools.pairwise(points)
        self._slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in lines]
        self._slopes.append(self._slopes[-1] if extend else 0.0)

    def __call__(self, x: float) -> float:
        """Return the value at `x`."""
        i = bisect_right(self._x, x) - 1
        return self._y[i] + (x - self._x[i]) * self._slopes[i] if i >= 0 else self._y[0]


# --- Matrix products ---------------------------------------------------------------------------
# One product costs GEMM_START_S plus the longer of streaming its weights and its arithmetic, so
# that small ones use less of the bandwidth than large ones, as measured. Start and shares of peak
# are the mean of two fits over products of 7 to 470 MB: the three engines' [ops] tables for
# Llama-3-8B and 70B at TP 1-4, and [vidur]'s layers of Llama-2-7B and 70B at TP 1-8 (its
# Llama-3-8B is left out, for checking). Made monotone; tiles of 64, 128 and 256 rows make the
# jumps after 64, 128, 256, 512 and 768 tokens.
GEMM_START_S = 5e-6
GEMM_BANDWIDTH_SHARE = Curve(
    (
        (1, 0.77),
        (2, 0.768),
        (4, 0.765),
        (8, 0.763),
        (16, 0.75),
        (32, 0.735),
        (64, 0.733),
        (65, 0.635),
        (80, 0.625),
        (96, 0.615),
        (128, 0.60),
    )
)
GEMM_FLOPS_SHARE = Curve(
    (
        (128, 0.58),
        (129, 0.405),
        (160, 0.49),
        (192, 0.56),
        (224, 0.595),
        (256, 0.66),
        (257, 0.515),
        (384, 0.74),
        (512, 0.69),
        (513, 0.60),
        (768, 0.755),
        (769, 0.60),
        (1024, 0.745),
        (1536, 0.76),
        (2048, 0.80),
        (4096, 0.815),
        (8192, 0.82),
    )
)

# The shares are of an A100-80GB's peak. Its multiprocessors hold them down more than its memory:
# they wait for what they have requested. Another GPU streams what its multiprocessors keep on the
# way, a (as those of an A100, times number × clock), and what its memory gives, m (DRAM_SHARE of
# its peak), allow between them: (a⁻⁴ + m⁻⁴)^-¼, soft where both are near. HOPPER_IN_FLIGHT is
# what asynchronous copies add to number × clock, from [vidur]'s layers on H100.
SHARE_BYTES_PER_S = 2.039e12
SHARE_MULTIPROCESSORS_HZ = 108 * 1.41e9
DRAM_SHARE = 0.92
HOPPER_IN_FLIGHT = 2.0
# [vidur] on H100, Llama-2-7B at TP 1 and 70B at TP 1 and 4, less the starts (TP 2 and 8 are left
# out, for checking). The jumps are those of 132 multiprocessors.
HOPPER_GEMM_FLOPS_SHARE = Curve(
    (
        (128, 0.40),
        (160, 0.40),
        (192, 0.44),
        (256, 0.60),
        (257, 0.52),
        (384, 0.56),
        (512, 0.72),
        (513, 0.62),
        (768, 0.645),
        (1024, 0.69),
        (1536, 0.72),
        (2048, 0.745),
        (4096, 0.745),
    )
)

# --- Attention -----------------------------------------------------------------------------------
# Decode, a layer: (sequences × KV heads of this GPU, seconds before any KV is read) and (…, share
# of peak bandwidth while reading it). Lines fitted to [ops] vLLM, 8-64 query heads over 1-8 KV
# heads, 256-16,384 tokens of context, up to 256 sequences: 6 % mean error.
DECODE_ATTENTION_START_S = Curve(
    (
        (1, 17.3e-6),
        (4, 18.5e-6),
        (8, 19.7e-6),
        (16, 20.6e-6),
        (128, 20.6e-6),
        (256, 20.6e-6),
        (512, 26e-6),
        (1024, 37e-6),
        (4096, 65e-6),
    ),
    extend=True,
)
DECODE_ATTENTION_BANDWIDTH_SHARE = Curve(
    (
        (1, 0.14),
        (2, 0.32),
        (4, 0.51),
        (8, 0.63),
        (16, 0.70),
        (32, 0.74),
        (64, 0.745),
        (128, 0.71),
        (256, 0.64),
        (512, 0.77),
        (1024, 0.84),
        (4096, 0.87),
    )
)
# Prefill, a layer: start, share of peak once every multiprocessor has work, and what a query token
# costs beside its own pairs (partly filled tiles, softmax), as pairs. Fitted to [ops] vLLM, 8-64
# query heads, 256-16,384 tokens: 12 % mean error, highest for many short prompts of 64 heads.
PREFILL_ATTENTION_START_S = 11e-6
PREFILL_ATTENTION_FLOPS_SHARE = 0.567
PREFILL_ATTENTION_EXTRA_PAIRS = 300
PREFILL_TILE_TOKENS = 64

# Without groups of query heads the kernel need not gather them: so much of the start falls away.
UNGROUPED_START_S = 9e-6
# TensorRT-LLM of 2023 and 2024, as its build options were by default. Without multi-block mode one
# block goes through the context of a sequence and head token by token, in this time at an A100's
# clock: from batches of one of Llama-2-7B on one A100. Its kernel for grouped heads (XQA) was off
# until 0.7, and then for groups of 8 and 16; otherwise each query head reads the KV, from the L2
# cache at the rate that [ops] has for caches that fit there, numbers of 8 bit as slowly as of 16.
ONE_BLOCK_TOKEN_S = 14e-9
ONE_BLOCK_HZ = 1.41e9
GROUPS_READ_TOGETHER = {"trtllm-2023": (1,), "trtllm-2024": (1, 8, 16)}
L2_BYTES_PER_S = 3.3e12

# --- All-reduce ----------------------------------------------------------------------------------
# GPUs → (bytes, seconds). [ops]: vLLM's own kernel in a CUDA graph up to 4 MiB, NCCL above. The
# tables count 16-bit numbers, not bytes. NCCL on H100 lets the switch add up (NVLS): [vidur] has
# 0.48 to 0.54 of its A100's times there from 16 MB, where the links alone would give 0.67.
ALL_REDUCE_S = {
    2: Curve(
        (
            (256, 4.9e-6),
            (16384, 5.3e-6),
            (131072, 5.7e-6),
            (262144, 6.6e-6),
            (524288, 8.0e-6),
            (1048576, 10.7e-6),
            (2097152, 15.2e-6),
            (4194304, 25.2e-6),
            (8388608, 87.1e-6),
            (16777216, 128.2e-6),
            (33554432, 224.2e-6),
            (67108864, 391.5e-6),
            (134217728, 747.5e-6),
            (536870912, 2781e-6),
        ),
        extend=True,
    ),
    4: Curve(
        (
            (256, 5.2e-6),
            (8192, 5.5e-6),
            (32768, 6.0e-6),
            (65536, 6.6e-6),
            (131072, 7.8e-6),
            (262144, 9.9e-6),
            (524288, 14.5e-6),
            (1048576, 18.3e-6),
            (2097152, 26.0e-6),
            (4194304, 41.5e-6),
            (8388608, 111.0e-6),
            (16777216, 183.5e-6),
            (33554432, 288.0e-6),
            (67108864, 544.3e-6),
            (134217728, 1000.5e-6),
            (536870912, 3716e-6),
        ),
        extend=True,
    ),
    8: Curve(
        (
            (256, 5.7e-6),
            (8192, 6.3e-6),
            (32768, 6.9e-6),
            (65536, 8.4e-6),
            (131072, 11.4e-6),
            (262144, 17.1e-6),
            (524288, 18.9e-6),
            (1048576, 21.7e-6),
            (2097152, 27.9e-6),
            (4194304, 45.4e-6),
            (8388608, 128.0e-6),
            (16777216, 216.5e-6),
            (33554432, 367.0e-6),
            (67108864, 595.3e-6),
            (134217728, 1169e-6),
            (536870912, 4226e-6),
        ),
        extend=True,
    ),
}
# NCCL for messages that vLLM's own kernel would take [ops]. TensorRT-LLM of 2023 and 2024 is taken
# to have used it for all: its batches of 70B on 4 H100 are slower by that for each all-reduce.
NCCL_BELOW_BYTES = 8 * 2**20
NCCL_S = {
    2: Curve(
        (
            (512, 10.0e-6),
            (8192, 11.0e-6),
            (16384, 12.8e-6),
            (131072, 13.4e-6),
            (262144, 15.3e-6),
            (524288, 19.4e-6),
            (1048576, 40.8e-6),
            (2097152, 47.6e-6),
            (4194304, 55.8e-6),
            (8388608, 87.1e-6),
        )
    ),
    4: Curve(
        (
            (512, 14.2e-6),
            (8192, 14.7e-6),
            (16384, 16.3e-6),
            (32768, 17.4e-6),
            (262144, 18.1e-6),
            (524288, 22.9e-6),
            (1048576, 29.8e-6),
            (2097152, 46.2e-6),
            (4194304, 68.8e-6),
            (8388608, 111.0e-6),
        )
    ),
    8: Curve(
        (
            (512, 21.5e-6),
            (8192, 21.5e-6),
            (16384, 22.6e-6),
            (32768, 26.0e-6),
            (262144, 27.5e-6),
            (524288, 30.1e-6),
            (1048576, 38.9e-6),
            (2097152, 53.7e-6),
            (4194304, 77.3e-6),
            (8388608, 128.0e-6),
        )
    ),
}
ALL_REDUCE_LINK_BYTES_PER_S = 600e9  # the NVLink of the A100 that they were measured on
ALL_REDUCE_NVLS = 0.78
# What one all-reduce keeps the host busy without a graph: the least that vLLM's own kernel takes
# when it is launched one by one [ops].
ALL_REDUCE_LAUNCH_S = 44e-6

# --- Elementwise ---------------------------------------------------------------------------------
# Kernels of a layer: two fused add-and-norms, rotary embedding, KV write, gated activation.
# [vidur] took 24 µs a layer unfused, about 4 µs a kernel; each then also moves its bytes, at
# the share of peak that the same kernels reach there: gated activation 0.5, rotary embedding
# 0.42, adding 0.9, norms 0.35.
ELEMENTWISE_KERNELS = 5
ELEMENTWISE_START_S = 4e-6
ELEMENTWISE_BANDWIDTH_SHARE = 0.55

# --- Everything below is assumed -----------------------------------------------------------------
# Sampling: start, and bytes moved for each logit (32-bit, read three times).
SAMPLING_START_S = 60e-6
SAMPLING_BYTES_PER_LOGIT = 12
# Kernels of a layer, and the host time to launch one: from Python, near what the all-reduce above
# takes alone, which puts an 8B model without graphs at 12 ms a step on any GPU (users report 8-22
# ms for 7-8B); from compiled code in the steps of an engine with graphs that no graph holds. The
# GPU then pauses before each kernel, beyond the pause inside a graph.
LAYER_KERNELS = 12
LAUNCH_S = 30e-6
COMPILED_LAUNCH_S = 8e-6
KERNEL_PAUSE_S = 1.5e-6
# Host work of a step: [vidur] measured 1.4 ms plus 47 µs a sequence in engines of early 2024;
# current ones are taken to need a third of the part that grows.
HOST_STEP_S = 1.0e-3
HOST_SEQUENCE_S = 15e-6
# vLLM 0.2 to 0.6: scheduler, sampler and detokenizer are Python that the GPU waits for. [vidur] of
# May 2024: 0.8 ms and 47 µs a sequence on one GPU, 0.6 ms more on several, the same for 3B and 70B.
VLLM_2024_STEP_S = 0.8e-3
VLLM_2024_WORKERS_S = 0.6e-3
VLLM_2024_SEQUENCE_S = 47e-6
OVERLAP_REST_S = 0.1e-3  # what of it even an overlapping scheduler does not hide
NGRAM_STEP_S = 50e-6  # prompt lookup on the host, which the next step must wait for
NGRAM_SEQUENCE_S = 10e-6
DRAFT_RUN_S = 0.2e-3  # what stands around each run of a drafter: its inputs, its sampling
SWAP_START_S = 0.2e-3  # gathering the blocks of one copy to or from the host
HOST_LINK_SHARE = 0.8  # of PCIe's peak, for copies of whole blocks
VERIFY_S = 0.3e-3  # comparing drafts with the target's choice, and what is rejected
# Weight-only kernels widen the weights on the way: what is left of a plain product's shares.
WEIGHT_ONLY_SHARE = {"int8": 0.9, "int4": 0.8}
# Attention over a narrow cache widens it first: what is left of the bandwidth share.
NARROW_CACHE_SHARE = {"fp8": 0.85, "int8": 0.85, "int4": 0.7}
EAGLE3_VOCABULARY = 32000  # the draft head of EAGLE-3 scores only the most frequent tokens

ASSUMPTIONS = {
    "elementwise": f"a layer's {ELEMENTWISE_KERNELS} elementwise kernels take "
    f"{ELEMENTWISE_START_S * 1e6:.0f} µs each, plus their bytes",
    "host": f"the host needs {HOST_STEP_S * 1e3:g} ms a step and {HOST_SEQUENCE_S * 1e6:.0f} µs a "
    "sequence",
    "vllm-2024": f"the host of vLLM 0.2 to 0.6 needs {VLLM_2024_STEP_S * 1e3:g} ms a step, "
    f"{VLLM_2024_WORKERS_S * 1e3:g} ms more with several GPUs, and {VLLM_2024_SEQUENCE_S * 1e6:.0f}"
    " µs a sequence, while the GPU waits",
    "overlap": "overlapped scheduling hides the host's time behind the GPU's, save "
    f"{OVERLAP_REST_S * 1e3:g} ms a step",
    "launch": f"CUDA graphs replay steps that only decode; otherwise each of a layer's "
    f"{LAYER_KERNELS} kernels costs the host {COMPILED_LAUNCH_S * 1e6:.0f} µs, without CUDA graphs "
    f"{LAUNCH_S * 1e6:.0f} µs, and the GPU a pause of {KERNEL_PAUSE_S * 1e6:g} µs",
    "experts": "no kernel of experts was measured: each is taken for a product of its own tokens, "
    "and a step reads as many experts as its tokens need on average, each drawing them alike",
    "weight-only": "weight-only kernels keep "
    + " and ".join(f"{share:.0%} ({kind})" for kind, share in WEIGHT_ONLY_SHARE.items())
    + " of a 16-bit product's efficiency",
    "narrow-cache": "attention over a narrow KV cache keeps "
    + ", ".join(f"{share:.0%} ({kind})" for kind, share in NARROW_CACHE_SHARE.items())
    + " of its bandwidth",
    "ngram": f"prompt lookup takes {NGRAM_STEP_S * 1e6:.0f} µs a step and "
    f"{NGRAM_SEQUENCE_S * 1e6:.0f} µs a sequence on the host",
    "drafter": "a drafter runs once for each draft token, on the same GPUs (EAGLE's is one layer "
    f"of the target), with {DRAFT_RUN_S * 1e3:g} ms around each run",
    "swap": f"KV goes to the host's memory and back at {HOST_LINK_SHARE:.0%} of PCIe's peak, after "
    f"{SWAP_START_S * 1e3:g} ms, while no step runs; the host has room for all of it",
    "verify": f"verifying drafts adds {VERIFY_S * 1e3:g} ms to a step",
}
