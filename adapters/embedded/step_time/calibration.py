"""Measured kernel times and assumed times, as small tables with their sources.

Sources, both public:
* [ops] NVIDIA aiconfigurator 0.12.0, Apache-2.0: single operations on A100-SXM4-80GB in BF16
  (vLLM 0.14.0, SGLang 0.5.10, TensorRT-LLM 1.0.0, NCCL 2.27.3).
* [vidur] microsoft/vidur, MIT: kernel and CPU medians on A100-80GB, FP16, engines of early 2024.

A value without a public table is an assumption: a named constant below and a sentence in
`ASSUMPTIONS`. Reports print the sentence next to the values that depend on it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right


class Curve:
    """A piecewise linear curve through measured points; constant before the first point.

    After the last point the curve is constant, or continues the last line (`extend`).
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
# One product costs GEMM_START_S plus the longer of its weight streaming and its arithmetic, so
# small products reach a lower share of the bandwidth than large ones, as measured. Start time and
# shares of peak are the mean of two fits over products of 7 to 470 MB: the three engines' [ops]
# tables for Llama-3-8B and 70B at TP 1-4, and [vidur]'s layers of Llama-2-7B and 70B at TP 1-8
# (its Llama-3-8B is not fitted but used as a check). The curves are made monotone. Tiles of 64, 128
# and 256 rows cause the jumps after 64, 128, 256, 512 and 768 tokens.
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

# The shares are relative to the peak of an A100-80GB. On that GPU the multiprocessors limit the
# share more than the memory, because they wait for requested data. On another GPU two rates limit
# streaming: a, the rate of its multiprocessors (the A100's, scaled by number × clock), and m, the
# rate of its memory (DRAM_SHARE of its peak). The result is (a⁻⁴ + m⁻⁴)^-¼, a smooth minimum.
# HOPPER_IN_FLIGHT is the gain from asynchronous copies, from [vidur]'s layers on H100.
SHARE_BYTES_PER_S = 2.039e12
SHARE_MULTIPROCESSORS_HZ = 108 * 1.41e9
DRAM_SHARE = 0.92
HOPPER_IN_FLIGHT = 2.0
# [vidur] on H100, Llama-2-7B at TP 1 and 70B at TP 1 and 4, without the start times (TP 2 and 8
# are not fitted but used as a check). The jumps come from the 132 multiprocessors.
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
# Decode, per layer: (sequences × KV heads of this GPU, seconds before any KV is read) and (…, share
# of peak bandwidth while reading KV). Lines fitted to [ops] vLLM, 8-64 query heads over 1-8 KV
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
# Prefill, per layer: start time, share of peak when every multiprocessor has work, and the extra
# cost of a query token (partly filled tiles, softmax), expressed in pairs. Fitted to [ops] vLLM,
# 8-64 query heads, 256-16,384 tokens: 12 % mean error, highest for many short prompts of 64 heads.
PREFILL_ATTENTION_START_S = 11e-6
PREFILL_ATTENTION_FLOPS_SHARE = 0.567
PREFILL_ATTENTION_EXTRA_PAIRS = 300
PREFILL_TILE_TOKENS = 64

# Without grouped query heads the kernel does not gather them; the start is shorter by this time.
UNGROUPED_START_S = 9e-6
# TensorRT-LLM of 2023 and 2024 with default build options. Without multi-block mode one thread
# block processes the context of a sequence and head token by token. ONE_BLOCK_TOKEN_S is the time
# per token at an A100's clock, from Llama-2-7B at batch size 1 on one A100. The kernel for grouped
# heads (XQA) was off until 0.7, then on for groups of 8 and 16. Without it each query head reads
# the KV from the L2 cache, at the rate that [ops] has for KV that fits there; 8-bit numbers are as
# slow as 16-bit numbers.
ONE_BLOCK_TOKEN_S = 14e-9
ONE_BLOCK_HZ = 1.41e9
GROUPS_READ_TOGETHER = {"trtllm-2023": (1,), "trtllm-2024": (1, 8, 16)}
L2_BYTES_PER_S = 3.3e12

# --- All-reduce ----------------------------------------------------------------------------------
# GPUs → (bytes, seconds). [ops]: vLLM's own kernel in a CUDA graph up to 4 MiB, NCCL above. The
# tables count 16-bit numbers, not bytes. NCCL on H100 adds inside the switch (NVLS): from 16 MB on,
# [vidur] measured 0.48 to 0.54 of its A100 times; faster links alone would give 0.67.
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
# NCCL for message sizes of vLLM's own kernel [ops]. The model assumes that TensorRT-LLM of 2023 and
# 2024 used NCCL for all messages: the difference matches its slower batches of 70B on 4 H100.
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
ALL_REDUCE_LINK_BYTES_PER_S = 600e9  # NVLink of the measured A100
ALL_REDUCE_NVLS = 0.78
# Host time to launch one all-reduce without a CUDA graph: the shortest time of vLLM's own kernel
# when it is launched separately [ops].
ALL_REDUCE_LAUNCH_S = 44e-6

# --- Elementwise ---------------------------------------------------------------------------------
# Kernels of a layer: two fused add-and-norms, rotary embedding, KV write, gated activation.
# [vidur] measured 24 µs per layer unfused, about 4 µs per kernel. In addition each kernel moves its
# bytes at the share of peak measured there: gated activation 0.5, rotary embedding 0.42, add 0.9,
# norm 0.35.
ELEMENTWISE_KERNELS = 5
ELEMENTWISE_START_S = 4e-6
ELEMENTWISE_BANDWIDTH_SHARE = 0.55

