"""What one embedded engine is, after every default has been filled in."""

from __future__ import annotations

from dataclasses import dataclass

from harness.adapters.embedded.engine.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The scheduler's view of an engine: sizes and switches, no hardware."""

    num_blocks: int  # KV blocks in the pool
    block_size: int = 16  # tokens a block
    max_model_len: int
    max_num_seqs: int = 256  # sequences running at most
    max_batched_tokens: int = 512  # tokens a step at most
    prefix_caching: bool = True
    chunked_prefill: bool = True
    batching: str = "continuous"  # continuous | static | none
    paged_kv: bool = True
    cuda_graphs: bool = True
    preemption: str = "recompute"  # recompute | swap: to the host's memory and back
    speculation: SpeculativeConfig | None = None

    @property
    def queries(self) -> int:
        """Tokens that a decoding sequence feeds to one step: 1, plus one for each draft token."""
        return 1 + (self.speculation.draft_tokens if self.speculation else 0)

    @property
    def running_limit(self) -> int:
        """Sequences that may run at once; every one of them decodes in every step.

        Each counts as one token of a step's budget; the draft tokens that it also feeds do not, as
        in SGLang, whose chunk bounds prompts alone.
        """
        if self.batching == "none":
            return 1
        if not self.chunked_prefill:
            return self.max_num_seqs
        return min(self.max_num_seqs, self.max_batched_tokens)

    @property
    def prefill_budget(self) -> int:
        """Prompt tokens of one step. Without chunks any prompt that is allowed must fit whole."""
        if self.chunked_prefill:
            return self.max_batched_tokens
        return max(self.max_batched_tokens, self.max_model_len)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)
