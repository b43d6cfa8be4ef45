"""The step-time model: the seconds of an engine step from the bytes and FLOPs of its kernels.

A step is the sum of the forward passes of target and drafter, host time and kernel launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from harness.adapters.embedded.step_time import calibration as measured
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.forward import ForwardPass
from harness.adapters.embedded.step_time.memory import RESERVE_ASSUMPTION, kv_bytes_per_token

_MIXED_STEPS = 4096  # size of the cache of mixed-step times
_Chunks = Sequence[tuple[int, int]]  # (new prompt tokens, tokens of the prompt cached before them)


class StepTime:
    """The seconds of any step of a deployment.

    A step feeds `queries` tokens of each decoding sequence (1, or k + 1 to verify k draft tokens,
    including the runs of the drafter) and chunks of prompts. Reading the KV of decoding sequences
    never overlaps with host time. A step is therefore exactly linear in its context, and many steps
    can be timed at once.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._target = ForwardPass(
            deployment,
            deployment.model,
            tensor_parallel=deployment.tensor_parallel,
            weights=deployment.quantization,
        )
        self._drafter: ForwardPass | None = None
        if drafter := deployment.drafter:
            self._drafter = ForwardPass(
                deployment,
                drafter,
                tensor_parallel=deployment.drafter_parallel,
                input_parameters=deployment.drafter_input_parameters,
            )
        self._mixed_line = lru_cache(maxsize=_MIXED_STEPS)(self._line)  # equal steps are frequent
        self._lines: dict[tuple[int, int], tuple[float, float]] = {}

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token of context) of a step that only decodes.

        The context is the number of tokens that all sequences read, including their new tokens.
        """
        known = self._lines.get((sequences, queries))
        if known is None:
            known = self._line(sequences, queries, (), sequences * queries)
            self._lines[sequences, queries] = known
        return known

    def step_s(
        self,
        sequences: int,
        queries: int,
        context_tokens: int,
        chunks: _Chunks,
        sampled: int,
    ) -> float:
        """Return the seconds of a step that decodes and computes `chunks`.

        `context_tokens` is the number of tokens that the decoding sequences read. A chunk is (new
        prompt tokens, earlier tokens in the KV). `sampled` is the number of tokens in the LM head:
        all decoded tokens and one per completed prompt.
        """
        if chunks:
            fixed_s, slope_s = self._mixed_line(sequences, queries, tuple(chunks), sampled)
        else:
            fixed_s, slope_s = self.decode_line(sequences, queries)
        return fixed_s + slope_s * context_tokens

    def swap_s(self, tokens: int) -> float:
        """Return the seconds to copy the KV of `tokens` tokens to host memory, or back.

        All GPUs copy at the same time, each over its own link. No step runs during the copy.
        """
        deployment = self._deployment
        gpus, dtype = deployment.tensor_parallel, deployment.kv_cache_dtype
        token_bytes = kv_bytes_per_token(deployment.model, dtype, gpus)
        if drafter := deployment.drafter:
            token_bytes += kv_bytes_per_token(drafter, dtype, deployment.drafter_parallel)
        rate = deployment.gpu.host_bytes_per_s * measured.HOST_LINK_SHARE
        return measured.SWAP_START_S + tokens * token_bytes / rate

    def roof_s(self, sequences: int, queries: int, context_tokens: int, chunks: _Chunks) -> float:
        """Return the roofline floor of the target model's part of a step, in seconds.

        The floor is the longer of bytes ÷ peak bandwidth (weights once, KV read and written) and
        FLOPs ÷ peak. It excludes the drafter and the LM head of completed prompts.
        """
        return max(self.roof_sides_s(sequences, queries, context_tokens, chunks))

    def roof_sides_s(
        self, sequences: int, queries: int, context_tokens: int, chunks: _Chunks
    ) -> tuple[float, float]:
        """Return both sides of the roofline: seconds of the bytes, seconds of the FLOPs."""
        decoding = sequences * queries
        tokens = decoding + sum(new for new, _ in chunks)
        return self._target.roof_sides_s(tokens, decoding, (queries, context_tokens), chunks)

    def assumptions(self) -> tuple[str, ...]:
        """Return the basis and the assumptions of these times, as sentences for the report."""
        deployment, topics = self._deployment, measured.ASSUMPTIONS
        host = "vllm-2024" if deployment.software == "vllm-2024" else "host"
        quantized = deployment.quantization in measured.WEIGHT_ONLY_SHARE
        narrow = deployment.kv_cache_dtype in measured.NARROW_CACHE_SHARE
        return (
            f"step times of {deployment.gpu.name}: {deployment.gpu.basis}",
            *(topics[topic] for topic in ("elementwise", host, "launch")),
            *([topics["overlap"]] if deployment.overlap else []),
            *([topics["experts"]] if deployment.model.experts else []),
            *([topics["weight-only"]] if quantized else []),
            *([topics["narrow-cache"]] if narrow else []),
            *([topics["ngram"]] if deployment.speculative == "ngram" else []),
            *([topics["drafter"]] if self._drafter else []),
            *([topics["verify"]] if deployment.speculative != "off" else []),
            RESERVE_ASSUMPTION,
        )

    def _line(
        self, sequences: int, queries: int, chunks: _Chunks, sampled: int
    ) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token of decoding context) of any step."""
        prompt_tokens = sum(new for new, _ in chunks)
        gpu_s = self._target.dense_s(sequences * queries + prompt_tokens)
        gpu_s += self._target.head_s(sampled)
        slope_s = 0.0
        if sequences:
            start_s, slope_s = self._target.decode_attention(sequences, queries)
            gpu_s += start_s
        if chunks:
            gpu_s += self._target.prefill_attention_s(chunks)
        draft_s, draft_slope_s = self._drafting(sequences, queries - 1, chunks, prompt_tokens)
        launch_s, pauses_s = self._launches(queries - 1, replayed=not chunks)
        busy_s = self._with_host(
            gpu_s + draft_s + pauses_s,
            self._host_s(sequences + len(chunks)),
            launch_s,
        )
        return busy_s + self._verify_s(sequences, queries - 1), slope_s + draft_slope_s

    def _drafting(
        self, sequences: int, runs: int, chunks: _Chunks, prompt_tokens: int
    ) -> tuple[float, float]:
        """Return (fixed seconds, seconds per token of context) of the drafter's part of a step.

        The drafter computes the prompts like the target. It runs once per draft token of a chain,
        or once per level of a tree, with all nodes of the previous level together.
        """
        drafter, branches = self._drafter, self._deployment.draft_branches
        if drafter is None:
            return 0.0, 0.0
        draft_s = slope_s = 0.0
        if chunks:
            draft_s += drafter.dense_s(prompt_tokens) + drafter.prefill_attention_s(chunks)
        if sequences and runs:
            levels = self._runs(runs)
            for level in range(levels):
                width = branches**level
                start_s, run_slope_s = drafter.decode_attention(sequences, width)
                nodes = sequences * width
                draft_s += drafter.dense_s(nodes) + start_s + drafter.head_s(nodes)
                slope_s += run_slope_s
            draft_s += levels * measured.DRAFT_RUN_S
        return draft_s, slope_s

    def _runs(self, draft_tokens: int) -> int:
        """Return the number of drafter runs for `draft_tokens` draft tokens."""
        return min(draft_tokens, self._deployment.draft_depth or draft_tokens)

    def _launches(self, runs: int, *, replayed: bool) -> tuple[float, float]:
        """Return (host seconds, GPU seconds) for launching kernels separately.

        Both are 0 for a step that a CUDA graph replays: CUDA graphs are on and the step only
        decodes.
        """
        graphs = self._deployment.cuda_graphs
        if replayed and graphs:
            return 0.0, 0.0
        kernel_s = measured.COMPILED_LAUNCH_S if graphs else measured.LAUNCH_S
        launch_s, pauses_s = self._target.launch_s(kernel_s), self._target.pauses_s
        if self._drafter:
            passes = max(1, self._runs(runs))
            launch_s += self._drafter.launch_s(kernel_s) * passes
            pauses_s += self._drafter.pauses_s * passes
        return launch_s, pauses_s

    def _verify_s(self, sequences: int, runs: int) -> float:
        """Return the seconds of verification and lookup, which the next step must wait for."""
        if not sequences or not runs:
            return 0.0
        if self._deployment.speculative == "ngram":
            lookup_s = measured.NGRAM_STEP_S + measured.NGRAM_SEQUENCE_S * sequences
            return measured.VERIFY_S + lookup_s
        return measured.VERIFY_S

    def _host_s(self, sequences: int) -> float:
        """Return the host seconds of a step with `sequences` sequences, including prompts."""
        if self._deployment.software != "vllm-2024":
            return measured.HOST_STEP_S + measured.HOST_SEQUENCE_S * sequences
        workers = self._deployment.tensor_parallel > 1
        step_s = measured.VLLM_2024_STEP_S + workers * measured.VLLM_2024_WORKERS_S
        return step_s + measured.VLLM_2024_SEQUENCE_S * sequences

    def _with_host(self, gpu_s: float, host_s: float, launch_s: float) -> float:
        """Return the seconds of a step from its GPU time, host time and launch time.

        Kernel launches run ahead of the GPU. Overlapped scheduling prepares the next step during
        GPU work; without it the GPU waits for the host between steps.
        """
        if self._deployment.overlap:
            return max(gpu_s, host_s + launch_s) + measured.OVERLAP_REST_S
        return host_s + max(gpu_s, launch_s)
