"""Storage of calibrations: one small file in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import __version__
from harness.calibration.finding import SCHEMA_VERSION

_FILE = Path("llm-serving-harness") / "calibration.json"


def calibration_host() -> dict[str, Any]:
    """Return the facts of this machine; a calibration is valid only for the same facts."""
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "harness_version": __version__,
    }


def calibration_path() -> Path:
    """Return the path of the file with all calibrations."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return cache / _FILE


def latest_calibration() -> dict[str, Any] | None:
    """Return the latest calibration for a machine like this one, or None."""
    found = _kept().get(_key(calibration_host()))
    return found if isinstance(found, dict) else None


def keep_calibration(document: Mapping[str, Any]) -> Path:
    """Store `document` as the latest of its host, and return the path. Raises `OSError`."""
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {**_kept(), _key(document["host"]): document}
    text = json.dumps({"schema_version": SCHEMA_VERSION, "calibrations": kept}, indent=1)
    number, passing = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        Path(passing).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(passing).unlink()
        raise
    return path


def _kept() -> dict[str, Any]:
    """Return host → calibration; empty if the file is missing or invalid."""
    try:
        document = json.loads(calibration_path().read_text(encoding="utf-8"))
        kept = document["calibrations"] if document["schema_version"] == SCHEMA_VERSION else {}
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _key(host: Mapping[str, Any]) -> str:
    text = json.dumps(host, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cores() -> int | None:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
