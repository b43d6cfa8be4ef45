"""What a model's folder tells without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.model_folder import context_tokens, weights_bytes


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": 8.0}}, None),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_theta": 5e5}}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"factor": 8.0}}, None),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
    ],
)
def test_the_longest_context_is_known_where_nothing_stretches_it(
    tmp_path: Path, config: dict[str, Any], longest: int | None
) -> None:
    """Where positions are scaled the model's own number is no limit."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert context_tokens(tmp_path) == longest


def test_weights_are_as_large_as_all_their_files(tmp_path: Path) -> None:
    """Other forms of weights are not looked for, and nothing is no size."""
    assert weights_bytes(tmp_path) is None

    (tmp_path / "model-1-of-2.safetensors").write_bytes(b"x" * 300)
    (tmp_path / "model-2-of-2.safetensors").write_bytes(b"x" * 200)

    assert weights_bytes(tmp_path) == 500
