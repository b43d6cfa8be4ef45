"""Models from a `config.json`: the same shape as the table, or an error that names the key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_files import sweep

from harness.adapters.base import EngineError
from harness.adapters.embedded.step_time.model_shape import ModelShape
from harness.adapters.embedded.step_time.models import find_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MIXTRAL: dict[str, Any] = {
    **LLAMA,
    "model_type": "mixtral",
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def stored(folder: Path, config: object) -> Path:
    """Write a `config.json` into `folder`; return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def without_names(shape: ModelShape) -> ModelShape:
    return replace(shape, name="", hugging_face=(), default_draft=None)


@pytest.mark.parametrize(
    ("config", "name"),
    [(LLAMA, "llama-3-8b"), (MIXTRAL, "mixtral-8x7b"), (QWEN3_MOE, "qwen3-30b-a3b")],
)
def test_a_file_gives_the_shape_of_the_table(
    tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    """A published file gives the model of the table, by its folder or its own path."""
    folder = stored(tmp_path / "mine", config)

    shape = find_model(str(folder))

    assert shape.name == "mine"
    assert without_names(shape) == without_names(find_model(name))
    assert find_model(str(folder / "config.json")) == shape


def test_a_shared_expert_is_read_by_every_token(tmp_path: Path) -> None:
    """Qwen1.5-MoE: 60 experts of 1,408 (four per token), one of 5,632, 14.3 billion weights."""
    config = {
        **QWEN3_MOE, "model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
    }  # fmt: skip
    del config["head_dim"]

    shape = find_model(str(stored(tmp_path, config)))

    assert shape.parameters == 14_315_784_192
    assert shape.active_intermediate == 4 * 1408 + 5632


def test_a_sliding_window_limits_the_context(tmp_path: Path) -> None:
    """The window is the longest context; an unused window has no effect."""
    slides = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert find_model(str(stored(tmp_path, slides))).max_position == 4096
    unused = {**slides, "model_type": "qwen2", "use_sliding_window": False}
    assert find_model(str(stored(tmp_path, unused))).max_position == 8192


@pytest.mark.parametrize(
    "key",
    [
        "model_type", "hidden_size", "intermediate_size", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "vocab_size",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    """The error for a missing key names the key."""
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(EngineError, match=f"the key '{key}' is missing") as caught:
        find_model(str(stored(tmp_path, config)))
    assert caught.value.about == "model"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "model_type": "deepseek_v3"}, "architecture 'deepseek_v3' is not supported"),
        ({**LLAMA, "num_hidden_layers": "32"}, "'num_hidden_layers' is '32'"),
        ({**LLAMA, "vocab_size": 0}, "'vocab_size' is 0"),
        ({**LLAMA, "hidden_size": True}, "'hidden_size' is True"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "the weights are quantized"),
        ({**LLAMA, "model_type": "mixtral"}, "'num_local_experts' or 'num_experts' is missing"),
        ({**MIXTRAL, "num_experts_per_tok": None}, "the key 'num_experts_per_tok' is missing"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "'num_experts_per_tok' is 9"),
        ({**QWEN3_MOE, "mlp_only_layers": [0]}, "'mlp_only_layers' is \\[0\\]"),
        ({**QWEN3_MOE, "decoder_sparse_step": 2}, "'decoder_sparse_step' is 2"),
        ([], "expected a JSON object"),
    ],
)
def test_an_unsupported_config_is_refused(tmp_path: Path, config: object, message: str) -> None:
    """The error has the file and the key, and the next step as a note."""
    with pytest.raises(EngineError, match=message) as caught:
        find_model(str(stored(tmp_path, config)))
    assert str(tmp_path / "config.json") in str(caught.value)
    assert caught.value.__notes__


def test_a_missing_or_invalid_file_is_refused(tmp_path: Path) -> None:
    """A missing path gives no suggestion of a model name; a file without JSON is refused."""
    with pytest.raises(EngineError, match="the file does not exist"):
        find_model(str(tmp_path / "absent"))
    with pytest.raises(EngineError, match="the file does not exist"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(EngineError, match="not valid JSON"):
        find_model(str(tmp_path))


def test_a_model_folder_is_relative_to_the_sweep_file(tmp_path: Path) -> None:
    """An existing folder is used as a path; any other name stays a name."""
    folder = stored(tmp_path / "mine", LLAMA)
    assert sweep(tmp_path, model="mine").model == str(folder)
    assert sweep(tmp_path, model="./mine/config.json").model == str(folder / "config.json")
    assert sweep(tmp_path, model="some/mine").model == "some/mine"
