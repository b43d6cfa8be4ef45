from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_runs import known_record, steady_records

from harness.results.store.parquet import (
    SCHEMA,
    RecordTable,
    read_records,
    table_of,
    to_records,
    write_records,
)
from harness.results.store.records import RequestRecord

_TIMES = st.integers(min_value=0, max_value=2**62)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_COUNTS = st.integers(min_value=0, max_value=2**40)
_EVENTS = st.lists(st.tuples(_TIMES, st.integers(min_value=1, max_value=9)), max_size=5).map(
    lambda events: np.array(events, np.int64).reshape(-1, 2)
)
_RECORDS = st.builds(
    RequestRecord,
    request_id=_TEXTS,
    response_id=st.none() | _TEXTS,
    conversation=_TEXTS,
    turn=_COUNTS,
    scheduled_ns=_TIMES,
    sent_ns=st.none() | _TIMES,
    first_byte_ns=st.none() | _TIMES,
    token_events=_EVENTS,
    closed_ns=_TIMES,
    connect_ns=st.none() | _TIMES,
    prompt_tokens=st.none() | _COUNTS,
    cached_prompt_tokens=st.none() | _COUNTS,
    output_tokens=st.none() | _COUNTS,
    output_tokens_source=st.none() | st.sampled_from(["usage", "client"]),
    asked_tokens=_COUNTS,
    finish_reason=st.none() | _TEXTS,
    error_kind=st.none() | _TEXTS,
    error=st.none() | _TEXTS,
)


def _plain(record: RequestRecord) -> dict[str, Any]:
    """Return the fields with lists instead of numpy arrays, which cannot be compared."""
    plain = {field.name: getattr(record, field.name) for field in fields(record)}
    return {**plain, "token_events": record.token_events.tolist()}


@settings(max_examples=60, deadline=None)
@given(st.lists(_RECORDS, max_size=6))
def test_records_survive_the_file_unchanged(records: list[RequestRecord]) -> None:
    """Reading returns what was written, with absent values and nanoseconds above 2^53."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.parquet"
        write_records(path, records)
        back = to_records(read_records(path))

    assert [_plain(record) for record in back] == [_plain(record) for record in records]
    assert all(record.token_events.dtype == np.int64 for record in back)


COLUMNS = """
request_id response_id conversation turn scheduled_ns sent_ns first_byte_ns token_events closed_ns
connect_ns prompt_tokens cached_prompt_tokens output_tokens output_tokens_source asked_tokens
finish_reason error_kind error
"""


def test_columns_are_those_of_the_standard(tmp_path: Path) -> None:
    """The file has the columns of the metrics standard, in its order, compressed with zstd."""
    path = tmp_path / "records.parquet"

    write_records(path, [known_record(0, [(5, 2)])])

    file = pq.ParquetFile(path)
    events = file.read().column("token_events").to_pylist()
    group = file.metadata.row_group(0)
    assert file.schema_arrow.names == COLUMNS.split()
    assert events == [[{"time_ns": 5_000_000, "tokens": 2}]]
    assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}


def test_schema_covers_every_field_of_the_record() -> None:
    """The file has a column for every field of the record."""
    assert set(SCHEMA.names) == {field.name for field in fields(RequestRecord)}


def test_flat_events_of_each_request_lie_between_its_offsets() -> None:
    """Requests without events do not shift the events of other requests."""
    records = [
        known_record(0),
        known_record(1, [(1, 1), (2, 3)]),
        known_record(2),
        known_record(3, [(7, 2)]),
        known_record(4),
    ]

    table = table_of(records)

    assert table.offsets.tolist() == [0, 0, 2, 2, 3, 3]
    assert table.event_time_ns.tolist() == [1_000_000, 2_000_000, 7_000_000]
    assert table.event_tokens.tolist() == [1, 3, 2]


def test_a_table_made_in_memory_equals_the_stored_one(tmp_path: Path) -> None:
    """A table of records in memory equals the table that is read from the file."""
    records = steady_records(3, 4)
    write_records(tmp_path / "r.parquet", records)

    def content(table: RecordTable) -> tuple[Any, ...]:
        events = table.offsets.tolist(), table.event_time_ns.tolist(), table.event_tokens.tolist()
        return (*events, [_plain(record) for record in to_records(table)])

    assert content(table_of(records)) == content(read_records(tmp_path / "r.parquet"))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    """A Parquet file with other columns raises an error."""
    path = tmp_path / "records.parquet"
    write_records(path, [known_record(0)])
    table = pq.ParquetFile(path).read().drop_columns(["error"])
    pq.write_table(table, path)

    with pytest.raises(ValueError, match="has columns"):
        read_records(path)
