"""vLLM."""

from harness.adapters.vllm.adapter import VllmAdapter

__all__ = [
    "VllmAdapter",
]
