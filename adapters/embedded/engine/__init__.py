"""The scheduling core: sequences, KV blocks, prefix cache, steps."""

from harness.adapters.embedded.engine.config import EngineConfig, Speculation
from harness.adapters.embedded.engine.core import EngineCore, StepTimer
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import (
    ASSUMED_ACCEPTANCE,
    DEFAULT_DRAFT_TOKENS,
    mean_tokens_per_step,
    tree_tokens,
)

__all__ = [
    "ASSUMED_ACCEPTANCE",
    "DEFAULT_DRAFT_TOKENS",
    "EngineConfig",
    "EngineCore",
    "Sequence",
    "Speculation",
    "StepTimer",
    "mean_tokens_per_step",
    "tree_tokens",
]
