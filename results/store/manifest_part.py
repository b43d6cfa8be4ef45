"""The base class of all parts of a manifest."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Number = int | float


class ManifestPart(BaseModel):
    """A frozen part of a manifest that rejects unknown keys and converts no types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
