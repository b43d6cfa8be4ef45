"""Replay of recorded traces: formats, rows and prompts."""

from harness.workloads.trace.format_detection import guess_format
from harness.workloads.trace.formats import FORMATS, NANOSECONDS
from harness.workloads.trace.lines import RowError, csv_values, numbered_lines, shown
from harness.workloads.trace.replay import TraceReplay

__all__ = [
    "FORMATS",
    "NANOSECONDS",
    "RowError",
    "TraceReplay",
    "csv_values",
    "guess_format",
    "numbered_lines",
    "shown",
]
