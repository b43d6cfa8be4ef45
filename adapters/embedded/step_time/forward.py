"""The time of one forward pass: weights, attention, all-reduce and LM head, and its roofline.

Every part costs at least its bytes ÷ peak bandwidth and its FLOPs ÷ peak FLOPs per second, so the
sum is never faster than the roofline.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.adapters.embedded.step_time import calibration as measured
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.memory import (
    kv_bytes_per_token,
    kv_heads_per_gpu,
    weight_width_bytes,
)
from harness.adapters.embedded.step_time.model_shape import Experts, ModelShape

_WIDE = 2  # bytes of a BF16 or FP16 number
_PRODUCTS = 4  # per layer: QKV, output, gate and up, down
_EXPERT_PRODUCTS = 3  # additional with experts: router, sorting the tokens, and sorting them back


class ForwardPass:
    """The seconds of forward passes of `model` on `tensor_parallel` GPUs.

    `weights` is the quantization of the layers; LM head and activations are 16 bit.
    `input_parameters` is the number of weights of a product before the first layer (EAGLE). All
    sizes and times are for one GPU and all layers.
    """

    def __init__(
        self,
        deployment: Deployment,
        model: ModelShape,
        *,
        tensor_parallel: int,
        weights: str = "none",
        input_parameters: int = 0,
    ) -> None:
        gpu, kv_dtype = deployment.gpu, deployment.kv_cache_dtype
        self._model, self._gpus = model, tensor_parallel
        self._bandwidth, self._peak = gpu.bandwidth_bytes_per_s, gpu.flops_per_s
        fp8_peak = gpu.fp8_flops_per_s if weights == "fp8" else None
        self._layer_peak = fp8_peak or gpu.flops_per_s
        self._gpu, self._software = gpu, deployment.software
        hopper = gpu.hopper
        self._flops_share = (
            measured.HOPPER_GEMM_FLOPS_SHARE if hopper else measured.GEMM_FLOPS_SHARE
        )
        self._layer_share = measured.WEIGHT_ONLY_SHARE.get(weights, 1.0)
        self._cache_share = measured.NARROW_CACHE_SHARE.get(kv_dtype, 1.0)
        # `common`: weights that every token uses. `expert`: weights of one expert in each layer.
        bytes_each = weight_width_bytes(weights)
        common = model.layers * model.common_parameters
        common_bytes = common * bytes_each + input_parameters * _WIDE
        self._common_bytes = common_bytes / tensor_parallel
        self._common_flops = 2 * (common + input_parameters) / tensor_parallel
        self._expert_bytes = model.layers * model.expert_parameters * bytes_each / tensor_parallel
        self._expert_flops = 2 * model.layers * model.expert_parameters / tensor_parallel
        self._head_parameters = model.vocabulary * model.hidden / tensor_parallel
        self._kv_heads = kv_heads_per_gpu(model, tensor_parallel)
        self._token_kv_bytes = kv_bytes_per_token(model, kv_dtype, tensor_parallel)
        self._heads = model.heads / tensor_parallel
        # One query and one token of context: two products in each head of each layer.
        self._pair_flops = 4 * model.layers * self._heads * model.head_dim
        self._elementwise_bytes = _elementwise_bytes(model, tensor_parallel) + self._token_kv_bytes
        self._link_ratio = measured.ALL_REDUCE_LINK_BYTES_PER_S / gpu.link_bytes_per_s
        self._link_ratio *= measured.ALL_REDUCE_NVLS if hopper else 1.0
        self._dense: dict[int, float] = {}

    def launch_s(self, kernel_s: float) -> float:
        """Return the host seconds to launch all kernels of a pass, at `kernel_s` per kernel."""
        layer_s = measured.LAYER_KERNELS * kernel_s
        if self._gpus > 1:
            layer_s += 2 * measured.ALL_REDUCE_LAUNCH_S
        return self._model.layers * layer_s

    @property
    def pauses_s(self) -> float:
        """GPU seconds of pauses between the kernels of a pass without a CUDA graph."""
        return self._model.layers * measured.LAYER_KERNELS * measured.KERNEL_PAUSE_S

    def dense_s(self, tokens: int) -> float:
        """Return the seconds of `tokens` tokens without attention and LM head.

        One product processes all tokens of a step, both prompt tokens and decoded tokens.
        """
        known = self._dense.get(tokens)
        if known is None:
            known = self._dense[tokens] = self._products_s(tokens) + self._between_s(tokens)
        return known

    def decode_attention(self, sequences: int, queries: int) -> tuple[float, float]:
        """Return (seconds before any KV is read, seconds per token of context)."""
        parallel = sequences * self._kv_heads
        share = measured.DECODE_ATTENTION_BANDWIDTH_SHARE(parallel)
        asynchronous = self._gpu.hopper and self._software == "current"  # FlashAttention 3
        rate = self._streamed_per_s(share, asynchronous=asynchronous) * self._cache_share
        compute_s = queries * self._pair_flops / self._peak / measured.PREFILL_ATTENTION_FLOPS_SHARE
        start_s = measured.DECODE_ATTENTION_START_S(parallel)
        if self._model.heads == self._model.kv_heads:
            start_s -= measured.UNGROUPED_START_S
        slope_s = max(self._token_kv_bytes / rate, compute_s)
        if self._software in measured.GROUPS_READ_TOGETHER:
            slope_s = max(slope_s, self._one_block_s(sequences))
        return self._model.layers * start_s, slope_s

    def _one_block_s(self, sequences: int) -> float:
        """Return the minimum seconds per token of context of TensorRT-LLM's 2023/2024 kernels."""
        gpu, group = self._gpu, self._model.heads // self._model.kv_heads
        token_s = measured.ONE_BLOCK_TOKEN_S * measured.ONE_BLOCK_HZ / gpu.clock_hz
        line_s = self._model.layers * token_s / max(1, sequences)
        if group in measured.GROUPS_READ_TOGETHER[self._software]:
            return line_s
        faster = gpu.multiprocessors * gpu.clock_hz / measured.SHARE_MULTIPROCESSORS_HZ
        wide_bytes = kv_bytes_per_token(self._model, "auto", self._gpus)  # 8 bit is no faster
        return max(line_s, group * wide_bytes / (measured.L2_BYTES_PER_S * faster))

    def prefill_attention_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of attention for chunks of (new, earlier) prompt tokens.

        Each multiprocessor processes a tile of one head's new tokens. Few new tokens leave
        multiprocessors idle, even with a long context.
        """
        extra, tile = measured.PREFILL_ATTENTION_EXTRA_PAIRS, measured.PREFILL_TILE_TOKENS
        pairs = context = rows = 0
        for new, earlier in chunks:
            pairs += new * (earlier + extra) + new * (new + 1) // 2
            context += earlier + new
            rows += max(new, tile)
        busy = min(1.0, rows / tile * self._heads / self._gpu.multiprocessors)
        peak = self._peak * measured.PREFILL_ATTENTION_FLOPS_SHARE * busy
        read_s = context * self._token_kv_bytes / (self._bandwidth * self._cache_share)
        start_s = self._model.layers * measured.PREFILL_ATTENTION_START_S
        return start_s + max(read_s, pairs * self._pair_flops / peak)

    def head_s(self, rows: int) -> float:
        """Return the seconds of LM head and sampling for `rows` tokens; 0 for 0 tokens."""
        if not rows:
            return 0.0
        compute_s = rows * 2 * self._head_parameters / self._peak
        logits = rows * self._model.vocabulary
        gather_s = self._all_reduce_s(logits * _WIDE / self._gpus)
        sample_s = logits * measured.SAMPLING_BYTES_PER_LOGIT / self._bandwidth
        start_s = measured.GEMM_START_S + measured.SAMPLING_START_S
        head_s = self._product_s(rows, self._head_parameters * _WIDE, compute_s)
        return start_s + head_s + gather_s + sample_s

    def roof_sides_s(
        self,
        tokens: int,
        rows: int,
        decode: tuple[int, int],
        chunks: Sequence[tuple[int, int]],
    ) -> tuple[float, float]:
        """Return (bytes ÷ peak bandwidth, FLOPs ÷ peak FLOPs per second) of a step, in seconds.

        The layers process `tokens` tokens and the LM head `rows` tokens. `decode` is (queries per
        sequence, tokens of context); `chunks` are (new, earlier) prompt tokens.
        """
        queries, context = decode
        pairs, read = queries * context, context
        for new, earlier in chunks:
            pairs += new * earlier + new * (new + 1) // 2
            read += earlier
        head = self._head_parameters if rows else 0.0
        experts = self._model.experts
        weights_bytes = self._common_bytes
        weights_bytes += experts.touched(tokens) * self._expert_bytes if experts else 0.0
        moved_bytes = weights_bytes + head * _WIDE + (read + tokens) * self._token_kv_bytes
        per_token = experts.per_token if experts else 0
        token_flops = self._common_flops + per_token * self._expert_flops
        compute_s = tokens * token_flops / self._layer_peak
        compute_s += (rows * 2 * head + pairs * self._pair_flops) / self._peak
        return moved_bytes / self._bandwidth, compute_s

    def _products_s(self, tokens: int) -> float:
        """Return the seconds of all layers' matrix products."""
        experts = self._model.experts
        compute_s = tokens * self._common_flops / self._layer_peak
        products_s = self._product_s(tokens, self._common_bytes, compute_s)
        products_s += self._experts_s(experts, tokens) if experts else 0.0
        products = _PRODUCTS + (_EXPERT_PRODUCTS if experts else 0)
        starts_s = self._model.layers * products * measured.GEMM_START_S
        return starts_s + products_s / self._layer_share

    def _experts_s(self, experts: Experts, tokens: int) -> float:
        """Return the seconds of the products of all needed experts.

        The number of tokens per expert determines the efficiency of each product.
        """
        if not tokens:
            return 0.0
        touched = experts.touched(tokens)
        routed = tokens * experts.per_token
        compute_s = routed * self._expert_flops / self._layer_peak
        rows = max(1.0, routed / touched)
        return self._product_s(rows, touched * self._expert_bytes, compute_s)

    def _between_s(self, tokens: int) -> float:
        """Return the seconds of the elementwise kernels and all-reduces between the products."""
        starts_s = measured.ELEMENTWISE_KERNELS * measured.ELEMENTWISE_START_S
        moved_s = tokens * self._elementwise_bytes / self._bandwidth
        reduce_s = 2 * self._all_reduce_s(tokens * self._model.hidden * _WIDE)
        layers_s = self._model.layers * (starts_s + reduce_s)
        return layers_s + moved_s / measured.ELEMENTWISE_BANDWIDTH_SHARE

    def _all_reduce_s(self, message_bytes: float) -> float:
        """Return the seconds of one all-reduce. Only the part above the latency scales with links.

        The latency is the time of an empty message.
        """
        if self._gpus == 1:
            return 0.0
        curve = measured.ALL_REDUCE_S[self._gpus]
        early = self._software in measured.GROUPS_READ_TOGETHER
        if early and message_bytes < measured.NCCL_BELOW_BYTES:
            curve = measured.NCCL_S[self._gpus]
        latency_s = curve(0)
        return latency_s + (curve(message_bytes) - latency_s) * self._link_ratio

    def _product_s(self, rows: float, weight_bytes: float, compute_s: float) -> float:
        """Return the seconds of a product with `rows` rows, `weight_bytes` and time at peak."""
        share, hopper = measured.GEMM_BANDWIDTH_SHARE(rows), self._gpu.hopper
        return max(
            weight_bytes / self._streamed_per_s(share, asynchronous=hopper),
            compute_s / self._flops_share(rows),
        )

    def _streamed_per_s(self, share: float, *, asynchronous: bool) -> float:
        """Return the bytes/s of a kernel that reaches `share` of the peak on an A100-80GB."""
        gpu = self._gpu
        there, memory = share**-4, measured.DRAM_SHARE**-4
        faster = gpu.multiprocessors * gpu.clock_hz / measured.SHARE_MULTIPROCESSORS_HZ
        faster *= measured.HOPPER_IN_FLIGHT if asynchronous else 1.0
        requested = (there - memory) * (measured.SHARE_BYTES_PER_S * faster) ** -4
        return float((requested + memory * gpu.bandwidth_bytes_per_s**-4) ** -0.25)


def _elementwise_bytes(model: ModelShape, tensor_parallel: int) -> float:
    """Return the bytes per token that all layers move between their products, on one GPU.

    Two add-and-norms read and write the activation and the residual; rotary embedding reads and
    writes queries and keys; the gated activation reads two vectors and writes one.
    """
    norms = 2 * 4 * model.hidden
    rotary = 2 * (model.heads + model.kv_heads) * model.head_dim / tensor_parallel
    gate = 3 * model.active_intermediate / tensor_parallel
    # Tokens are copied to each expert; the results of the experts are added.
    routed = 4 * model.experts.per_token * model.hidden if model.experts else 0
    return model.layers * _WIDE * (norms + rotary + gate + routed)
