"""The forms in which traces are published: one entry a form, read by `trace_rows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

# A field of one of these names contains its unit, whatever `time_unit` is.
UNIT_IN_NAME = {f"timestamp_{unit}": unit for unit in NANOSECONDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """Where one form keeps time and lengths. Of a field's several names the first found is it."""

    lines: Literal["json", "csv"]
    time_fields: tuple[str, ...]
    input_fields: tuple[str, ...]
    output_fields: tuple[str, ...]
    wall_time: bool = False  # a date and a time of day; else a number
    time_needed: bool = True  # else a file without any times is good: lengths only
    time_unit: str | None = None  # of a plain `timestamp`; None: the file's owner must say
    has_blocks: bool = False  # `hash_ids` may tell shared prefixes
    marks: tuple[str, ...] = ()  # fields by which this form is recognized
    block_tokens: int | None = None  # tokens an id; None: the file's owner must say

    @property
    def needed_fields(self) -> tuple[tuple[str, ...], ...]:
        """The fields that a row cannot do without, each under its several names."""
        times = (self.time_fields,) if self.time_needed else ()
        return (*times, self.input_fields, self.output_fields)

    @property
    def columns(self) -> str:
        """The fields in words, for whoever has to write such a file."""
        needed = ", ".join(" or ".join(names) for names in self.needed_fields)
        times = "" if self.time_needed else f"; with times also {' or '.join(self.time_fields)}"
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
    # one's own log, with as much as it has
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
    # alibaba-edu/qwen-bailian-usagetraces-anon: like Mooncake's, in seconds and in smaller blocks
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
