"""Where the files of this repository are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
STAND_INS = ROOT / "tests" / "support" / "stand_ins"
