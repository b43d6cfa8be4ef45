"""The JSON schemas of docs/, and whether the folder of a sweep follows them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from repository import ROOT


@cache
def validator(name: str) -> Draft202012Validator:
    """Return what checks a document against `docs/NAME.schema.json`."""
    schema = json.loads((ROOT / "docs" / f"{name}.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def departures(folder: Path) -> list[str]:
    """Return where the manifests and the summary of a sweep's folder depart from the schemas."""
    files = [*folder.glob("*/manifest.json"), folder / "summary.json"]
    return [
        f"{path}: {error.json_path}: {error.message}" for path in files for error in _errors(path)
    ]


def _errors(path: Path) -> list[Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return list(validator(path.stem).iter_errors(document))
