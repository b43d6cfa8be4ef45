"""The embedded engine as the stand-in for TensorRT-LLM runs it, with a record of each step."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import engine_config, step_time
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.scheduler import ScheduledStep
from harness.adapters.embedded.engine.sequence import Sequence

MODEL, GPU = "qwen2.5-0.5b", "h200"
METHODS = {"NGram": "ngram", "DraftTarget": "eagle", "Draft_Target": "eagle", "Eagle3": "eagle3"}


class CountingCore(EngineCore):
    """The embedded core, which also keeps a record of each step as TensorRT-LLM words it."""

    def __init__(self, settings: EngineSettings, loses: bool) -> None:
        super().__init__(engine_config(settings), step_time(settings))
        self.told: deque[tuple[int, dict[str, Any]]] = deque()  # (when it ends, record)
        self.most_told: int | None = None
        self.submitted = 0
        self._new = self._iteration = 0
        self._shape = (0, 0, 0)  # prompts, sequences past theirs, prompt tokens
        self._loses = loses

    def submit(self, *asked: Any, **options: Any) -> Sequence:
        self._new += 1
        self.submitted += 1
        return super().submit(*asked, **options)

    def advance(
        self, now_ns: int, horizon_ns: int | None = None, max_steps: int | None = None
    ) -> tuple[int, list[Sequence]]:
        active = len(self.scheduler.waiting) + self.scheduler.running
        before = self.counters()
        end_ns, finished = super().advance(now_ns, horizon_ns, max_steps)
        after = self.counters()
        drafts: dict[str, int] | None = None
        if self.config.speculation is not None:
            names = ("drafted_tokens", "accepted_tokens", "verify_steps")
            moved = [getattr(after, name) - getattr(before, name) for name in names]
            keys = ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
            drafts = dict(zip(keys, moved, strict=True))
        self._iteration += 1
        parts, past, tokens = self._shape
        size, cached = self.config.block_size, after.cached_prompt_tokens or 0
        record = {
            "iter": self._iteration,
            "numActiveRequests": active,
            "numNewActiveRequests": self._new,
            "numCompletedRequests": len(finished),
            "numQueuedRequests": 0,
            "kvCacheStats": {
                "maxNumBlocks": self.config.num_blocks,
                "tokensPerBlock": size,
                "reusedBlocks": cached // size,
                "missedBlocks": -(-((after.prompt_tokens or 0) - cached) // size),
            },
            "inflightBatchingStats": {
                "numScheduledRequests": parts + past,
                "numContextRequests": parts,
                "numGenRequests": past,
                "numPausedRequests": (after.preemptions or 0) - (before.preemptions or 0),
                "numCtxTokens": tokens,
                "avgNumDecodedTokensPerIter": 0,
            },
            "specDecodingStats": drafts,
            "staticBatchingStats": {},
        }
        self._new = 0
        if not (self._loses and 10 <= self._iteration % 100 <= 30):
            self.told.append((end_ns, record))
            if self.most_told is not None and len(self.told) > self.most_told:
                self.told.popleft()
        return end_ns, finished

    def take(self) -> list[dict[str, Any]]:
        """Return the records of the steps that have ended, each once."""
        taken = []
        while self.told and self.told[0][0] <= time.monotonic_ns():
            taken.append(self.told.popleft()[1])
        return taken

    def _run_step(self, step: ScheduledStep, now_ns: int) -> int:
        past = len(self.scheduler.decoding) if step.decode else 0
        self._shape = (len(step.chunks), past, sum(tokens for _, tokens in step.chunks))
        return super()._run_step(step, now_ns)

    def _run_decodes(
        self, now_ns: int, horizon_ns: int | None, max_steps: int | None
    ) -> tuple[int, int]:
        self._shape = (0, len(self.scheduler.decoding), 0)
        return super()._run_decodes(now_ns, horizon_ns, max_steps)


def embedded_settings(arguments: dict[str, Any], faults: dict[str, str]) -> EngineSettings:
    """Return what the embedded engine must be to do what the arguments say."""
    kv, speculation = arguments["kv_cache_config"], arguments["speculative_config"]
    reuse = kv["enable_block_reuse"] and arguments["attn_backend"] != "FLASHINFER"
    reuse = (reuse and "deaf-to-on" not in faults) or (not reuse and "deaf-to-off" in faults)
    kv["enable_block_reuse"] = kv["enable_block_reuse"] if "lies" in faults else reuse
    static = arguments["scheduler_config"]["capacity_scheduler_policy"] == "STATIC_BATCH"
    method = METHODS[speculation["decoding_type"]] if speculation else "off"
    tokens = (("tokens", speculation["max_draft_len"]),) if speculation else ()
    switches = {
        "prefix_caching": reuse,
        "chunked_prefill": arguments["enable_chunked_prefill"],
        "cuda_graphs": arguments["cuda_graph_config"] is not None,
        "overlap_scheduling": not arguments["disable_overlap_scheduler"],
    }
    toggles = {
        **BASELINE,
        **{name: ToggleValue("on" if value else "off") for name, value in switches.items()},
        "batching": ToggleValue("static" if static else "continuous"),
        "speculative": ToggleValue(method, tokens),
        "block_size": ToggleValue(str(kv["tokens_per_block"])),
        "kv_cache_dtype": ToggleValue(kv["dtype"]),
        "tensor_parallel": ToggleValue("1"),
    }
    return EngineSettings(
        model=MODEL,
        gpu=GPU,
        gpu_count=1,
        max_model_len=arguments["max_seq_len"] or 32768,
        max_num_seqs=arguments["max_batch_size"],
        max_batched_tokens=arguments["max_num_tokens"],
        memory_utilization=kv["free_gpu_memory_fraction"],
        toggles=toggles,
    )
