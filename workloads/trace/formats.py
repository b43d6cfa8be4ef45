"""The formats of published traces: one entry for each format, read by `rows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

# The unit in a field name has priority over `time_unit`.
UNIT_IN_NAME = {f"timestamp_{unit}": unit for unit in NANOSECONDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """The fields of one trace format. If a field has several names, the first one found is used."""

    lines: Literal["json", "csv"]
    time_fields: tuple[str, ...]
    input_fields: tuple[str, ...]
    output_fields: tuple[str, ...]
    wall_time: bool = False  # True: date and time of day; False: a number
    time_needed: bool = True  # False: a file with lengths and no times is valid
    time_unit: str | None = None  # unit of a plain `timestamp`; None: the user must set it
    has_blocks: bool = False  # rows may have `hash_ids`, which describe shared prefixes
    marks: tuple[str, ...] = ()  # additional fields that identify this format
    block_tokens: int | None = None  # tokens per id; None: the user must set it

    @property
    def needed_fields(self) -> tuple[tuple[str, ...], ...]:
        """The required fields of a row, each as a tuple of its possible names."""
        times = (self.time_fields,) if self.time_needed else ()
        return (*times, self.input_fields, self.output_fields)

    @property
    def columns(self) -> str:
        """The required and optional fields as text, for error messages."""
        needed = ", ".join(" or ".join(names) for names in self.needed_fields)
        times = "" if self.time_needed else f"; optional: {' or '.join(self.time_fields)}"
        unit = "" if self.wall_time or self.time_unit else " (timestamp needs time_unit)"
        return f"{needed}{times}{unit}"


_OWN_TIMES = ("timestamp", *UNIT_IN_NAME)
_OWN_INPUTS = ("input_length", "input_tokens")
_OWN_OUTPUTS = ("output_length", "output_tokens")

FORMATS: dict[str, TraceFormat] = {
    # kvcache-ai/Mooncake, FAST25-release/traces
    "mooncake": TraceFormat(
        lines="json",
        time_fields=_OWN_TIMES,
        input_fields=("input_length",),
        output_fields=("output_length",),
        time_unit="ms",
        has_blocks=True,
        block_tokens=512,
    ),
    # Azure/AzurePublicDataset, AzureLLMInferenceTrace_*.csv
    "azure": TraceFormat(
        lines="csv",
        time_fields=("TIMESTAMP",),
        input_fields=("ContextTokens",),
        output_fields=("GeneratedTokens",),
        wall_time=True,
    ),
    # the user's own logs; times are optional
    "jsonl": TraceFormat(
        lines="json",
        time_fields=_OWN_TIMES,
        input_fields=_OWN_INPUTS,
        output_fields=_OWN_OUTPUTS,
        time_needed=False,
        has_blocks=True,
    ),
    "csv": TraceFormat(
        lines="csv",
        time_fields=_OWN_TIMES,
        input_fields=_OWN_INPUTS,
        output_fields=_OWN_OUTPUTS,
        time_needed=False,
    ),
    # alibaba-edu/qwen-bailian-usagetraces-anon: Mooncake's fields, times in s, smaller blocks
    "bailian": TraceFormat(
        lines="json",
        time_fields=_OWN_TIMES,
        input_fields=("input_length",),
        output_fields=("output_length",),
        time_unit="s",
        has_blocks=True,
        marks=("chat_id", "parent_chat_id"),
        block_tokens=16,
    ),
}
