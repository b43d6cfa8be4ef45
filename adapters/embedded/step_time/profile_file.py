"""A profile as a file: the step times that `harness fit` fitted to one engine on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.adapters.embedded.step_time.fitted import StepProfile, profile_from

_FORMAT = 1


def profile_text(profile: StepProfile) -> str:
    """Return the text of the file that holds `profile`."""
    return json.dumps({"format": _FORMAT, **profile.facts()}, indent=1) + "\n"


def read_profile(path: Path) -> StepProfile:
    """Return the profile in a file. Raises `ValueError` that says what is wrong with it."""
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ValueError(f"{path} cannot be read: {cause}") from cause
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise ValueError(f"{path} is no profile of format {_FORMAT}, as `harness fit` writes one")
    return profile_from(told)
