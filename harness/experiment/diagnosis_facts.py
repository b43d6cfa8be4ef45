"""What a diagnosis needs of a run and no counter tells: its floor, how its prompts overlap."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.adapters import EngineSettings
from harness.adapters.embedded import decode_floor
from harness.load import RequestSet


def diagnosis_facts(settings: EngineSettings | None, request_set: RequestSet) -> dict[str, Any]:
    """Return `decode_floor` and `prompt_overlap` for a manifest; None for what is not known.

    `settings` None: a server of whose hardware nothing is known. The floor is that of the model on
    the GPU, whichever engine runs it.
    """
    floor = None if settings is None else decode_floor(settings)
    overlap = request_set.overlap
    return {
        "decode_floor": None if floor is None else asdict(floor),
        "prompt_overlap": None if overlap is None else asdict(overlap),
    }
