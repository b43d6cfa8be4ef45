"""How to start and stop serving engines, and an embedded one that needs no GPU."""

from harness.adapters.base import EngineAdapter
from harness.adapters.embedded.adapter import EmbeddedAdapter
from harness.adapters.sglang import SglangAdapter
from harness.adapters.tensorrt_llm import TensorRtLlmAdapter
from harness.adapters.url import UrlAdapter
from harness.adapters.vllm import VllmAdapter

ENGINES: dict[str, type[EngineAdapter]] = {
    "embedded": EmbeddedAdapter,
    "sglang": SglangAdapter,
    "tensorrt-llm": TensorRtLlmAdapter,
    "url": UrlAdapter,
    "vllm": VllmAdapter,
}
