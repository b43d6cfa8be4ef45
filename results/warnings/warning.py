"""One reason to doubt a run: what every check returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning:
    """One reason to doubt a run."""

    name: str
    message: str  # what was seen, with its number
    remedy: str  # what the user can do
