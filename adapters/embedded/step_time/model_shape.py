"""The sizes of a model, and its numbers of weights in total and per token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts (MLPs) of a mixture-of-experts layer. A router selects a few for each token."""

    count: int
    per_token: int
    intermediate: int  # width of one expert's gated MLP
    shared_intermediate: int = 0  # width of the shared MLP that processes all tokens

    def touched(self, tokens: int) -> float:
        """Return the mean number of different experts that `tokens` tokens need.

        e·(1 − (1 − k/e)^tokens): each token independently draws k of e experts.
        """
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a transformer with grouped-query attention and gated MLPs, dense or MoE.

    `intermediate` is the width of the MLP in a model without experts.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_position: int  # longest context of the model, in tokens
    experts: Experts | None = None
    tied_embeddings: bool = False  # the LM head is the embedding table
    qkv_bias: bool = False
    qk_norm: bool = False  # each head's queries and keys are normalised
    default_draft: str | None = None  # small draft model with the same vocabulary
    hugging_face: tuple[str, ...] = ()

    @property
    def active_intermediate(self) -> int:
        """Total width of the MLPs that process one token."""
        if self.experts is None:
            return self.intermediate
        return self.experts.per_token * self.experts.intermediate + self.experts.shared_intermediate

    @property
    def common_parameters(self) -> int:
        """Weights of one layer that every token uses.

        QKV, output and MLP; in a model with experts the router and the shared MLP replace the MLP.
        """
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if self.experts is None:
            return attention + 3 * self.hidden * self.intermediate
        shared = self.experts.shared_intermediate
        gate = self.hidden if shared else 0  # the weight of the shared MLP's answer
        return attention + self.hidden * self.experts.count + 3 * self.hidden * shared + gate

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert of one layer; 0 without experts."""
        return 3 * self.hidden * self.experts.intermediate if self.experts else 0

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrix products, including all experts."""
        count = self.experts.count if self.experts else 0
        return self.common_parameters + count * self.expert_parameters

    @property
    def active_layer_parameters(self) -> int:
        """Weights of one layer that one token uses."""
        per_token = self.experts.per_token if self.experts else 0
        return self.common_parameters + per_token * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All weights of the model, counted as its authors do."""
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        head_norms = 2 * self.head_dim if self.qk_norm else 0
        norms = self.hidden * (2 * self.layers + 1) + self.layers * head_norms
        tables = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * (self.layer_parameters + bias) + norms + tables
