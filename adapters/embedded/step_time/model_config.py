"""Read a model shape from the published `config.json`. Unsupported architectures are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError
from harness.adapters.embedded.step_time.model_shape import Experts, ModelShape

# `model_type` → (biases on QKV, norms on queries and keys): dense, then with experts.
_DENSE = {
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
}
_EXPERTS = {
    "mixtral": (False, False),
    "qwen2_moe": (True, False),
    "qwen3_moe": (False, True),
}
_SUPPORTED = (*_DENSE, *_EXPERTS)
_COUNTS = ("num_local_experts", "num_experts")  # the name depends on the model family


def config_path(model: str) -> Path | None:
    """Return the `config.json` if `model` is a path to that file or its folder; None for a name.

    Raises `EngineError` when `model` looks like a path and the file does not exist.
    """
    path = Path(model).expanduser()
    if os.path.isdir(path):  # noqa: PTH112  `Path.is_dir` raises for a too long name
        path /= "config.json"
    elif path.suffix != ".json" and not model.startswith(("/", "./", "../", "~")):
        return None
    if not os.path.isfile(path):  # noqa: PTH113  as above
        raise _refused(
            path, "the file does not exist", "set model to a folder that contains a config.json"
        )
    return path


def shape_of(path: Path) -> ModelShape:
    """Return the shape in a `config.json`. Raises `EngineError` when it is not valid."""
    config = _read(path)
    _check_kind(path, config)
    kind = config["model_type"]
    number = _Numbers(path, config)
    heads, hidden = number("num_attention_heads"), number("hidden_size")
    bias, head_norms = (_DENSE | _EXPERTS)[kind]
    experts = _experts(path, config) if kind in _EXPERTS else None
    return ModelShape(
        name=path.resolve().parent.name,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        # The first Llama models do not have this key: each query head has its own KV head.
        kv_heads=number("num_key_value_heads", heads if kind == "llama" else None),
        head_dim=number("head_dim", hidden // heads),
        intermediate=0 if experts else number("intermediate_size"),
        vocabulary=number("vocab_size"),
        max_position=_context(number, config),
        experts=experts,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or bool(config.get("attention_bias", False)),
        qk_norm=head_norms,
    )


class _Numbers:
    """A reader of whole numbers in a file. Raises `EngineError` for a missing or invalid key."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path = path
        self._config = config

    def __call__(self, key: str, otherwise: int | None = None) -> int:
        value = self._config.get(key)
        value = otherwise if value is None else value
        if value is None:
            raise _refused(
                self._path, f"the key '{key}' is missing", "copy it from the published config.json"
            )
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _refused(
                self._path, f"'{key}' is {value!r}", "expected a whole number of at least 1"
            )
        return value


def _context(number: _Numbers, config: Mapping[str, Any]) -> int:
    """Return the longest context, at most the sliding window (sliding is not modelled)."""
    longest = number("max_position_embeddings")
    slides = config.get("use_sliding_window", True) and config.get("sliding_window") is not None
    return min(longest, number("sliding_window")) if slides else longest


def _experts(path: Path, config: Mapping[str, Any]) -> Experts:
    """Return the experts of each layer. Raises `EngineError` if layers differ."""
    number = _Numbers(path, config)
    named = next((key for key in _COUNTS if config.get(key) is not None), None)
    if named is None:
        raise _refused(
            path,
            f"the key '{_COUNTS[0]}' or '{_COUNTS[1]}' is missing",
            "copy it from the published config.json",
        )
    for key, uniform in (("mlp_only_layers", []), ("decoder_sparse_step", 1)):
        if config.get(key, uniform) not in (None, uniform):
            raise _refused(
                path, f"'{key}' is {config[key]!r}", "models with different layers are unsupported"
            )
    count, per_token = number(named), number("num_experts_per_tok")
    if per_token > count:
        raise _refused(
            path, f"'num_experts_per_tok' is {per_token}", f"expected at most {count} (all experts)"
        )
    wide = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    shared = config.get("shared_expert_intermediate_size")
    return Experts(
        count=count,
        per_token=per_token,
        intermediate=number(wide),
        shared_intermediate=number("shared_expert_intermediate_size") if shared else 0,
    )


def _check_kind(path: Path, config: Mapping[str, Any]) -> None:
    """Raise `EngineError` for an unsupported architecture or a quantized checkpoint."""
    kind = config.get("model_type")
    if kind is None:
        raise _refused(
            path, "the key 'model_type' is missing", "copy it from the published config.json"
        )
    if kind not in _SUPPORTED:
        what = f"the architecture {kind!r} is not supported"
        raise _refused(path, what, f"supported architectures: {', '.join(_SUPPORTED)}")
    if config.get("quantization_config") is not None:
        todo = "set model to the unquantized model, and set the toggle quantization"
        raise _refused(path, "the weights are quantized ('quantization_config')", todo)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise _refused(
            path, f"not valid JSON: {problem}", "copy the published config.json"
        ) from None
    if not isinstance(data, dict):
        raise _refused(path, "expected a JSON object", "copy the published config.json")
    return data


def _refused(path: Path, what: str, note: str) -> EngineError:
    error = EngineError(f"embedded engine: {path}: {what}")
    error.add_note(note)
    error.about = "model"
    return error
