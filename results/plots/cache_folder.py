"""Where matplotlib keeps its list of fonts, when it may not write where it usually does.

Without a folder that it can write matplotlib prints a warning, and reads all fonts again in each
process, which takes seconds.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLE = "MPLCONFIGDIR"


def choose_cache_folder() -> None:
    """Name a folder of this user in the temporary folder where the usual ones cannot be written."""
    named = os.environ.get(_VARIABLE)
    usual = (
        [Path(named)]
        if named
        else [_usual("XDG_CONFIG_HOME", ".config"), _usual("XDG_CACHE_HOME", ".cache")]
    )
    if all(_is_writable(folder) for folder in usual):
        return
    own = Path(tempfile.gettempdir()) / f"llm-serving-harness-matplotlib-{os.getuid()}"
    if _is_writable(own) and own.stat().st_uid == os.getuid():  # another user could have made it
        os.environ[_VARIABLE] = str(own)


def _usual(variable: str, name: str) -> Path:
    """Return the folder that matplotlib takes without `MPLCONFIGDIR`."""
    base = os.environ.get(variable)
    home = os.path.expanduser("~")  # noqa: PTH111  Path's own raises where there is none
    return (Path(base) if base else Path(home) / name) / "matplotlib"


def _is_writable(folder: Path) -> bool:
    """Return whether `folder` can be written, after an attempt to make it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and folder.is_dir()
