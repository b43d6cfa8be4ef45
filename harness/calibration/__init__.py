"""The calibration of the client: its result and its storage."""

from harness.calibration.finding import LIMIT_MS, MedianAndP99, Rung, calibration_document
from harness.calibration.store import calibration_host, keep_calibration, latest_calibration

__all__ = [
    "LIMIT_MS",
    "MedianAndP99",
    "Rung",
    "calibration_document",
    "calibration_host",
    "keep_calibration",
    "latest_calibration",
]
