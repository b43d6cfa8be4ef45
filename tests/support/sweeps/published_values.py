"""What others measured, from `measured/`; run as a program it writes the tables of a page.

The page is docs/prediction.md.

Each value is beside the embedded engine's prediction; no number of the tables is by hand.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator

from reference_numbers import table, written
from repository import ROOT

from harness.adapters.embedded.published import UNITS, PublishedValue, error_percent, predicted
from harness.adapters.embedded.step_time.accuracy import (
    ACCURACIES,
    BATCH,
    BETWEEN_TOKENS,
    DECODE,
    FIRST_TOKEN,
    FP8_BATCH,
    FP8_FIRST_TOKEN,
    H100_BATCH,
    L40S_BATCH,
    L40S_FIRST_TOKEN,
    PREFILL,
    SPREAD_BATCH,
    StepTimeAccuracy,
)
from harness.results.units import significant

PAGE = ROOT / "docs" / "prediction.md"
AIM_PERCENT = {"decode": 8, "between_tokens": 8, "prefill": 10, "first_token": 10, "batch": 15}
_NUMBERS = ("gpus", "sequences", "prompt_tokens", "output_tokens")


def measured() -> list[PublishedValue]:
    """Return the values of `tests/support/sweeps/measured`."""
    measured_values = []
    for path in sorted((ROOT / "tests" / "support" / "sweeps" / "measured").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            values = {
                key: int(text) if key in _NUMBERS else float(text) if key == "value" else text
                for key, text in row.items()
            }
            measured_values.append(PublishedValue(**values))  # type: ignore[arg-type]
    return measured_values


def comparison_of(published: PublishedValue) -> StepTimeAccuracy:
    """Return the comparison that a value belongs to."""
    if published.kind == "between_tokens":
        return BETWEEN_TOKENS
    batch = published.kind == "batch"
    if published.gpu == "l40s":
        return L40S_BATCH if batch else L40S_FIRST_TOKEN
    if published.gpu == "h100-80gb":
        if published.quantization == "fp8":
            return FP8_BATCH if batch else FP8_FIRST_TOKEN
        return H100_BATCH
    if batch:
        return SPREAD_BATCH if published.gpus == 4 and published.gpu == "a100-40gb" else BATCH
    return {"decode": DECODE, "prefill": PREFILL, "first_token": FIRST_TOKEN}[published.kind]


def errors_of(
    values: list[PublishedValue],
) -> dict[StepTimeAccuracy, list[tuple[PublishedValue, float]]]:
    """Return each comparison's values with the percent that the engine is above or below."""
    errors: dict[StepTimeAccuracy, list[tuple[PublishedValue, float]]] = {
        one: [] for one in ACCURACIES
    }
    for published in values:
        errors[comparison_of(published)].append((published, error_percent(published)))
    return errors


def comparison_table(errors: dict[StepTimeAccuracy, list[tuple[PublishedValue, float]]]) -> str:
    """Return the table of comparisons: values, error and its bias, and how many reach the aim."""

    def rows() -> Iterator[tuple[str, ...]]:
        for comparison, pairs in errors.items():
            signed = [error for _, error in pairs]
            aim = AIM_PERCENT[pairs[0][0].kind]
            within = sum(abs(error) <= aim for error in signed)
            yield (
                f"{comparison.what} ({comparison.source})",
                f"{comparison.median_percent:.1f} %",
                f"{statistics.median(signed):+.1f} %",
                f"{comparison.worst_percent:.1f} %",
                f"{within} of {len(pairs)} within {aim} %",
            )

    return table(("value and source", "error", "bias", "worst", "aim"), rows())


def single_table(values: list[PublishedValue]) -> str:
    """Return the table of the vendor's own values in FP8, one a row."""

    def rows() -> Iterator[tuple[str, ...]]:
        for published in values:
            if published.source.startswith("NVIDIA") and published.quantization == "fp8":
                ours, unit = predicted(published), UNITS[published.kind]
                yield (
                    published.name,
                    f"{significant(published.value)} {unit}",
                    f"{significant(ours)} {unit}",
                    f"{error_percent(published):+.0f} %",
                )

    return table(("TensorRT-LLM 0.5 and 0.6.1, FP8", "published", "predicted", "error"), rows())


def tables() -> dict[str, str]:
    """Return the computed tables of docs/prediction.md by their names."""
    values = measured()
    return {
        "comparisons": comparison_table(errors_of(values)),
        "single values": single_table(values),
    }


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
