"""What limits each stored run, and what to try."""

from harness.results.diagnosis.document import diagnosis
from harness.results.diagnosis.text import diagnosis_lines

__all__ = [
    "diagnosis",
    "diagnosis_lines",
]
