"""How other load generators define their metrics: our records by their formulas.

To explain a disagreement, never as the headline. Each module has `tool_metrics(requests, limits)`,
`ABOUT` and `APPROXIMATIONS`, what our records cannot tell and how it is taken instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harness.results.dialects import aiperf, guidellm, sglang, vllm
from harness.results.dialects.requests import Requests
from harness.results.dialects.tool_metric import Limits, ToolMetric


class ToolDialect(NamedTuple):
    """One tool's way of telling what a run came to."""

    about: str  # which tool, and which release its formulas were read from
    approximations: tuple[str, ...]
    metrics: Callable[[Requests, Limits], Iterator[ToolMetric]]


DIALECTS: Mapping[str, ToolDialect] = {
    "vllm": ToolDialect(vllm.ABOUT, vllm.APPROXIMATIONS, vllm.tool_metrics),
    "sglang": ToolDialect(sglang.ABOUT, sglang.APPROXIMATIONS, sglang.tool_metrics),
    "aiperf": ToolDialect(aiperf.ABOUT, aiperf.APPROXIMATIONS, aiperf.tool_metrics),
    "guidellm": ToolDialect(guidellm.ABOUT, guidellm.APPROXIMATIONS, guidellm.tool_metrics),
}
