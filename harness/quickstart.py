"""Where the sweep lies that runs when none is named: in a checkout, and in an installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# A wheel carries the folder `examples` as `harness/examples`; in a checkout it stands beside.
_FOLDERS = (_PACKAGE / "examples", _PACKAGE.parent / "examples")


def quickstart() -> Path:
    """Return the sweep file that `harness run` takes without an argument."""
    return next(path for folder in _FOLDERS if (path := folder / "quickstart.yaml").is_file())
