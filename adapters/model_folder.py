"""What a model's files contain, read without loading it: its ids, context and weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def model_folder(model: str, env: Mapping[str, str]) -> Path | None:
    """Return the folder of a model: the one named, or its newest snapshot in the hub's cache.

    `env` has the place of that cache. None when the model is not on this machine yet.
    """
    named = Path(model).expanduser()
    if os.path.isfile(named / "config.json"):  # noqa: PTH113  Path's own raises for long names
        return named
    home = Path(env.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(env.get("HF_HUB_CACHE") or home / "hub")
    snapshots = (cache / f"models--{model.replace('/', '--')}").glob("snapshots/*/config.json")
    found = max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    return None if found is None else found.parent


def ordinary_tokens(folder: Path) -> int | None:
    """Return how many token ids a prompt may be drawn from; None when it is not in the files.

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
    """Return the longest context of a model, in tokens; None where it is scaled, or not given.

    Scaled positions reach further than the model's own count, each kind of scaling differently.
    """
    config = _json(folder / "config.json")
    scaled = config.get("rope_scaling") or (config.get("rope_parameters") or {}).get("factor")
    longest = config.get("max_position_embeddings")
    return longest if isinstance(longest, int) and not scaled else None


def weights_bytes(folder: Path) -> int | None:
    """Return the size of a model's weights, in bytes; None where there is no such file."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return sum(sizes) or None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
