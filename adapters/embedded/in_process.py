"""The transport to an embedded engine in the same process, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.adapters.embedded.engine import EngineCore


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessEngine:
    """An engine core in this process, on virtual time. Prompts are token ids."""

    core: EngineCore
    request_ns: int = 0  # time of a request before it enters the engine

    virtual_time: ClassVar[Literal[True]] = True
    counts_prompts: ClassVar[Literal[False]] = False  # prompts are exact token ids
    may_refuse_fields: ClassVar[Literal[False]] = False
    live_history: ClassVar[Literal[True]] = True
    fields: ClassVar[frozenset[str]] = frozenset()

    def facts(self) -> dict[str, list[str]]:
        """Return an empty mapping, because requests have no variants here."""
        return {}