# --- Everything below is assumed -----------------------------------------------------------------
# Sampling: start, and bytes moved for each logit (32-bit, read three times).
SAMPLING_START_S = 60e-6
SAMPLING_BYTES_PER_LOGIT = 12
# Kernels of a layer, and the host time to launch one. LAUNCH_S is for launches from Python, close
# to the all-reduce launch above; it gives 12 ms per step for an 8B model without CUDA graphs on any
# GPU (users report 8-22 ms for 7-8B). COMPILED_LAUNCH_S is for steps that run outside a graph in an
# engine with CUDA graphs. KERNEL_PAUSE_S is the extra GPU pause before a kernel outside a graph.
LAYER_KERNELS = 12
LAUNCH_S = 30e-6
COMPILED_LAUNCH_S = 8e-6
KERNEL_PAUSE_S = 1.5e-6
# Host time of a step: [vidur] measured 1.4 ms plus 47 µs per sequence in engines of early 2024. The
# model assumes that current engines need a third of the time per sequence.
HOST_STEP_S = 1.0e-3
HOST_SEQUENCE_S = 15e-6
# vLLM 0.2 to 0.6: the GPU waits for scheduler, sampler and detokenizer in Python. [vidur] of May
# 2024: 0.8 ms plus 47 µs per sequence on one GPU, 0.6 ms more on several; the same for 3B and 70B.
VLLM_2024_STEP_S = 0.8e-3
VLLM_2024_WORKERS_S = 0.6e-3
VLLM_2024_SEQUENCE_S = 47e-6
OVERLAP_REST_S = 0.1e-3  # host time that overlapped scheduling does not hide
NGRAM_STEP_S = 50e-6  # prompt lookup on the host; the next step waits for it
NGRAM_SEQUENCE_S = 10e-6
DRAFT_RUN_S = 0.2e-3  # overhead of each drafter run: inputs and sampling
SWAP_START_S = 0.2e-3  # gathering the blocks of one copy to or from the host
HOST_LINK_SHARE = 0.8  # share of PCIe's peak, for copies of whole blocks
VERIFY_S = 0.3e-3  # comparing draft tokens with the target's tokens, and removing rejected ones
# Weight-only kernels convert the weights to 16 bit, which reduces the shares of a plain product.
WEIGHT_ONLY_SHARE = {"int8": 0.9, "int4": 0.8}
# Attention converts a narrow KV cache to 16 bit, which reduces the bandwidth share.
NARROW_CACHE_SHARE = {"fp8": 0.85, "int8": 0.85, "int4": 0.7}
EAGLE3_VOCABULARY = 32000  # the draft head of EAGLE-3 scores only the most frequent tokens

ASSUMPTIONS = {
    "elementwise": f"a layer's {ELEMENTWISE_KERNELS} elementwise kernels take "
    f"{ELEMENTWISE_START_S * 1e6:.0f} µs each, plus their bytes",
    "host": f"the host needs {HOST_STEP_S * 1e3:g} ms per step and {HOST_SEQUENCE_S * 1e6:.0f} µs "
    "per sequence",
    "vllm-2024": f"the host of vLLM 0.2 to 0.6 needs {VLLM_2024_STEP_S * 1e3:g} ms per step, "
    f"{VLLM_2024_WORKERS_S * 1e3:g} ms more with several GPUs, and {VLLM_2024_SEQUENCE_S * 1e6:.0f}"
    " µs per sequence, while the GPU waits",
    "overlap": "overlapped scheduling hides the host time behind the GPU time, except for "
    f"{OVERLAP_REST_S * 1e3:g} ms per step",
    "launch": f"CUDA graphs replay steps that only decode; in other steps each of the "
    f"{LAYER_KERNELS} kernels of a layer costs {COMPILED_LAUNCH_S * 1e6:.0f} µs of host time "
    f"({LAUNCH_S * 1e6:.0f} µs without CUDA graphs) and a GPU pause of {KERNEL_PAUSE_S * 1e6:g} µs",
    "experts": "no kernel of experts was measured: each expert is modelled as a matrix product "
    "over its tokens, and each token draws its experts uniformly at random",
    "weight-only": "weight-only kernels reach "
    + " and ".join(f"{share:.0%} ({kind})" for kind, share in WEIGHT_ONLY_SHARE.items())
    + " of a 16-bit product's efficiency",
    "narrow-cache": "attention over an 8-bit or 4-bit KV cache reaches "
    + ", ".join(f"{share:.0%} ({kind})" for kind, share in NARROW_CACHE_SHARE.items())
    + " of the 16-bit bandwidth",
    "ngram": f"prompt lookup takes {NGRAM_STEP_S * 1e6:.0f} µs per step and "
    f"{NGRAM_SEQUENCE_S * 1e6:.0f} µs per sequence on the host",
    "drafter": "a drafter runs once for each draft token, on the same GPUs (EAGLE's is one layer "
    f"of the target), with {DRAFT_RUN_S * 1e3:g} ms of overhead per run",
    "swap": f"KV is copied to host memory and back at {HOST_LINK_SHARE:.0%} of PCIe's peak, after "
    f"{SWAP_START_S * 1e3:g} ms, while no step runs; host memory is large enough for all of it",
    "verify": f"verifying drafts adds {VERIFY_S * 1e3:g} ms to a step",
}
