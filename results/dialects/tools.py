"""The table of supported load generators.

Their metrics explain differences and are never the headline. Each module has
`tool_metrics(requests, limits)`, `ABOUT`, and `APPROXIMATIONS` for data that our records lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harness.results.dialects import aiperf, guidellm, sglang, vllm
from harness.results.dialects.requests import Requests
from harness.results.dialects.tool_metric import Limits, ToolMetric


class ToolDialect(NamedTuple):
    """The formulas of one tool."""

    about: str  # the tool, and the release that has these formulas
    approximations: tuple[str, ...]
    metrics: Callable[[Requests, Limits], Iterator[ToolMetric]]


DIALECTS: Mapping[str, ToolDialect] = {
    "vllm": ToolDialect(vllm.ABOUT, vllm.APPROXIMATIONS, vllm.tool_metrics),
    "sglang": ToolDialect(sglang.ABOUT, sglang.APPROXIMATIONS, sglang.tool_metrics),
    "aiperf": ToolDialect(aiperf.ABOUT, aiperf.APPROXIMATIONS, aiperf.tool_metrics),
    "guidellm": ToolDialect(guidellm.ABOUT, guidellm.APPROXIMATIONS, guidellm.tool_metrics),
}
