"""The errors of the step times against published measurements, as printed in reports.

A test recomputes each error from `tests/support/sweeps/measured`, which lists the sources, and
fails when a value here is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.adapters.embedded.step_time.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeAccuracy:
    """The errors of one kind of value: median and worst over `values` measured values."""

    what: str
    source: str
    values: int
    median_percent: float  # of the absolute errors
    worst_percent: float

    @property
    def sentence(self) -> str:
        """The errors as one sentence."""
        return (
            f"{self.what}: median error {self.median_percent:g} %, worst {self.worst_percent:g} % "
            f"over {self.values} values from {self.source}"
        )


DECODE = StepTimeAccuracy(
    what="kernels of a decode step of Llama-2/3-70B on 2 and 4 and Llama-3-8B on 1 A100-80GB",
    source="vidur and aiconfigurator",
    values=33,
    median_percent=2.9,
    worst_percent=6.2,
)
PREFILL = StepTimeAccuracy(
    what="kernels of a prefill of 512 to 8,192 tokens of the same",
    source="vidur and aiconfigurator",
    values=22,
    median_percent=6.8,
    worst_percent=11.7,
)
FIRST_TOKEN = StepTimeAccuracy(
    what="time to the first token of one request, A100",
    source="NVIDIA and MosaicML, engines of 2023",
    values=6,
    median_percent=10.0,
    worst_percent=33.9,
)
BATCH = StepTimeAccuracy(
    what="output tokens/s of batches: 7B and 8B on 1 and 2 A100, 70B on 4",
    source="NVIDIA and LLM-Inference-Bench, engines of 2023 and 2024",
    values=55,
    median_percent=3.1,
    worst_percent=25.0,
)
SPREAD_BATCH = StepTimeAccuracy(
    what="output tokens/s of batches: 7B and 8B on 4 A100",
    source="LLM-Inference-Bench, engines of 2024",
    values=36,
    median_percent=11.4,
    worst_percent=24.6,
)
BETWEEN_TOKENS = StepTimeAccuracy(
    what="time between tokens of Llama-3.1-70B in FP8 on 2, 4 and 8 H100, 4 to 64 clients, prompts "
    "of 1,024 and 8,192 tokens",
    source="aiconfigurator, vLLM of 2025",
    values=30,
    median_percent=3.7,
    worst_percent=10.5,
)
H100_BATCH = StepTimeAccuracy(
    what="output tokens/s of batches: 7B and 8B on 1, 2 and 4 H100, 70B on 4",
    source="LLM-Inference-Bench, engines of 2024",
    values=126,
    median_percent=4.8,
    worst_percent=27.8,
)
FP8_BATCH = StepTimeAccuracy(
    what="output tokens/s of batches in FP8: 7B on 1, 70B on 2 and 4 H100",
    source="NVIDIA, TensorRT-LLM of 2023",
    values=16,
    median_percent=10.8,
    worst_percent=24.1,
)
FP8_FIRST_TOKEN = StepTimeAccuracy(
    what="time to the first token of one request in FP8, 7B on 1 and 70B on 4 H100",
    source="NVIDIA, TensorRT-LLM of 2023",
    values=4,
    median_percent=22.3,
    worst_percent=31.0,
)
L40S_BATCH = StepTimeAccuracy(
    what="output tokens/s of batches of 7B in FP8 on 1 L40S",
    source="NVIDIA, TensorRT-LLM of 2023",
    values=4,
    median_percent=2.3,
    worst_percent=5.4,
)
L40S_FIRST_TOKEN = StepTimeAccuracy(
    what="time to the first token of one request of 7B in FP8 on 1 L40S",
    source="NVIDIA, TensorRT-LLM of 2023",
    values=2,
    median_percent=8.8,
    worst_percent=9.9,
)
_A100 = (DECODE, PREFILL, FIRST_TOKEN, BATCH, SPREAD_BATCH)
_BY_GPU = {
    "a100-40gb": _A100,
    "a100-80gb": _A100,
    "h100-80gb": (BETWEEN_TOKENS, H100_BATCH, FP8_BATCH, FP8_FIRST_TOKEN),
    "l40s": (L40S_BATCH, L40S_FIRST_TOKEN),
}
_STEPS = {"a100-80gb": (DECODE, PREFILL), "h100-80gb": (BETWEEN_TOKENS,)}
ACCURACIES = tuple(dict.fromkeys(one for known in _BY_GPU.values() for one in known))


def accuracy_of(gpu: Gpu) -> tuple[str, ...]:
    """Return sentences about the accuracy of the step times of `gpu`, for the report."""
    if gpu.name not in _BY_GPU:
        return (f"step times of {gpu.name} were not compared with measurements",)
    return tuple(accuracy.sentence for accuracy in _BY_GPU[gpu.name])


def known_step_errors(gpu: Gpu) -> tuple[StepTimeAccuracy, ...]:
    """Return the known errors of the step times of `gpu` in current engines; empty if unknown."""
    return _STEPS.get(gpu.name, ())
