"""The cache folder of matplotlib, if its default folders are not writable.

Without a writable folder matplotlib prints a warning and scans all fonts again in each process,
which takes seconds.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLE = "MPLCONFIGDIR"


def choose_cache_folder() -> None:
    """Set `MPLCONFIGDIR` to a temporary folder of this user if no default folder is writable."""
    named = os.environ.get(_VARIABLE)
    usual = (
        [Path(named)]
        if named
        else [_usual("XDG_CONFIG_HOME", ".config"), _usual("XDG_CACHE_HOME", ".cache")]
    )
    if all(_is_writable(folder) for folder in usual):
        return
    own = Path(tempfile.gettempdir()) / f"llm-serving-harness-matplotlib-{os.getuid()}"
    if _is_writable(own) and own.stat().st_uid == os.getuid():  # another user may own it
        os.environ[_VARIABLE] = str(own)


def _usual(variable: str, name: str) -> Path:
    """Return the default folder of matplotlib."""
    base = os.environ.get(variable)
    home = os.path.expanduser("~")  # noqa: PTH111  Path.home raises an error without a home folder
    return (Path(base) if base else Path(home) / name) / "matplotlib"


def _is_writable(folder: Path) -> bool:
    """Create `folder` if possible, and return whether it is writable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and folder.is_dir()
