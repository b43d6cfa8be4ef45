"""How other load generators define their figures: our records by their formulas.

To explain a disagreement, never as the headline. Each module has `figures(requests, limits)`,
`ABOUT` and `APPROXIMATIONS`, what our records cannot tell and how it is taken instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harness.results.dialects import aiperf, guidellm, sglang, vllm
from harness.results.dialects.figure import Figure, Limits
from harness.results.dialects.requests import Requests


class Dialect(NamedTuple):
    """One tool's way of telling what a run came to."""

    about: str  # which tool, and which release its formulas were read from
    approximations: tuple[str, ...]
    figures: Callable[[Requests, Limits], Iterator[Figure]]


DIALECTS: Mapping[str, Dialect] = {
    "vllm": Dialect(vllm.ABOUT, vllm.APPROXIMATIONS, vllm.figures),
    "sglang": Dialect(sglang.ABOUT, sglang.APPROXIMATIONS, sglang.figures),
    "aiperf": Dialect(aiperf.ABOUT, aiperf.APPROXIMATIONS, aiperf.figures),
    "guidellm": Dialect(guidellm.ABOUT, guidellm.APPROXIMATIONS, guidellm.figures),
}
