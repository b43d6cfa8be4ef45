"""Conversion of records to Parquet columns and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.results.store.records import RequestRecord

_EVENT_FIELDS = [
    pa.field("time_ns", pa.int64(), nullable=False),
    pa.field("tokens", pa.int64(), nullable=False),
]
_EVENTS = pa.list_(pa.field("element", pa.struct(_EVENT_FIELDS), nullable=False))


def _column(name: str, kind: Any, *, optional: bool = False) -> Any:
    return pa.field(name, kind, nullable=optional)


SCHEMA = pa.schema(
    [
        _column("request_id", pa.string()),
        _column("response_id", pa.string(), optional=True),
        _column("conversation", pa.string()),
        _column("turn", pa.int64()),
        _column("scheduled_ns", pa.int64()),
        _column("sent_ns", pa.int64(), optional=True),
        _column("first_byte_ns", pa.int64(), optional=True),
        _column("token_events", _EVENTS),
        _column("closed_ns", pa.int64()),
        _column("connect_ns", pa.int64(), optional=True),
        _column("prompt_tokens", pa.int64(), optional=True),
        _column("cached_prompt_tokens", pa.int64(), optional=True),
        _column("output_tokens", pa.int64(), optional=True),
        _column("output_tokens_source", pa.string(), optional=True),
        _column("asked_tokens", pa.int64()),
        _column("finish_reason", pa.string(), optional=True),
        _column("error_kind", pa.string(), optional=True),
        _column("error", pa.string(), optional=True),
    ]
)
_PLAIN = [name for name in SCHEMA.names if name != "token_events"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordTable:
    """All requests of one run as columns, the input of every metric.

    The token events of request i are entries `offsets[i]:offsets[i + 1]` of the two flat arrays.
    """

    columns: pd.DataFrame  # one row per request: every field of the record except `token_events`
    offsets: NDArray[np.int64]  # shape (requests + 1,), first entry 0
    event_time_ns: NDArray[np.int64]  # shape (events,)
    event_tokens: NDArray[np.int64]  # shape (events,)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.columns)


def table_of(records: Sequence[RequestRecord]) -> RecordTable:
    """Return the columns of `records`, equal to those that `read_records` returns."""
    return _from_arrow(_to_arrow(records))


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write `records` as one Parquet file.

    Times are stored as differences, because they increase. A dictionary would repeat the column.
    """
    times, tokens = (f"token_events.list.element.{name}" for name in ("time_ns", "tokens"))
    pq.write_table(
        _to_arrow(records),
        path,
        compression="zstd",
        use_dictionary=[*(name for name in _PLAIN if not name.endswith("_ns")), tokens],
        column_encoding={times: "DELTA_BINARY_PACKED"},
    )


def read_records(path: Path) -> RecordTable:
    """Return the columns stored in `path`.

    Raises `ValueError` if the file is not Parquet or has other columns, and `OSError` if it cannot
    be read.
    """
    table = pq.ParquetFile(path).read()
    if not table.schema.equals(SCHEMA):
        raise ValueError(f"has columns {table.schema.names}, expected {SCHEMA.names} of format 1")
    return _from_arrow(table)


def to_records(table: RecordTable) -> list[RequestRecord]:
    """Convert a table back into records."""
    events = np.stack([table.event_time_ns, table.event_tokens], axis=1)
    columns = table.columns.astype(object)
    rows = columns.where(columns.notna(), None).to_dict(orient="records")
    return [
        RequestRecord(**{str(name): value for name, value in row.items()}, token_events=own)
        for row, own in zip(rows, np.split(events, table.offsets[1:-1]), strict=False)
    ]


def _to_arrow(records: Sequence[RequestRecord]) -> Any:
    rows = map(attrgetter(*_PLAIN), records)
    values = list(zip(*rows, strict=True)) or [()] * len(_PLAIN)
    plain = {
        name: pa.array(column, SCHEMA.field(name).type)
        for name, column in zip(_PLAIN, values, strict=True)
    }
    counts = [len(record.token_events) for record in records]
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int32)
    events = pa.StructArray.from_arrays(
        [pa.array(_flat(records, column)) for column in (0, 1)], fields=_EVENT_FIELDS
    )
    plain["token_events"] = pa.ListArray.from_arrays(pa.array(offsets), events, type=_EVENTS)
    return pa.table([plain[name] for name in SCHEMA.names], schema=SCHEMA)


def _flat(records: Sequence[RequestRecord], column: int) -> NDArray[np.int64]:
    """Return one column of all token events, shape (events,)."""
    pieces = [record.token_events[:, column] for record in records]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _from_arrow(table: Any) -> RecordTable:
    events = table.column("token_events").combine_chunks()
    flat = events.flatten()
    return RecordTable(
        columns=table.select(_PLAIN).to_pandas(types_mapper=_pandas_type),
        offsets=events.offsets.to_numpy().astype(np.int64),
        event_time_ns=flat.field("time_ns").to_numpy(),
        event_tokens=flat.field("tokens").to_numpy(),
    )


def _pandas_type(kind: Any) -> Any:
    """Return the pandas type with absent values; without it, integers become floats."""
    return pd.Int64Dtype() if pa.types.is_integer(kind) else None
