"""Replay of a recorded trace: its lengths, its times and, with `hash_ids`, its prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from harness.workloads.base import Conversation, Drawn, Segment, Turn, WorkloadError
from harness.workloads.trace.formats import FORMATS, NANOSECONDS, TraceFormat
from harness.workloads.trace.lines import Fault
from harness.workloads.trace.notes import trace_notes
from harness.workloads.trace.prompts import row_prompts
from harness.workloads.trace.rows import TraceRow, TraceRows, read_rows, shrink

_NAMED_FAULTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReplay:
    """Requests of a trace file in time order, each a conversation of one turn.

    With `hash_ids`, each id is one text of `block_tokens` tokens, so prompts share the same
    prefixes as in the recording. Without `hash_ids`, each prompt is a unique text. The seed
    determines the texts; the file determines lengths and times.
    """

    name: str
    format: str  # one of `FORMATS`
    path: Path
    block_tokens: int | None = None  # tokens per id; None: the default of the format
    time_unit: str | None = None  # unit of a field named `timestamp`; None: the format's default
    over_length: Literal["skip", "refuse"] = "skip"  # rows longer than the context
    bad_rows: Literal["skip", "refuse"] = "refuse"  # lines that contain no valid request
    limit: int | None = None  # replay only the first `limit` usable rows, in time order

    def __post_init__(self) -> None:
        """Refuse unknown values, and options that the format does not have."""
        if self.format not in FORMATS:
            raise self._unknown_format()
        form = FORMATS[self.format]
        if self.block_tokens is not None and not form.has_blocks:
            raise WorkloadError(
                f"{self.name}: format {self.format} has no block_tokens; remove block_tokens"
            )
        if self.time_unit is not None and form.wall_time:
            raise WorkloadError(
                f"{self.name}: format {self.format} has wall-clock times and no time_unit; "
                "remove time_unit"
            )
        if self.time_unit is not None and self.time_unit not in NANOSECONDS:
            found = f"time_unit is {self.time_unit}, expected {' | '.join(NANOSECONDS)}"
            raise WorkloadError(f"{self.name}: {found}")
        for option in ("over_length", "bad_rows"):
            if getattr(self, option) not in ("skip", "refuse"):
                found = f"{option} is {getattr(self, option)}, expected skip | refuse"
                raise WorkloadError(f"{self.name}: {found}")
        for option in ("block_tokens", "limit"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise WorkloadError(f"{self.name}: {option} is {value}, expected at least 1")

    def draw(self, *, requests: int | None, seed: int, max_model_len: int) -> Drawn:
        """Return the first `requests` usable rows as conversations.

        With `requests` None, returns all usable rows, at most `limit`. Start times count from the
        first replayed row. `skipped` counts the bad lines of the whole file, and the over-length
        rows before the last replayed row. Rows are never repeated: raises `WorkloadError` when
        there are fewer than `requests`.
        """
        form = self._form()
        read = self._read(form)
        in_time = sorted(read.rows, key=lambda row: row.time_ns or 0)
        rows, too_long = self._usable(in_time, requests, max_model_len)
        if too_long and self.over_length == "refuse":
            raise self._refusal(_over_length(too_long, max_model_len), "over_length")
        skipped = Counter(fault.reason for fault in read.faults)
        if too_long:
            skipped["context_length"] = len(too_long)
        self._check_enough(len(rows), requests, skipped)
        prompts = row_prompts(rows, seed, form.block_tokens)
        return Drawn(
            conversations=_conversations(rows, prompts),
            skipped=dict(skipped),
            notes=(*trace_notes(read, rows, form), *self._shrink_notes(read)),
        )

    def replayable(self, max_model_len: int) -> int:
        """Return the largest number of requests that `draw` can return.

        This is the number of rows that fit, at most `limit`. Reads the file. Raises
        `WorkloadError` for bad lines unless `bad_rows` is `skip`.
        """
        in_time = sorted(self._read(self._form()).rows, key=lambda row: row.time_ns or 0)
        fit = [row.input_tokens + row.output_tokens <= max_model_len for row in in_time]
        if self.over_length == "refuse" and False in fit:  # `draw` refuses from the first one on
            fit = fit[: fit.index(False)]
        return min(sum(fit), self.limit or len(fit))

    def describe(self) -> str:
        """Describe the trace in one line, without reading the file."""
        form = self._form()
        blocks = f", {form.block_tokens}-token blocks" if form.block_tokens else ""
        limit = f", first {self.limit} rows" if self.limit else ""
        return f"{self.name}: trace {self.path.name} ({self.format}{blocks}){limit}"

    def _shrink_notes(self, read: TraceRows) -> tuple[str, ...]:
        if read.shrunk_from_tokens is None:
            return ()
        sizes = f"from {read.shrunk_from_tokens} to {self.block_tokens} tokens"
        return (f"{self.path.name}: prompts are shorter than recorded: blocks shrink {sizes}",)

    def _form(self) -> TraceFormat:
        """Return the format with this trace's options applied."""
        form = FORMATS[self.format]
        return replace(
            form,
            block_tokens=self.block_tokens or form.block_tokens,
            time_unit=self.time_unit or form.time_unit,
        )

    def _shrunk(self, read: TraceRows, form: TraceFormat) -> TraceRows:
        """Return `read`, or the rows with each block shrunk to `block_tokens`.

        Shrinks the blocks when the number of ids matches the prompt lengths at the format's own
        block size, but not at `block_tokens`. Long prompts then fit a small context and share the
        same blocks as before.
        """
        own, wanted = FORMATS[self.format].block_tokens, self.block_tokens
        if own is None or wanted is None or own == wanted or not _mismatched(read):
            return read
        whole = read_rows(self.path, replace(form, block_tokens=own))
        if _mismatched(whole):
            return read
        rows = [shrink(row, own, wanted) for row in whole.rows]
        return replace(whole, rows=rows, shrunk_from_tokens=own)

    def _read(self, form: TraceFormat) -> TraceRows:
        """Read the file. Raise `WorkloadError` for bad lines unless `bad_rows` is `skip`."""
        read = self._shrunk(read_rows(self.path, form), form)
        if read.faults and self.bad_rows == "refuse":
            error = self._refusal(read.faults, "bad_rows")
            if not read.rows:
                error.add_note(
                    f"if the format is not {self.format}, set format: {' | '.join(FORMATS)}"
                )
            raise error
        return read

    def _usable(
        self, rows: list[TraceRow], requests: int | None, max_model_len: int
    ) -> tuple[list[TraceRow], list[TraceRow]]:
        """Return the rows to replay, and the over-length rows before the last of them."""
        wanted = [bound for bound in (requests, self.limit, len(rows)) if bound is not None]
        taken: list[TraceRow] = []
        too_long: list[TraceRow] = []
        for row in rows:
            if len(taken) == min(wanted):
                break
            fit = row.input_tokens + row.output_tokens <= max_model_len
            (taken if fit else too_long).append(row)
        return taken, too_long

    def _check_enough(self, found: int, requests: int | None, skipped: Counter[str]) -> None:
        """Raise `WorkloadError` when no row is left, or fewer rows than `requests`."""
        counts = ", ".join(f"{reason} {count}" for reason, count in skipped.items())
        skipped_text = f" (skipped: {counts})" if counts else ""
        if requests is not None and requests < 1:
            raise WorkloadError(f"{self.name}: requests is {requests}, expected at least 1")
        if not found:
            error = WorkloadError(f"{self.path}: no row to replay{skipped_text}")
            if skipped["context_length"]:
                error.add_note(
                    f"{skipped['context_length']} rows are longer than the context; raise "
                    "max_model_len if model and memory allow it (under `base` in a sweep, "
                    "otherwise in the options of the server)"
                )
            elif skipped:
                error.add_note("fix the file: no line contains a valid request")
            raise error
        if requests is not None and found < requests:
            limit = f", limit {self.limit}" if self.limit else ""
            error = WorkloadError(
                f"{self.path}: requests is {requests}, "
                f"but the trace has only {found} rows to replay{limit}{skipped_text}"
            )
            error.add_note(
                f"set requests to at most {found}; rows are never repeated, because a repeated "
                "prompt would be a full prefix cache hit"
            )
            raise error

    def _unknown_format(self) -> WorkloadError:
        """Return the error for an unknown format."""
        error = WorkloadError(
            f"{self.name}: format is {self.format}, expected {' | '.join(FORMATS)}"
        )
        near = get_close_matches(self.format, FORMATS, n=1)
        if near:
            error.add_note(f"did you mean {near[0]}?")
        return error

    def _refusal(self, faults: Sequence[Fault], option: str) -> WorkloadError:
        """Return one error with the first faults and the option that skips such rows."""
        named = "; ".join(str(fault) for fault in faults[:_NAMED_FAULTS])
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        error = WorkloadError(f"{self.path}: {named}{more}")
        line = f"--{option.replace('_', '-')} skip"
        error.add_note(
            "fix the file, or skip and count such rows: "
            f"`{option}: skip` in a sweep, `{line}` for harness load"
        )
        return error


def _over_length(rows: Sequence[TraceRow], max_model_len: int) -> list[Fault]:
    """Return a fault for each row that is longer than the context."""
    return [
        Fault(
            line=row.line,
            reason="context_length",
            message=f"input {row.input_tokens} + output {row.output_tokens} tokens "
            f"exceed max_model_len {max_model_len}",
        )
        for row in sorted(rows, key=lambda row: row.line)
    ]


def _conversations(
    rows: Sequence[TraceRow], prompts: Sequence[tuple[Segment, ...]]
) -> tuple[Conversation, ...]:
    """Return rows as conversations. Start times count from the first row."""
    origin_ns = rows[0].time_ns
    return tuple(
        Conversation(
            conversation_id=f"line-{row.line}",
            turns=(Turn(prompt=prompt, output_tokens=row.output_tokens),),
            start_ns=None if row.time_ns is None or origin_ns is None else row.time_ns - origin_ns,
        )
        for row, prompt in zip(rows, prompts, strict=True)
    )


def _mismatched(read: TraceRows) -> bool:
    return any(fault.reason == "blocks_mismatch" for fault in read.faults)
