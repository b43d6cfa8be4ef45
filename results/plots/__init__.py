"""The plots of a summary as PNG files; the only package that imports matplotlib."""

from harness.results.plots.cache_folder import choose_cache_folder

choose_cache_folder()  # before the import of matplotlib, which reads it

from harness.results.plots.draw import draw_all  # noqa: E402

__all__ = ["draw_all"]
