"""What every rule gets and returns: one stored run; one measured value."""

from __future__ import annotations

from dataclasses import dataclass

from harness.results.metrics import RunMetrics
from harness.results.store import CounterMoves, EngineFacts, RecordTable, RunManifest
from harness.results.summary import Certificate


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
class DiagnosedRun:
    """One run, as every rule sees it."""

    table: RecordTable
    metrics: RunMetrics
    manifest: RunManifest
    certificate: Certificate

    @property
    def counters(self) -> CounterMoves:
        """How far the server's counters moved."""
        return self.manifest.counters

    @property
    def facts(self) -> EngineFacts:
        """What the engine reported of itself."""
        return self.manifest.facts

    def toggle(self, name: str) -> str | None:
        """Return the requested value of a toggle; None where none was requested."""
        value = self.manifest.toggles.get(name)
        return None if value == "as it is" else value

    @property
    def caching_next(self) -> str:
        """The advice to cache prefixes, before other advice; empty where that is done already."""
        on = self.toggle("prefix_caching") == "on" and self.toggle("paged_kv") != "off"
        return "" if on else "turn prefix_caching on so that less is computed, "

    @property
    def open_loop(self) -> bool:
        """Whether requests were due at times of their own."""
        return self.manifest.load.is_open_loop

    @property
    def answered(self) -> int:
        """Requests that were answered well."""
        return int(self.metrics.requests["ok"].sum())


def not_stored(what: str) -> Measured:
    """Return that a value is not stored, so that nothing can be judged."""
    return Measured(why=f"{what} is not stored")
