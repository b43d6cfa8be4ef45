"""The scheduling core: sequences, KV blocks, prefix cache, steps."""

from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.core import EngineCore, StepTimer
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.speculative import SpeculativeConfig

__all__ = [
    "EngineConfig",
    "EngineCore",
    "Sequence",
    "SpeculativeConfig",
    "StepTimer",
]
