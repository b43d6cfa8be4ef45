"""The only place that knows models as numbers: shapes from the `config.json` of their authors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adapters.embedded.hardware import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a dense transformer with grouped-query attention and a gated MLP."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # width of the gated MLP
    vocabulary: int
    max_position: int  # longest context that the model was made for, in tokens
    tied_embeddings: bool = False  # the LM head is the embedding table
    qkv_bias: bool = False
    default_draft: str | None = None  # a small model with the same tokens, for speculation
    hugging_face: tuple[str, ...] = ()

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrix products: QKV, output, gate and up, down."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights of the model, as its authors count them."""
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        norms = self.hidden * (2 * self.layers + 1)
        tables = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * (self.layer_parameters + bias) + norms + tables


_LLAMA_3_8B = ModelShape(
    name="llama-3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocabulary=128256,
    max_position=8192,
    default_draft="llama-3.2-1b",
    hugging_face=("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"),
)
_LLAMA_3_70B = replace(
    _LLAMA_3_8B,
    name="llama-3-70b",
    layers=80,
    hidden=8192,
    heads=64,
    intermediate=28672,
    hugging_face=("meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct"),
)
_QWEN_72B = ModelShape(
    name="qwen2.5-72b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    intermediate=29568,
    vocabulary=152064,
    max_position=32768,
    qkv_bias=True,
    default_draft="qwen2.5-0.5b",
    hugging_face=("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"),
)

_MODELS = (
    _LLAMA_3_8B,
    _LLAMA_3_70B,
    replace(
        _LLAMA_3_8B,
        name="llama-3.1-8b",
        max_position=131072,
        hugging_face=(
            "meta-llama/Llama-3.1-8B",
            "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Meta-Llama-3.1-8B",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
        ),
    ),
    replace(
        _LLAMA_3_70B,
        name="llama-3.1-70b",
        max_position=131072,
        hugging_face=(
            "meta-llama/Llama-3.1-70B",
            "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Meta-Llama-3.1-70B",
            "meta-llama/Meta-Llama-3.1-70B-Instruct",
        ),
    ),
    replace(
        _LLAMA_3_70B,
        name="llama-3.3-70b",
        max_position=131072,
        hugging_face=("meta-llama/Llama-3.3-70B-Instruct",),
    ),
    replace(
        _LLAMA_3_70B,
        name="llama-3.1-405b",
        layers=126,
        hidden=16384,
        heads=128,
        intermediate=53248,
        max_position=131072,
        hugging_face=(
            "meta-llama/Llama-3.1-405B",
            "meta-llama/Llama-3.1-405B-Instruct",
            "meta-llama/Meta-Llama-3.1-405B",
            "meta-llama/Meta-Llama-3.1-405B-Instruct",
        ),
    ),
    replace(
        _LLAMA_3_8B,
        name="llama-3.2-1b",
        layers=16,
        hidden=2048,
        head_dim=64,
        intermediate=8192,
        max_position=131072,
        tied_embeddings=True,
        default_draft=None,
        hugging_face=("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"),
    ),
    replace(
        _LLAMA_3_70B,
        name="llama-2-70b",
        vocabulary=32000,
        max_position=4096,
        default_draft=None,
        hugging_face=("meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-70b-chat-hf"),
    ),
    replace(
        _LLAMA_3_8B,
        name="llama-2-7b",
        kv_heads=32,
        intermediate=11008,
        vocabulary=32000,
        max_position=4096,
        default_draft=None,
        hugging_face=("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"),
    ),
    replace(
        _LLAMA_3_8B,
        name="mistral-7b",
        vocabulary=32768,
        max_position=32768,
        default_draft=None,
        hugging_face=("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    ),
    _QWEN_72B,
    replace(
        _QWEN_72B,
        name="qwen2.5-7b",
        layers=28,
        hidden=3584,
        heads=28,
        kv_heads=4,
        intermediate=18944,
        hugging_face=("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
    ),
    replace(
        _QWEN_72B,
        name="qwen2.5-0.5b",
        layers=24,
        hidden=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        intermediate=4864,
        vocabulary=151936,
        tied_embeddings=True,
        default_draft=None,
        hugging_face=("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"),
    ),
)

# Any spelling a user may give, in lower case → its row: the short name, the Hugging Face name,
# and the Hugging Face name without its owner.
_MODEL_BY_NAME = {model.name: model for model in _MODELS} | {
    spelling.lower(): model
    for model in _MODELS
    for full in model.hugging_face
    for spelling in (full, full.split("/")[-1])
}


def find_model(name: str, *, about: str = "model") -> ModelShape:
    """Return the shape of the model called `name`: a Hugging Face name or a short one, any case.

    `about` is the setting that holds the name. Raises `EngineError` with the likeliest names and
    the list.
    """
    model = _MODEL_BY_NAME.get(name.strip().lower())
    if model is None:
        listed = [row.name for row in _MODELS]
        raise unknown_name("model", name, _MODEL_BY_NAME, listed, about=about)
    return model
