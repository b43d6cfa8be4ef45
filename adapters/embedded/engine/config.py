"""The configuration of an embedded engine, with all defaults resolved."""

from __future__ import annotations

from dataclasses import dataclass

from harness.adapters.embedded.engine.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings of the scheduler: sizes and toggles, without hardware."""

    num_blocks: int  # KV blocks in the pool
    block_size: int = 16  # tokens per block
    max_model_len: int
    max_num_seqs: int = 256  # maximum number of running sequences
    max_batched_tokens: int = 512  # maximum number of tokens per step
    prefix_caching: bool = True
    chunked_prefill: bool = True
    batching: str = "continuous"  # continuous | static | none
    paged_kv: bool = True
    cuda_graphs: bool = True
    preemption: str = "recompute"  # recompute | swap (copy to host memory and back)
    speculation: SpeculativeConfig | None = None

    @property
    def queries(self) -> int:
        """Tokens that a decoding sequence feeds to one step: 1 plus the number of draft tokens."""
        return 1 + (self.speculation.draft_tokens if self.speculation else 0)

    @property
    def running_limit(self) -> int:
        """The maximum number of running sequences, all of which decode in every step.

        Each sequence counts as one token of a step's budget. Draft tokens do not count, as in
        SGLang, where the chunk size limits only prompt tokens.
        """
        if self.batching == "none":
            return 1
        if not self.chunked_prefill:
            return self.max_num_seqs
        return min(self.max_num_seqs, self.max_batched_tokens)

    @property
    def prefill_budget(self) -> int:
        """The maximum prompt tokens of one step. Without chunks it covers the longest prompt."""
        if self.chunked_prefill:
            return self.max_batched_tokens
        return max(self.max_batched_tokens, self.max_model_len)

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for `tokens` tokens; the last block may be partial."""
        return -(-tokens // self.block_size)
