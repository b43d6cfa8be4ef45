"""The only place that knows where results lie on disk, and in which format.

    <sweep folder>/sweep.json            what was planned, written before the first run
                   <run>/manifest.json   what one run was and did, and the SHA-256 of its records
                   <run>/records.parquet what was seen of each of its requests
                   <run>/predicted.parquet  of a real engine's run, where it was predicted: the same
                                         requests as the embedded engine would have answered them

A run appears whole or not at all: it is written beside its place and then renamed.
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
_KEY_LENGTH = 12  # of a run's key in its folder's name: 48 bits, plenty within one sweep


class StoreError(Exception):
    """Stored results that cannot be written or read, for a reason the user can mend."""


class StoredRun(NamedTuple):
    """One run as it was stored."""

    manifest: RunManifest
    records: RecordTable
    predicted: RecordTable | None = None  # the same requests on the embedded engine


def create_sweep(directory: Path) -> Path:
    """Create the empty folder of a new sweep, and return it.

    Raises `StoreError` where something of that name exists: a second sweep never overwrites a
    first.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError as cause:
        error = StoreError(f"{directory}: exists already; a sweep needs a new folder")
        error.add_note("name another one with --out, or move this one away")
        raise error from cause
    except OSError as cause:
        raise _unwritable(directory, cause) from cause
    return directory


def run_folder(sweep_dir: Path, key: str) -> Path:
    """Return where the run of this key is stored, whether or not it is there."""
    return sweep_dir / key[:_KEY_LENGTH]


def write_run(
    sweep_dir: Path,
    key: str,
    manifest: RunManifest,
    records: Sequence[RequestRecord],
    predicted: Sequence[RequestRecord] | None = None,
) -> Path:
    """Store a run and its predicted records, and return its folder.

    A process killed in between leaves a hidden folder that no reader looks at. Raises
    `StoreError` when the run exists already or the disk refuses.
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
        shutil.rmtree(partial, ignore_errors=True)  # an interrupt leaves nothing half done
    return folder


def write_sweep(sweep_dir: Path, sweep: Mapping[str, Any]) -> Path:
    """Write `sweep.json`, what was planned, and return its path."""
    return write_json(sweep_dir / SWEEP_FILE, {**sweep, "format": FORMAT})


def read_sweep(sweep_dir: Path) -> StoredSweep:
    """Return what was planned for the sweep in this folder.

    Raises `StoreError` for a folder that is missing, holds no sweep, or one of another format.
    """
    if not sweep_dir.is_dir():
        error = StoreError(f"{sweep_dir}: no such folder; expected the folder of a sweep")
        error.add_note("`harness run` prints the folder that it wrote at its end")
        raise error
    if not (sweep_dir / SWEEP_FILE).is_file():
        error = StoreError(f"{sweep_dir}: not the folder of a sweep: it holds no {SWEEP_FILE}")
        if inside := sorted(path.parent.name for path in sweep_dir.glob(f"*/{SWEEP_FILE}")):
            error.add_note(f"sweeps inside it: {', '.join(inside)}")
        raise error
    return _read_document(sweep_dir / SWEEP_FILE, StoredSweep)


def read_runs(sweep_dir: Path) -> Iterator[StoredRun]:
    """Yield the stored runs of a sweep one by one, in the order of their folders' names.

    Lazily, since a run may hold millions of token times. Raises `StoreError` for a run of another
    format, with unreadable files, or with records that are not those that the run wrote.
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
    """Write `value` as JSON with sorted keys, whole or not at all, and return the path.

    NaN and infinity are no JSON and become null. Raises `StoreError` when the disk refuses.
    """
    text = json.dumps(finite(value), allow_nan=False, sort_keys=True, indent=1)
    return write_text(path, text + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write `text` as UTF-8, whole or not at all, and return the path; raises `StoreError`."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")  # of names that are not UTF-8
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
    except (OSError, ValueError) as cause:  # pyarrow's own errors are kinds of these
        raise _unreadable(path, str(cause)) from cause


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed(path: Path) -> StoreError:
    error = StoreError(
        f"{path}: not the records that this run wrote: their SHA-256 differs from "
        f"records_sha256 in {MANIFEST_FILE}"
    )
    error.add_note("put the file of that run back, or move its folder away to go on without it")
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
    error.add_note("move the folder that holds it away to go on without it")
    return error


def _unwritable(path: Path, cause: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be written: {cause.strerror or cause}")
