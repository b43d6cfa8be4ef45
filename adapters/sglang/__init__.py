"""SGLang."""

from harness.adapters.sglang.adapter import SglangAdapter

__all__ = [
    "SglangAdapter",
]
