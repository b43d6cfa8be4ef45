from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_runs import known_manifest, manifest_facts, steady_records

from harness.results.store import sweep_folder as store
from harness.results.store.sweep_folder import (
    StoreError,
    create_sweep,
    read_runs,
    read_sweep,
    run_folder,
    write_json,
    write_run,
    write_sweep,
)

SWEEP: dict[str, Any] = {
    "name": "s",
    "created": "2026-01-05T10:11:12+00:00",
    "model": "m",
    "hardware": {"gpu": "a100-80gb", "count": 4},
    "seed": 0,
    "planned": [],
}


@pytest.fixture
def sweep_dir(tmp_path: Path) -> Path:
    """An empty sweep."""
    directory = create_sweep(tmp_path / "runs" / "s")
    write_sweep(directory, SWEEP)
    return directory


def test_a_second_sweep_never_overwrites_a_first(sweep_dir: Path) -> None:
    """An existing folder raises an error with a remedy and is not changed."""
    before = (sweep_dir / "sweep.json").read_bytes()

    with pytest.raises(StoreError, match="exists already") as caught:
        create_sweep(sweep_dir)

    assert "--out" in caught.value.__notes__[0]
    assert (sweep_dir / "sweep.json").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    """If a parent is a file, the error names the path, without a traceback."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreError, match="cannot be written"):
        create_sweep(tmp_path / "file" / "sweep")


def test_a_run_comes_back_as_it_was_written(sweep_dir: Path) -> None:
    """Reading returns the manifest and records that were written; no other file is left."""
    key = known_manifest().key

    folder = write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))

    assert folder == run_folder(sweep_dir, key) == sweep_dir / key[:12]
    (run,) = read_runs(sweep_dir)
    assert run.manifest.records_sha256 is not None
    assert run.manifest.model_copy(update={"records_sha256": None}) == known_manifest()
    assert len(run.records) == 6
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "records.parquet"]
    assert sorted(path.name for path in sweep_dir.iterdir()) == [key[:12], "sweep.json"]


def test_a_run_without_requests_can_be_stored(sweep_dir: Path) -> None:
    """A run that failed before its first request keeps its manifest and reason."""
    manifest = known_manifest(status="failed", reason="the engine died")

    write_run(sweep_dir, manifest.key, manifest, [])

    (run,) = read_runs(sweep_dir)
    assert run.manifest.reason == "the engine died"
    assert len(run.records) == 0


def test_a_run_is_never_written_twice(sweep_dir: Path) -> None:
    """Writing a stored run again raises an error."""
    key = known_manifest().key
    write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))

    with pytest.raises(StoreError, match="stored already"):
        write_run(sweep_dir, key, known_manifest(), [])

    (run,) = read_runs(sweep_dir)
    assert len(run.records) == 6


@pytest.mark.parametrize("moment", ["write_json", "rename"])
def test_a_killed_writer_leaves_no_half_run(
    sweep_dir: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Readers ignore an interrupted write, and the run can be written again."""
    key = known_manifest().key

    def die(*_: object) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store if moment == "write_json" else Path, moment, die)
        with pytest.raises(KeyboardInterrupt):
            write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))
    assert [path.name for path in sweep_dir.iterdir()] == ["sweep.json"]  # and nothing half done
    assert list(read_runs(sweep_dir)) == []

    write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))
    assert [run.manifest.key for run in read_runs(sweep_dir)] == [key]
    assert len(list(sweep_dir.iterdir())) == 2


def test_the_partial_folder_of_a_killed_process_is_ignored(sweep_dir: Path) -> None:
    """Readers ignore the folder of a killed process, and a writer replaces it."""
    key = known_manifest().key
    folder = write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))
    folder.rename(sweep_dir / f".{folder.name}.partial")

    assert list(read_runs(sweep_dir)) == []
    write_run(sweep_dir, key, known_manifest(), steady_records(2, 3))

    assert [run.manifest.key for run in read_runs(sweep_dir)] == [key]
    assert len(list(sweep_dir.iterdir())) == 2


def test_runs_are_read_one_at_a_time(sweep_dir: Path) -> None:
    """A run is read only when it is needed, so a large sweep needs the memory of one run."""
    for first in "ab":
        key = first * 16
        write_run(sweep_dir, key, known_manifest(key=key), steady_records(2, 3))
    (run_folder(sweep_dir, "b" * 16) / "records.parquet").write_bytes(b"broken")

    runs = read_runs(sweep_dir)

    assert next(runs).manifest.key == "a" * 16
    with pytest.raises(StoreError, match=r"b{12}/records\.parquet: not the records that"):
        next(runs)


def test_records_that_are_not_the_run_s_own_are_refused(sweep_dir: Path) -> None:
    """Readable records of another run raise an error with both SHA-256 sources and a remedy."""
    for first in "ab":
        key = first * 16
        write_run(sweep_dir, key, known_manifest(key=key), steady_records(2, 3 + (first == "b")))
    other = (run_folder(sweep_dir, "b" * 16) / "records.parquet").read_bytes()
    (run_folder(sweep_dir, "a" * 16) / "records.parquet").write_bytes(other)

    with pytest.raises(StoreError, match="SHA-256 differs from records_sha256") as caught:
        next(read_runs(sweep_dir))

    assert "restore the file" in caught.value.__notes__[0]


