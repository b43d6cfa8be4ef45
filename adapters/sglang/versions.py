"""What differs between versions of SGLang, as read from their source.

Read: 0.4.6.post5, 0.4.10.post2, 0.5.6.post2, 0.5.10, 0.5.16 and 0.5.23; run: 0.5.23. A version
between two of them is treated as the older one, whose flags it still takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one range of versions takes and counts."""

    graphs_off: tuple[str, ...] = ("disable-cuda-graph",)  # switches; with a value, NAME=VALUE
    graph_batch: str = "cuda-graph-max-bs"  # the largest batch that has a CUDA graph
    sampling_defaults: bool = False  # whether --sampling-defaults is there
    methods: tuple[str, ...] = ("eagle", "eagle3")  # kinds of speculation
    overlaps_drafts: bool = False  # whether speculation on a GPU goes with the overlap scheduler
    counts_passes: bool = False  # forward passes by kind, and chunks of prompts before their last
    counts_verifies: bool = False  # verify steps of each sequence


_SINCE_0_4 = Release()
_SINCE_0_5_6 = replace(
    _SINCE_0_4, sampling_defaults=True, methods=("ngram", "draft", "eagle", "eagle3")
)
_SINCE_0_5_10 = replace(
    _SINCE_0_5_6,
    graphs_off=("disable-cuda-graph", "disable-piecewise-cuda-graph"),
    counts_passes=True,
)
_SINCE_0_5_16 = replace(
    _SINCE_0_5_10,
    graphs_off=("cuda-graph-backend-decode=disabled", "cuda-graph-backend-prefill=disabled"),
    graph_batch="cuda-graph-max-bs-decode",
    overlaps_drafts=True,
    counts_verifies=True,
)
_RELEASES = (
    ((0, 5, 16), _SINCE_0_5_16),
    ((0, 5, 10), _SINCE_0_5_10),
    ((0, 5, 6), _SINCE_0_5_6),
)


def release_of(version: str | None) -> Release:
    """Return what a version takes and counts; the newest where it is not known."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    if numbers is None:
        return _SINCE_0_5_16
    known = tuple(int(number) for number in numbers.groups())
    return next((release for since, release in _RELEASES if known >= since), _SINCE_0_4)
