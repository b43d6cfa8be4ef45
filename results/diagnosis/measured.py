"""What every rule starts from and comes to: one stored run; one measured value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.results.metrics import RunFigures
from harness.results.names import is_open_loop
from harness.results.store import RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rule's value in one run, with the evidence in words and what to try.

    value None, `why` given: what is stored does not tell
    value None, no `why`:    there is nothing to look at, such as drafts where none are made
    """

    value: float | None = None
    evidence: str = ""
    remedy: str = ""
    why: str | None = None


NOTHING_TO_SEE = Measured()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Looked:
    """One run, as every rule sees it."""

    table: RecordTable
    figures: RunFigures
    manifest: Mapping[str, Any]
    certificate: Mapping[str, Any]

    def counter(self, name: str) -> float | None:
        """Return how far one of the server's counters moved; None where it is not counted."""
        value: float | None = (self.manifest.get("counters") or {}).get(name)
        return value

    def fact(self, name: str) -> Any:
        """Return what the engine said of itself; None where it said nothing."""
        return (self.manifest.get("facts") or {}).get(name)

    def toggle(self, name: str) -> str | None:
        """Return the value of a toggle that was asked for; None where none was."""
        value: str | None = (self.manifest.get("toggles") or {}).get(name)
        return None if value == "as it is" else value

    @property
    def caching_next(self) -> str:
        """The advice to cache prefixes, before other advice; empty where that is done already."""
        on = self.toggle("prefix_caching") == "on" and self.toggle("paged_kv") != "off"
        return "" if on else "turn prefix_caching on so that less is computed, "

    @property
    def open_loop(self) -> bool:
        """Whether requests were due at times of their own."""
        return is_open_loop(self.manifest["load"])

    @property
    def answered(self) -> int:
        """Requests that were answered well."""
        return int(self.figures.requests["ok"].sum())


def untold(what: str) -> Measured:
    """Return that something is not stored, so that nothing can be said."""
    return Measured(why=f"{what} is not stored")