def test_records_that_cannot_be_read_are_an_error(sweep_dir: Path) -> None:
    """A file that is not Parquet raises an error with its path, even if its SHA-256 is right."""
    folder = write_run(sweep_dir, "a" * 16, known_manifest(), steady_records(2, 3))
    (folder / "records.parquet").write_bytes(b"broken")
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(b"broken").hexdigest()
    write_json(folder / "manifest.json", {**manifest, "records_sha256": digest})

    with pytest.raises(StoreError, match=r"records\.parquet: cannot be read"):
        next(read_runs(sweep_dir))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A missing folder is not read as an empty sweep."""
    with pytest.raises(StoreError, match=r"absent: no such folder") as caught:
        read_sweep(tmp_path / "absent")

    assert "harness run" in caught.value.__notes__[0]


def test_the_parent_folder_lists_its_sweeps(sweep_dir: Path) -> None:
    """If the user gives the parent folder, the error lists the sweeps inside it."""
    with pytest.raises(StoreError, match="not the folder of a sweep") as caught:
        read_sweep(sweep_dir.parent)

    assert caught.value.__notes__ == ["sweeps inside it: s"]


@pytest.mark.parametrize(
    ("found", "advice"), [(2, "upgrade"), (0, "version that wrote"), (None, "")]
)
def test_another_format_is_an_error_with_a_remedy(
    sweep_dir: Path, found: int | None, advice: str
) -> None:
    """The remedy is an upgrade for a newer format, and the old version for an older one."""
    write_json(sweep_dir / "sweep.json", {**SWEEP, "format": found})

    with pytest.raises(StoreError, match=f"format {found}, but this version reads format 1") as why:
        read_sweep(sweep_dir)

    assert advice in why.value.__notes__[0]


def test_a_run_of_another_format_is_refused(sweep_dir: Path) -> None:
    """A manifest with a later format raises an error."""
    folder = write_run(sweep_dir, "k" * 12, known_manifest(), [])
    write_json(folder / "manifest.json", manifest_facts(format=7))

    with pytest.raises(StoreError, match=r"manifest\.json: format 7"):
        list(read_runs(sweep_dir))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "cannot be read"), ("[1]", "JSON object"), ('{"format": 1}', "missing name, created")],
)
def test_a_damaged_sweep_file_is_an_error(sweep_dir: Path, text: str, complaint: str) -> None:
    """Truncated JSON, JSON of another type and missing keys have different messages."""
    (sweep_dir / "sweep.json").write_text(text)

    with pytest.raises(StoreError, match=complaint) as caught:
        read_sweep(sweep_dir)

    assert "sweep.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"block": "0"}, "block: Input should be a valid integer"),
        ({"load": {"mode": "bursts", "value": 2}}, "load.mode: Input should be 'concurrency'"),
        ({"load": {"mode": "rate"}}, "the mode rate needs a value"),
        ({"evidence": {"batching": {"requested": "on"}}}, "missing evidence.batching.effective"),
        ({"tokens": 3}, "unknown key tokens"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "2 more problems"),
    ],
)
def test_a_manifest_of_another_form_is_refused_in_one_line(
    sweep_dir: Path, change: dict[str, Any], complaint: str
) -> None:
    """The error names the invalid value and the remedy."""
    folder = write_run(sweep_dir, "k" * 12, known_manifest(), steady_records(2, 3))
    manifest = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", {**manifest, **change})

    with pytest.raises(StoreError, match=r"manifest\.json: cannot be read") as caught:
        list(read_runs(sweep_dir))

    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__notes__ == ["move its folder away to continue without it"]


def test_a_manifest_is_checked_before_it_is_stored() -> None:
    """Invalid values raise an error when the manifest is built."""
    with pytest.raises(ValueError, match="status: Input should be a valid string"):
        known_manifest(status=3)


def test_no_nan_reaches_json(tmp_path: Path) -> None:
    """Numbers that are not finite become null at any depth; the text NaN is not changed."""
    value = {
        "tpot_ms": {"mean": math.nan, "p99": math.inf},
        "cells": [{"itl_ms": (np.float64("nan"), 4.5)}, {"gain": -math.inf}],
        "n": np.int64(3),
        "label": "NaN is a word here",
    }

    text = write_json(tmp_path / "x.json", value).read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {
        "tpot_ms": {"mean": None, "p99": None},
        "cells": [{"itl_ms": [None, 4.5]}, {"gain": None}],
        "n": 3,
        "label": "NaN is a word here",
    }


def test_json_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    """The same content gives the same bytes in any order of keys."""
    one = write_json(tmp_path / "1.json", {"a": 1, "b": {"c": 2, "d": 3}}).read_bytes()
    two = write_json(tmp_path / "2.json", {"b": {"d": 3, "c": 2}, "a": 1}).read_bytes()

    assert one == two
