"""The folder of a sweep: records and manifests, written and read."""

from harness.results.store.parquet import RecordTable, table_of
from harness.results.store.records import UNBELIEVED, RequestRecord
from harness.results.store.sweep_folder import (
    FORMAT,
    StoredRun,
    StoreError,
    create_sweep,
    finite,
    read_runs,
    read_sweep,
    run_folder,
    write_json,
    write_run,
    write_sweep,
    write_text,
)

__all__ = [
    "FORMAT",
    "UNBELIEVED",
    "RecordTable",
    "RequestRecord",
    "StoreError",
    "StoredRun",
    "create_sweep",
    "finite",
    "read_runs",
    "read_sweep",
    "run_folder",
    "table_of",
    "write_json",
    "write_run",
    "write_sweep",
    "write_text",
]
