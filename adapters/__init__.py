"""How to start and stop serving engines, and an embedded one that needs no GPU."""

from harness.adapters.attached import UrlAdapter
from harness.adapters.base import (
    AS_IT_IS,
    BASELINE,
    GPU_TOGGLES,
    TOGGLES,
    EngineError,
    EngineSettings,
    ServerCounters,
    Target,
    ToggleValue,
    UnsupportedToggleError,
)
from harness.adapters.embedded import EmbeddedAdapter, InProcessEngine
from harness.adapters.endpoint import Endpoint, EngineAdapter, Transport
from harness.adapters.gpus import remark
from harness.adapters.http_queries import NO_REPLY, masked, query, through_proxy
from harness.adapters.request_shape import (
    API_PATHS,
    AS_MADE,
    RequestShape,
    adapter_at,
    checked_body,
    checked_headers,
    checked_lora,
    tls_context,
)
from harness.adapters.runtime import Runtime
from harness.adapters.sglang import SglangAdapter
from harness.adapters.tensorrt_llm import TensorRtLlmAdapter
from harness.adapters.vllm import VllmAdapter

__all__ = [
    "API_PATHS",
    "AS_IT_IS",
    "AS_MADE",
    "BASELINE",
    "ENGINES",
    "GPU_TOGGLES",
    "NO_REPLY",
    "TOGGLES",
    "Endpoint",
    "EngineAdapter",
    "EngineError",
    "EngineSettings",
    "InProcessEngine",
    "RequestShape",
    "Runtime",
    "ServerCounters",
    "Target",
    "ToggleValue",
    "Transport",
    "UnsupportedToggleError",
    "adapter_at",
    "checked_body",
    "checked_headers",
    "checked_lora",
    "masked",
    "query",
    "remark",
    "through_proxy",
    "tls_context",
]

# Every engine that a sweep file may name. A new one is a file or a folder, and a line here.
ENGINES: dict[str, type[EngineAdapter]] = {
    "embedded": EmbeddedAdapter,
    "sglang": SglangAdapter,
    "tensorrt-llm": TensorRtLlmAdapter,
    "url": UrlAdapter,
    "vllm": VllmAdapter,
}
