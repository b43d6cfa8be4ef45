"""The embedded engine as something that requests can be sent to, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.adapters.embedded.engine import EngineCore


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessEngine:
    """A core in this process. Its times are virtual, and it takes prompts of token ids."""

    core: EngineCore
    request_ns: int = 0  # that a request takes on its way into the engine

    virtual_time: ClassVar[Literal[True]] = True
    counts_prompts: ClassVar[Literal[False]] = False  # it computes the very ids that are sent
    may_refuse_fields: ClassVar[Literal[False]] = False
    live_history: ClassVar[Literal[True]] = True
    fields: ClassVar[frozenset[str]] = frozenset()

    def facts(self) -> dict[str, list[str]]:
        """Return nothing: there is no request whose form could vary."""
        return {}
