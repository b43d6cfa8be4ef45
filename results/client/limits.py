"""The table of limits for a client. `docs/certificate.md` gives the reason for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.results.units import significant

Unit = Literal["ms", "share"]
# A P99 of fewer readings is their maximum, possibly one stall: the run is DEGRADED at most.
ENOUGH_READINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An upper bound: `least`, or a share of a metric if that is larger."""

    least: float  # in the limit's unit
    share: float | None = None  # of the metric that the limit's `of` names

    def value(self, reference: float | None) -> float:
        """Return the bound in the limit's unit; an absent reference leaves `least`."""
        if self.share is None or reference is None:
            return self.least
        return max(self.least, self.share * reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimit:
    """One measurement of a client: DEGRADED above one bound, INVALID above another."""

    name: str
    measures: str  # what the value is
    unit: Unit
    degraded: Bound
    invalid: Bound | None  # None: this limit never makes a run INVALID
    of: str | None = None  # the metric that shares of its bounds refer to

    def texts(self) -> tuple[str, str]:
        """Return both bounds as text, such as "max(1 ms, 5 % of TTFT p50)", or "–"."""
        return self._text(self.degraded), self._text(self.invalid)

    def _text(self, bound: Bound | None) -> str:
        if bound is None:
            return "–"
        least = amount(bound.least, self.unit)
        if bound.share is None:
            return least
        share = "" if bound.share == 1 else f"{amount(bound.share, 'share')} of "
        return f"max({least}, {share}{self.of})"


def amount(value: float, unit: Unit) -> str:
    """Format a value with its unit: "2.5 ms", "12 %"."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{significant(int(value) if value == int(value) else value, 2)} ms"


LIMITS: tuple[ClientLimit, ...] = (
    ClientLimit(
        name="load_not_delivered",
        measures="open loop: 1 − rate of started conversations / scheduled rate",
        unit="share",
        degraded=Bound(least=0.02),
        invalid=Bound(least=0.10),
    ),
    ClientLimit(
        name="send_delay",
        measures="open loop: sent − scheduled, P99 of the measured requests",
        unit="ms",
        degraded=Bound(least=1.0, share=0.05),
        invalid=Bound(least=20.0, share=0.25),
        of="TTFT p50",
    ),
    ClientLimit(
        name="turn_round",
        measures="closed loop: sent − (end of the previous answer + think time), P99",
        unit="ms",
        degraded=Bound(least=1.0, share=0.05),
        invalid=Bound(least=20.0, share=0.25),
        of="E2E p50",
    ),
    ClientLimit(
        name="loop_lag",
        measures="lag of the event loop, P99 of the worst worker",
        unit="ms",
        degraded=Bound(least=1.0, share=0.10),
        invalid=Bound(least=20.0, share=0.50),
        of="TPOT p50",
    ),
    ClientLimit(
        name="cpu",
        measures="CPU time / wall time of the busiest worker",
        unit="share",
        degraded=Bound(least=0.80),
        invalid=Bound(least=0.95),
    ),
    ClientLimit(
        name="in_flight",
        measures="closed loop: 1 − mean of conversations alive / concurrency",
        unit="share",
        degraded=Bound(least=0.02),
        invalid=Bound(least=0.10),
    ),
    ClientLimit(
        name="open_files",
        measures="peak of open files / limit of open files",
        unit="share",
        degraded=Bound(least=0.80),
        invalid=Bound(least=0.99),
    ),
    ClientLimit(
        name="ports",
        measures="ports used by the connections of one minute / available ports",
        unit="share",
        degraded=Bound(least=0.80),
        invalid=Bound(least=1.0),
    ),
    ClientLimit(
        name="failed_share",
        measures="failed requests / sent requests",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=Bound(least=0.05, share=1.0),
        of="max_failed_share",
    ),
    ClientLimit(
        name="usage_missing",
        measures="answers without a token count of the server / answers",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="shorter_than_asked",
        measures="missing output tokens / requested output tokens",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="read_on_the_clock",
        measures="answers parsed during the measurement / requests",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="beyond_calibration",
        measures="output tokens/s of a worker / highest calibrated rate of a worker",
        unit="share",
        degraded=Bound(least=1.0),
        invalid=None,
    ),
    ClientLimit(
        name="wall_clock_stepped",
        measures="jump of the wall clock ahead of the monotonic clock",
        unit="ms",
        degraded=Bound(least=100.0),
        invalid=None,
    ),
)
