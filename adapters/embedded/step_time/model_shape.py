"""The sizes of a model, and what they multiply out to: weights in all, and those one token uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The MLPs of a mixture-of-experts layer, of which a router sends each token to a few."""

    count: int
    per_token: int
    intermediate: int  # width of one expert's gated MLP
    shared_intermediate: int = 0  # width of an MLP beside them that all tokens go through

    def touched(self, tokens: int) -> float:
        """Return how many different experts `tokens` tokens need on average.

        e·(1 − (1 − k/e)^tokens): each token draws k of e experts, whatever the others drew.
        """
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a transformer with grouped-query attention and gated MLPs, one or many a layer.

    `intermediate` is the MLP's width where there are no experts.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_position: int  # longest context that the model was made for, in tokens
    experts: Experts | None = None
    tied_embeddings: bool = False  # the LM head is the embedding table
    qkv_bias: bool = False
    qk_norm: bool = False  # each head's queries and keys are normalised
    default_draft: str | None = None  # a small model with the same tokens, for speculation
    hugging_face: tuple[str, ...] = ()

    @property
    def active_intermediate(self) -> int:
        """Width of the MLPs that one token goes through."""
        if self.experts is None:
            return self.intermediate
        return self.experts.per_token * self.experts.intermediate + self.experts.shared_intermediate

    @property
    def common_parameters(self) -> int:
        """Weights of one layer's products that every token goes through.

        QKV and output, and the MLP; with experts the router and the shared MLP in its place.
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
        """Weights of one layer's matrix products, all experts included."""
        count = self.experts.count if self.experts else 0
        return self.common_parameters + count * self.expert_parameters

    @property
    def active_layer_parameters(self) -> int:
        """Weights of one layer that one token is multiplied with."""
        per_token = self.experts.per_token if self.experts else 0
        return self.common_parameters + per_token * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All weights of the model, as its authors count them."""
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        head_norms = 2 * self.head_dim if self.qk_norm else 0
        norms = self.hidden * (2 * self.layers + 1) + self.layers * head_norms
        tables = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * (self.layer_parameters + bias) + norms + tables
