"""Facts of the machine and of this software, for the manifest of every run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LIBRARIES = ("numpy", "pandas", "pyarrow")


def host_facts() -> dict[str, Any]:
    """Return what a reader needs to judge times measured here; nothing that names a person."""
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def git_commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None outside of one.

    Ends with `+changes` where the working tree differs from it.
    """
    folder = Path(__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments, no shell
            ["git", "-C", str(folder), *arguments],  # noqa: S607  whichever git the user has
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
