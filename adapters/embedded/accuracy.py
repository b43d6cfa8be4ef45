"""How far the step times are from what others measured: the figures that reports print.

A test works each of them out anew from `tests/measured/a100.csv`, whose sources are named there,
and fails when one stated here no longer holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.embedded.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One kind of figure, predicted and measured: how many there are, and the errors' size."""

    what: str
    source: str
    figures: int
    median_percent: float  # of the errors without their signs
    worst_percent: float

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        return (
            f"{self.what}: median error {self.median_percent:g} %, worst {self.worst_percent:g} % "
            f"over {self.figures} figures of {self.source}"
        )


DECODE = Comparison(
    what="kernels of a decode step of Llama-2/3-70B on 2 and 4 and Llama-3-8B on 1 A100-80GB",
    source="vidur and aiconfigurator",
    figures=33,
    median_percent=3.0,
    worst_percent=6.2,
)
PREFILL = Comparison(
    what="kernels of a prefill of 512 to 8,192 tokens of the same",
    source="vidur and aiconfigurator",
    figures=22,
    median_percent=6.4,
    worst_percent=11.7,
)
FIRST_TOKEN = Comparison(
    what="time to the first token of one request, A100",
    source="NVIDIA and MosaicML, engines of 2023",
    figures=6,
    median_percent=10.8,
    worst_percent=21.5,
)
BATCH = Comparison(
    what="output tokens a second of batches: 7B and 8B on 1 and 2 A100, 70B on 4",
    source="NVIDIA and LLM-Inference-Bench, engines of 2023 and 2024",
    figures=55,
    median_percent=6.0,
    worst_percent=31.0,
)
SPREAD_BATCH = Comparison(
    what="output tokens a second of batches: 7B and 8B on 4 A100, where engines of 2024 lost time "
    "between kernels that is not modelled",
    source="LLM-Inference-Bench",
    figures=36,
    median_percent=16.7,
    worst_percent=50.4,
)
COMPARISONS = (DECODE, PREFILL, FIRST_TOKEN, BATCH, SPREAD_BATCH)


def accuracy_of(gpu: Gpu) -> tuple[str, ...]:
    """Return sentences on how exact the step times of `gpu` are, for the report."""
    if not gpu.name.startswith("a100"):
        return (f"step times of {gpu.name} were compared with no measurement",)
    return tuple(comparison.sentence for comparison in COMPARISONS)
