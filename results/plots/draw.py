"""Drawing of every plot of a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from harness.results.plots.canvas import save, style
from harness.results.plots.effects import effects_figure
from harness.results.plots.engines import engines_figure
from harness.results.plots.latency import latency_figure
from harness.results.plots.throughput import throughput_figure
from harness.results.report import planned_figures
from harness.results.summary import Summary


def draw_all(
    summary: Summary, distributions: Mapping[str, pd.DataFrame], directory: Path
) -> list[Path]:
    """Draw every figure of a summary into `directory`, and return the PNG files in order.

    `distributions`: run key → one row per request, with `measured`, `ok` and latencies in ms.
    """
    paths: list[Path] = []
    with style():
        for planned in planned_figures(summary):
            if planned.kind == "engines":
                figure = engines_figure(summary, planned)
            elif planned.kind == "effects":
                figure = effects_figure(summary, planned)
            elif planned.kind == "throughput":
                figure = throughput_figure(summary, planned)
            else:
                figure = latency_figure(summary, planned, distributions)
            paths.append(directory / planned.file)
            save(figure, paths[-1])
    return paths
