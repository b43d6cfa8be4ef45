"""What a model's files tell without loading them: where they lie, its ids, its longest context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def model_folder(model: str, env: Mapping[str, str]) -> Path | None:
    """Return the folder of a model: the one named, or its newest snapshot in the hub's cache.

    `env` says where that cache is. None when the model is not on this machine, yet.
    """
    named = Path(model).expanduser()
    if (named / "config.json").is_file():
        return named
    home = Path(env.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or home / "hub")
    snapshots = (cache / f"models--{model.replace('/', '--')}").glob("snapshots/*/config.json")
    found = max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    return None if found is None else found.parent


def ordinary_tokens(folder: Path) -> int | None:
    """Return how many token ids a prompt may be drawn from; None when the files do not tell.

    Those at the end that are special to the tokenizer, or unknown to it, are left out.
    """
    config = _json(folder / "config.json")
    sizes = [config.get("vocab_size"), (config.get("text_config") or {}).get("vocab_size")]
    size = next((size for size in sizes if isinstance(size, int)), None)
    tokenizer = _json(folder / "tokenizer.json")
    special = {token.get("id") for token in tokenizer.get("added_tokens") or []}
    words = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(words, dict) and size is not None:
        return min(size, 1 + max(set(words.values()) - special, default=-1)) or None
    return size


def context_tokens(folder: Path) -> int | None:
    """Return the longest context that a model knows, in tokens; None when it stretches, or is mute.

    Positions that are scaled reach further than the model's own count says, each kind otherwise.
    """
    config = _json(folder / "config.json")
    scaled = config.get("rope_scaling") or (config.get("rope_parameters") or {}).get("factor")
    longest = config.get("max_position_embeddings")
    return longest if isinstance(longest, int) and not scaled else None


def weights_bytes(folder: Path) -> int | None:
    """Return how large a model's weights are, in bytes; None where no such file lies here."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return sum(sizes) or None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
