"""The known models, with shapes from the `config.json` of their authors."""

from __future__ import annotations

from dataclasses import replace

from harness.adapters.embedded.step_time.hardware import unknown_name
from harness.adapters.embedded.step_time.model_config import config_path, shape_of
from harness.adapters.embedded.step_time.model_shape import Experts, ModelShape

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

_MIXTRAL_8X7B = ModelShape(
    name="mixtral-8x7b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=0,
    experts=Experts(count=8, per_token=2, intermediate=14336),
    vocabulary=32000,
    max_position=32768,
    hugging_face=("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
)
_QWEN3_8B = ModelShape(
    name="qwen3-8b",
    layers=36,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=12288,
    vocabulary=151936,
    max_position=40960,
    qk_norm=True,
    default_draft="qwen3-0.6b",
    hugging_face=("Qwen/Qwen3-8B",),
)
_QWEN3_30B = replace(
    _QWEN3_8B,
    name="qwen3-30b-a3b",
    layers=48,
    hidden=2048,
    kv_heads=4,
    intermediate=0,
    experts=Experts(count=128, per_token=8, intermediate=768),
    hugging_face=("Qwen/Qwen3-30B-A3B",),
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
    _MIXTRAL_8X7B,
    replace(
        _MIXTRAL_8X7B,
        name="mixtral-8x22b",
        layers=56,
        hidden=6144,
        heads=48,
        experts=Experts(count=8, per_token=2, intermediate=16384),
        max_position=65536,
        hugging_face=("mistralai/Mixtral-8x22B-v0.1",),
    ),
    replace(
        _QWEN3_8B,
        name="qwen3-0.6b",
        layers=28,
        hidden=1024,
        heads=16,
        intermediate=3072,
        tied_embeddings=True,
        default_draft=None,
        hugging_face=("Qwen/Qwen3-0.6B",),
    ),
    replace(
        _QWEN3_8B,
        name="qwen3-4b",
        hidden=2560,
        intermediate=9728,
        tied_embeddings=True,
        hugging_face=("Qwen/Qwen3-4B",),
    ),
    _QWEN3_8B,
    replace(
        _QWEN3_8B,
        name="qwen3-14b",
        layers=40,
        hidden=5120,
        heads=40,
        intermediate=17408,
        hugging_face=("Qwen/Qwen3-14B",),
    ),
    replace(
        _QWEN3_8B,
        name="qwen3-32b",
        layers=64,
        hidden=5120,
        heads=64,
        intermediate=25600,
        hugging_face=("Qwen/Qwen3-32B",),
    ),
    _QWEN3_30B,
    replace(
        _QWEN3_30B,
        name="qwen3-235b-a22b",
        layers=94,
        hidden=4096,
        heads=64,
        experts=Experts(count=128, per_token=8, intermediate=1536),
        hugging_face=("Qwen/Qwen3-235B-A22B",),
    ),
)

# Each accepted spelling in lower case → the model: the short name, the Hugging Face name, and the
# Hugging Face name without its owner.
_MODEL_BY_NAME = {model.name: model for model in _MODELS} | {
    spelling.lower(): model
    for model in _MODELS
    for full in model.hugging_face
    for spelling in (full, full.split("/")[-1])
}


def find_model(name: str, *, about: str = "model") -> ModelShape:
    """Return the shape of the model called `name`.

    `name` is a short name, a Hugging Face name (both in upper or lower case), a `config.json` or
    its folder. `about` is the setting that contains the name. Raises `EngineError` with the most
    similar names and the full list.
    """
    model = _MODEL_BY_NAME.get(name.strip().lower())
    if model is None and (path := config_path(name.strip())) is not None:
        return shape_of(path)
    if model is None:
        listed = [row.name for row in _MODELS]
        raise unknown_name("model", name, _MODEL_BY_NAME, listed, about=about)
    return model
