"""Shared parts of all figures: size, style, title, simulation mark, log axes and the PNG file."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from harness.results.panels import Panel, hardware_title, load_title, unmeasured
from harness.results.plots.layout import Box, RowPlaces, log_ticks
from harness.results.report import PlannedFigure, engines
from harness.results.summary import Summary

Look = dict[str, Any]  # properties that matplotlib takes by name
DPI = 200
WIDTH_IN = 8.0  # 1600 pixels
PALETTE_SIZE = 128
_LEGEND_LETTERS = 140  # characters that fit into one line of a legend
_CAPTION_LETTERS = 165
LOADS_A_LINE = 4  # maximum loads in one line of a legend
HATCH = "//////"  # marks runs that are left out of the comparison
INK, FAINT, GRID = "#1a1a1a", "#6b6b6b", "#dddddd"
# Okabe and Ito's palette, which suits colour-blind readers, without yellow (too pale on white).
LOAD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LOAD_MARKERS = ("o", "s", "D", "^", "v", "P")
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.parse_math": False,  # a name may contain a dollar sign
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "figure.facecolor": "white",
}


@contextmanager
def style() -> Iterator[None]:
    """Use the project's style instead of the user's matplotlibrc, and restore it afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # names may use any script
        mpl.rcdefaults()
        mpl.rcParams.update(cast("Any", STYLE))
        yield


def save(figure: Figure, path: Path) -> None:
    """Write a PNG with few colours, which has a quarter of the size."""
    canvas: Any = FigureCanvasAgg(figure)  # Any: matplotlib types neither of the two methods
    canvas.draw()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[:, :, :3])
    few = Image.fromarray(pixels).quantize(
        PALETTE_SIZE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    few.save(path)


def new_figure(summary: Summary, planned: PlannedFigure, height_in: float) -> Figure:
    """Return an empty figure with title, model and engine, caption and simulation mark, if any."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI)
    FigureCanvasAgg(figure)  # needed to measure texts
    top = 1 - 0.14 / height_in
    title = figure.text(0.015, top, planned.title, weight="bold", fontsize=10, va="top")
    shrink = 0.86 * WIDTH_IN * DPI / extent(title).width
    title.set_fontsize(min(10.0, 10.0 * shrink))
    ran = f"{summary.model} · {hardware_title(summary)} · "
    ran += engines(summary)[planned.label] if planned.label else "baselines of the engines"
    figure.text(0.015, top - 0.23 / height_in, ran, color=FAINT, va="top")
    caption = "\n".join(_caption_lines(planned))
    figure.text(0.015, 0.08 / height_in, caption, color=FAINT, fontsize=6.5, va="bottom")
    if mark := unmeasured(summary):
        ground = {"facecolor": "#B23A00", "edgecolor": "none", "boxstyle": "round,pad=0.35"}
        look: Look = {
            "weight": "bold",
            "color": "white",
            "ha": "right",
            "va": "top",
            "bbox": ground,
        }
        figure.text(0.985, top, mark, **look)
    return figure


def extent(text: Text) -> Box:
    """Return the bounding box of a text, in pixels."""
    box = text.get_window_extent()
    return Box(left=box.x0, bottom=box.y0, width=box.width, height=box.height)


def load_style(planned: PlannedFigure, panel: Panel) -> tuple[str, str]:
    """Return the colour and the marker of a load, the same in every figure of its workload."""
    i = planned.first_load + planned.panels.index(panel)
    return LOAD_COLOURS[i % len(LOAD_COLOURS)], LOAD_MARKERS[i % len(LOAD_MARKERS)]


def head_in(planned: PlannedFigure) -> float:
    """Return the height of the title, the subtitle and the legend, in inches."""
    return 0.55 + 0.17 * math.ceil(len(planned.panels) / loads_a_line(planned))


def caption_in(planned: PlannedFigure) -> float:
    """Return the height of a caption without its first line, in inches."""
    return 0.12 * (len(_caption_lines(planned)) - 1)


def _caption_lines(planned: PlannedFigure) -> list[str]:
    return textwrap.wrap(planned.caption, _CAPTION_LETTERS)


def loads_a_line(planned: PlannedFigure) -> int:
    """Return how many loads fit into one line of a legend."""
    longest = max(len(load_title(panel.load)) for panel in planned.panels)
    return max(1, min(LOADS_A_LINE, _LEGEND_LETTERS // (longest + 4)))


def load_legend(figure: Figure, planned: PlannedFigure, height_in: float) -> None:
    """Draw the legend of the loads between the subtitle and the axes."""
    handles = [
        Line2D([], [], linestyle="", color=colour, marker=marker, markersize=5)
        for colour, marker in (load_style(planned, panel) for panel in planned.panels)
    ]
    figure.legend(
        handles,
        [load_title(panel.load) for panel in planned.panels],
        loc="upper left",
        bbox_to_anchor=(0.008, 1 - 0.52 / height_in),
        ncols=loads_a_line(planned),
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.5,
        borderpad=0,
    )


def log_axis(
    axes: Axes, which: str, limits: tuple[float, float], prefix: str = "", closest: float = 0.12
) -> None:
    """Set log scale, limits, and ticks with plain numbers on one axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    inner = (limits[1] / limits[0]) ** 0.03  # a tick label at the edge overlaps the next panel
    axis.set_major_locator(FixedLocator(log_ticks(limits[0] * inner, limits[1] / inner, closest)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{prefix}{value:,.6g}"))
    axes.grid(visible=True, axis="x" if which == "x" else "y")


def three_columns(
    figure: Figure,
    rows: RowPlaces,
    names: Sequence[Sequence[str]],
    edges_in: tuple[float, float, float],
) -> Sequence[Axes]:
    """Return three panels in one row that share the row names at the left.

    `edges_in` is the space above the panels, the space below, and the total height, in inches.
    """
    above_in, below_in, height_in = edges_in
    columns = figure.subplots(1, 3, sharey=True)
    columns[0].set_yticks(rows.middles, ["\n".join(lines) for lines in names], fontsize=7)
    columns[0].set_ylim(rows.borders[-1], rows.borders[0])
    left_px = max(extent(text).width for text in columns[0].get_yticklabels())
    figure.subplots_adjust(
        left=left_px / (WIDTH_IN * DPI) + 0.025,
        right=0.985,
        wspace=0.09,
        top=1 - above_in / height_in,
        bottom=below_in / height_in,
    )
    for axes in columns:
        axes.hlines(
            rows.borders[1:-1], 0, 1, GRID, linewidth=0.4, transform=axes.get_yaxis_transform()
        )
    return list(columns)
