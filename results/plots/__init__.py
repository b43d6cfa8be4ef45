"""The plots of a summary as PNG: the only package that imports matplotlib."""

from harness.results.plots.draw import draw_all

__all__ = ["draw_all"]
