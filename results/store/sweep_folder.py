"""The layout of results on disk.

    <sweep folder>/sweep.json               the plan, written before the first run
                   <run>/manifest.json      settings and results of one run, SHA-256 of its records
                   <run>/records.parquet    one record per request
                   <run>/predicted.parquet  for a predicted run of a real engine: the same requests
                                            as answered by the embedded engine

A run is written to a hidden folder and then renamed, so a reader never sees a part of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.results.store.manifest import (
    FORMAT,
    Document,
    RunManifest,
    StoredSweep,
    finite,
    parsed,
)
from harness.results.store.parquet import RecordTable, read_records, write_records
from harness.results.store.records import RequestRecord

SWEEP_FILE, MANIFEST_FILE, RECORDS_FILE = "sweep.json", "manifest.json", "records.parquet"
PREDICTED_FILE = "predicted.parquet"
_KEY_LENGTH = 12  # characters of a run's key in its folder name: 48 bits


class StoreError(Exception):
    """Stored results that cannot be written or read, for a reason that the user can fix."""


class StoredRun(NamedTuple):
    """One stored run."""

    manifest: RunManifest
    records: RecordTable
    predicted: RecordTable | None = None  # the same requests, predicted by the embedded engine


def create_sweep(directory: Path) -> Path:
    """Create the empty folder of a new sweep, and return it.

    Raises `StoreError` if the path exists, so that no sweep overwrites another.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError as cause:
        error = StoreError(f"{directory}: exists already; a sweep needs a new folder")
        error.add_note("choose another folder with --out, or move this one")
        raise error from cause
    except OSError as cause:
        raise _unwritable(directory, cause) from cause
    return directory


def run_folder(sweep_dir: Path, key: str) -> Path:
    """Return the folder for the run with this key; it may not exist."""
    return sweep_dir / key[:_KEY_LENGTH]


def write_run(
    sweep_dir: Path,
    key: str,
    manifest: RunManifest,
    records: Sequence[RequestRecord],
    predicted: Sequence[RequestRecord] | None = None,
) -> Path:
    """Store a run and its predicted records, and return its folder.

    A process killed in between leaves a hidden folder that readers ignore. Raises `StoreError` if
    the run exists already or the folder cannot be written.
    """
    folder = run_folder(sweep_dir, key)
    if folder.exists():
        raise StoreError(f"{folder}: this run is stored already; a run is never written twice")
    partial = sweep_dir / f".{folder.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_records(partial / RECORDS_FILE, records)
        own = {"key": key, "records_sha256": _sha256(partial / RECORDS_FILE)}
        if predicted is not None:
            write_records(partial / PREDICTED_FILE, predicted)
            own["predicted_sha256"] = _sha256(partial / PREDICTED_FILE)
        write_json(partial / MANIFEST_FILE, manifest.model_copy(update=own).model_dump())
        partial.rename(folder)
    except OSError as cause:
        raise _unwritable(folder, cause) from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # also after an interrupt
    return folder


def write_sweep(sweep_dir: Path, sweep: Mapping[str, Any]) -> Path:
    """Write the plan to `sweep.json`, and return its path."""
    return write_json(sweep_dir / SWEEP_FILE, {**sweep, "format": FORMAT})


def read_sweep(sweep_dir: Path) -> StoredSweep:
    """Return the plan of the sweep in this folder.

    Raises `StoreError` if the folder is missing, is not a sweep, or has another format.
    """
    if not sweep_dir.is_dir():
        error = StoreError(f"{sweep_dir}: no such folder; expected the folder of a sweep")
        error.add_note("`harness run` prints the path of its folder when it ends")
        raise error
    if not (sweep_dir / SWEEP_FILE).is_file():
        error = StoreError(f"{sweep_dir}: not the folder of a sweep: {SWEEP_FILE} is missing")
        if inside := sorted(path.parent.name for path in sweep_dir.glob(f"*/{SWEEP_FILE}")):
            error.add_note(f"sweeps inside it: {', '.join(inside)}")
        raise error
    return _read_document(sweep_dir / SWEEP_FILE, StoredSweep)


def read_runs(sweep_dir: Path) -> Iterator[StoredRun]:
    """Yield the stored runs of a sweep in the order of their folder names.

    Each run is read when it is needed, because it may contain millions of token times. Raises
    `StoreError` if a run has another format, unreadable files, or records with another SHA-256.
    """
    for path in sorted(sweep_dir.glob(f"*/{MANIFEST_FILE}")):
        if not path.parent.name.startswith("."):
            manifest = _read_document(path, RunManifest)
            digest = manifest.predicted_sha256
            yield StoredRun(
                manifest,
                _read_table(path.with_name(RECORDS_FILE), manifest.records_sha256),
                None if digest is None else _read_table(path.with_name(PREDICTED_FILE), digest),
            )


def write_json(path: Path, value: Any) -> Path:
    """Write `value` atomically as JSON with sorted keys, and return the path.

    NaN and infinity are not JSON and become null. Raises `StoreError` if the write fails.
    """
    text = json.dumps(finite(value), allow_nan=False, sort_keys=True, indent=1)
    return write_text(path, text + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write `text` atomically as UTF-8, and return the path; raise `StoreError`."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")  # names may not be UTF-8
        partial.replace(path)
    except OSError as cause:
        raise _unwritable(path, cause) from cause
    return path


def _read_document(path: Path, kind: type[Document]) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        if not isinstance(document, dict):
            raise _unreadable(path, "expected a JSON object")
        if document.get("format") != FORMAT:
            raise _other_format(path, document.get("format"))
        return parsed(kind, text)
    except RecursionError as cause:
        raise _unreadable(path, "nested too deeply for a stored run") from cause
    except (OSError, ValueError) as cause:
        raise _unreadable(path, str(cause)) from cause


def _read_table(path: Path, digest: str | None) -> RecordTable:
    try:
        if _sha256(path) != digest:
            raise _changed(path)
        return read_records(path)
    except (OSError, ValueError) as cause:  # pyarrow's errors are subclasses of these
        raise _unreadable(path, str(cause)) from cause


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(path: Path) -> StoreError:
    error = StoreError(
        f"{path}: not the records that this run wrote: their SHA-256 differs from "
        f"records_sha256 in {MANIFEST_FILE}"
    )
    error.add_note("restore the file, or move its folder out of the sweep to leave this run out")
    return error


def _other_format(path: Path, found: Any) -> StoreError:
    error = StoreError(f"{path}: format {found}, but this version reads format {FORMAT}")
    newer = isinstance(found, int) and found > FORMAT
    error.add_note(
        "upgrade the harness to read it" if newer else "read it with the version that wrote it"
    )
    return error


def _unreadable(path: Path, why: str) -> StoreError:
    error = StoreError(f"{path}: cannot be read: {why}")
    error.add_note("move its folder away to continue without it")
    return error


def _unwritable(path: Path, cause: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be written: {cause.strerror or cause}")
