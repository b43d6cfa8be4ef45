"""What every part of a manifest shares: it is frozen, and refuses what it does not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Number = int | float


class ManifestPart(BaseModel):
    """A frozen part of a manifest: values have their types already, and no key is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
