"""How to start and stop serving engines, and an embedded one that needs no GPU."""

from adapters.base import EngineAdapter
from adapters.embedded.adapter import EmbeddedAdapter
from adapters.sglang import SglangAdapter
from adapters.tensorrt_llm import TensorRtLlmAdapter
from adapters.url import UrlAdapter
from adapters.vllm import VllmAdapter

ENGINES: dict[str, type[EngineAdapter]] = {
    "embedded": EmbeddedAdapter,
    "sglang": SglangAdapter,
    "tensorrt-llm": TensorRtLlmAdapter,
    "url": UrlAdapter,
    "vllm": VllmAdapter,
}
