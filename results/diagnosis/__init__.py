"""The bottleneck of each stored run and the next step to try."""

from harness.results.diagnosis.document import diagnosis
from harness.results.diagnosis.text import diagnosis_lines

__all__ = [
    "diagnosis",
    "diagnosis_lines",
]
