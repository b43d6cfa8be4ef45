"""The input and the result of every rule: one stored run, and one measured value."""

from __future__ import annotations

from dataclasses import dataclass

from harness.results.metrics import RunMetrics
from harness.results.store import CounterMoves, EngineFacts, RecordTable, RunManifest
from harness.results.summary import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The value of one rule for one run, with its evidence and remedy.

    value None, `why` given: data for the rule are missing in the store
    value None, no `why`:    the rule does not apply, such as `drafts` without speculation
    """

    value: float | None = None
    evidence: str = ""
    remedy: str = ""
    why: str | None = None


NOTHING_TO_SEE = Measured()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiagnosedRun:
    """One stored run with its metrics and certificate."""

    table: RecordTable
    metrics: RunMetrics
    manifest: RunManifest
    certificate: Certificate

    @property
    def counters(self) -> CounterMoves:
        """Increase of the server's counters during the run."""
        return self.manifest.counters

    @property
    def facts(self) -> EngineFacts:
        """Facts that the engine reported about itself."""
        return self.manifest.facts

    def toggle(self, name: str) -> str | None:
        """Return the requested value of a toggle; None if the run requested no value."""
        value = self.manifest.toggles.get(name)
        return None if value == "as it is" else value

    @property
    def caching_next(self) -> str:
        """Advice to turn prefix caching on, to put before other advice; empty if it is on."""
        on = self.toggle("prefix_caching") == "on" and self.toggle("paged_kv") != "off"
        return "" if on else "turn prefix_caching on to compute fewer tokens, "

    @property
    def open_loop(self) -> bool:
        """Whether the load was open loop."""
        return self.manifest.load.is_open_loop

    @property
    def answered(self) -> int:
        """Number of requests that succeeded."""
        return int(self.metrics.requests["ok"].sum())


def not_stored(what: str) -> Measured:
    """Return a result without a value, because `what` is not stored."""
    return Measured(why=f"{what} is not stored")
