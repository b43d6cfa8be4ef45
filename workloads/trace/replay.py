"""Replay of a recorded trace: its lengths, its times and, where it tells them, its prefixes."""

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
    """Requests of a trace file in the order of their times, each a conversation of one turn.

    With `hash_ids`, one id is one text of `block_tokens` tokens, so that prompts share what they
    shared when they were recorded. Without, each prompt is a text of its own. The seed gives the
    texts; lengths and times are the file's.
    """

    name: str
    format: str  # one of `FORMATS`
    path: Path
    block_tokens: int | None = None  # tokens an id stands for; None: the format's own size
    time_unit: str | None = None  # of a field named `timestamp`; None: the format's own
    over_length: Literal["skip", "refuse"] = "skip"  # rows longer than the context
    bad_rows: Literal["skip", "refuse"] = "refuse"  # lines that hold no request
    limit: int | None = None  # replay the first so many usable rows, in the order of time

    def __post_init__(self) -> None:
        """Refuse options that the format does not have."""
        if self.format not in FORMATS:
            raise self._unknown_format()
        form = FORMATS[self.format]
        if self.block_tokens is not None and not form.has_blocks:
            raise WorkloadError(f"{self.name}: format {self.format} has no block_tokens")
        if self.time_unit is not None and form.wall_time:
            raise WorkloadError(f"{self.name}: format {self.format} has no time_unit: wall time")
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
        """Return the first `requests` usable rows as conversations; all (or `limit`) if None.

        Start times count from the first row replayed. Rows left out are counted: bad lines of the
        whole file, over-long rows up to the last row replayed. Rows are never repeated: raises
        `WorkloadError` when there are fewer than `requests`.
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
        """Return how many requests `draw` can give at most: rows that fit, `limit` at most.

        Reads the file. Raises `WorkloadError` for bad lines that are not to be skipped.
        """
        in_time = sorted(self._read(self._form()).rows, key=lambda row: row.time_ns or 0)
        fit = [row.input_tokens + row.output_tokens <= max_model_len for row in in_time]
        if self.over_length == "refuse" and False in fit:  # none is drawn beyond the first of them
            fit = fit[: fit.index(False)]
        return min(sum(fit), self.limit or len(fit))

    def describe(self) -> str:
        """Return what is replayed, on one line; the file is not read."""
        form = self._form()
        blocks = f", {form.block_tokens}-token blocks" if form.block_tokens else ""
        limit = f", first {self.limit} rows" if self.limit else ""
        return f"{self.name}: trace {self.path.name} ({self.format}{blocks}){limit}"

    def _shrink_notes(self, read: TraceRows) -> tuple[str, ...]:
        if read.shrunk_from_tokens is None:
            return ()
        sizes = f"each block of {read.shrunk_from_tokens} tokens is one of {self.block_tokens} here"
        return (f"{self.path.name}: prompts are shrunk: {sizes}",)

    def _form(self) -> TraceFormat:
        """Return the format with this trace's own options."""
        form = FORMATS[self.format]
        return replace(
            form,
            block_tokens=self.block_tokens or form.block_tokens,
            time_unit=self.time_unit or form.time_unit,
        )

    def _shrunk(self, read: TraceRows, form: TraceFormat) -> TraceRows:
        """Return `read`, or the file's rows with each of its blocks shrunk to `block_tokens`.

        Shrunk where the ids do not fit the lengths at `block_tokens`, and all do at the format's
        own size: so that long prompts fit a small context, and share what they shared.
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
        """Return what the file holds; refuse its bad lines unless they are to be skipped."""
        read = self._shrunk(read_rows(self.path, form), form)
        if read.faults and self.bad_rows == "refuse":
            error = self._refusal(read.faults, "bad_rows")
            if not read.rows:
                found = f"or is the format not {self.format}? there are {' | '.join(FORMATS)}"
                error.add_note(found)
            raise error
        return read

    def _usable(
        self, rows: list[TraceRow], requests: int | None, max_model_len: int
    ) -> tuple[list[TraceRow], list[TraceRow]]:
        """Return the rows to replay, and those before the last of them that are too long."""
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
        """Raise `WorkloadError` where no row is left, or fewer than requested."""
        left_out = ", ".join(f"{reason} {count}" for reason, count in skipped.items())
        because = f" (left out: {left_out})" if left_out else ""
        if requests is not None and requests < 1:
            raise WorkloadError(f"{self.name}: {requests} requests asked for, expected at least 1")
        if not found:
            error = WorkloadError(f"{self.path}: no row to replay{because}")
            if skipped["context_length"]:
                error.add_note(
                    f"{skipped['context_length']} rows are longer than the context: raise it "
                    "(`max_model_len` under `base` in a sweep, else the server's own), if the "
                    "model and the memory can take it"
                )
            elif skipped:
                error.add_note("mend the file: no line of it is a request")
            raise error
        if requests is not None and found < requests:
            limit = f", limit {self.limit}" if self.limit else ""
            error = WorkloadError(
                f"{self.path}: {requests} requests asked for, "
                f"but only {found} rows to replay{limit}{because}"
            )
            error.add_note(
                f"ask for at most {found} requests: repeated rows would be found whole in the "
                "prefix cache, so none is repeated"
            )
            raise error

    def _unknown_format(self) -> WorkloadError:
        """Return the error for a format that is in no table."""
        error = WorkloadError(
            f"{self.name}: format is {self.format}, expected {' | '.join(FORMATS)}"
        )
        near = get_close_matches(self.format, FORMATS, n=1)
        if near:
            error.add_note(f"did you mean {near[0]}?")
        return error

    def _refusal(self, faults: Sequence[Fault], option: str) -> WorkloadError:
        """Return one error that names the first faults, and the option that leaves them out."""
        named = "; ".join(str(fault) for fault in faults[:_NAMED_FAULTS])
        more = f"; and {len(faults) - _NAMED_FAULTS} more" if len(faults) > _NAMED_FAULTS else ""
        error = WorkloadError(f"{self.path}: {named}{more}")
        line = f"--{option.replace('_', '-')} skip"
        error.add_note(
            "mend the file, or leave such rows out and have them counted: "
            f"`{option}: skip` in a sweep, `{line}` of harness load"
        )
        return error


def _over_length(rows: Sequence[TraceRow], max_model_len: int) -> list[Fault]:
    """Return what is wrong with rows longer than the context."""
    return [
        Fault(
            line=row.line,
            reason="context_length",
            message=f"input {row.input_tokens} + output {row.output_tokens} tokens "
            f"are more than max_model_len {max_model_len}",
        )
        for row in sorted(rows, key=lambda row: row.line)
    ]


def _conversations(
    rows: Sequence[TraceRow], prompts: Sequence[tuple[Segment, ...]]
) -> tuple[Conversation, ...]:
    """Return rows in the order of time as conversations, their times counted from the first."""
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
