"""TensorRT-LLM, tested against a stand-in: not yet run against the real engine."""

from harness.adapters.tensorrt_llm.adapter import TensorRtLlmAdapter

__all__ = [
    "TensorRtLlmAdapter",
]
