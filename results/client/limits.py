"""The one table of limits that a client is held against. `docs/certificate.md` says why each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.results.units import significant

Unit = Literal["ms", "share"]
# A P99 of fewer readings is their largest: one stall of a short run, which DEGRADES it and no more.
ENOUGH_READINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a measured value must not exceed: `least`, or a share of a metric where that is more."""

    least: float  # in the limit's unit
    share: float | None = None  # of what the limit's `of` names

    def value(self, reference: float | None) -> float:
        """Return the bound in the limit's unit; an absent reference leaves `least`."""
        if self.share is None or reference is None:
            return self.least
        return max(self.least, self.share * reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimit:
    """One thing that is measured of a client: DEGRADED above one bound, INVALID above another."""

    name: str
    measures: str  # in words
    unit: Unit
    degraded: Bound
    invalid: Bound | None  # None: it alone never makes a run INVALID
    of: str | None = None  # what shares of its bounds are of

    def texts(self) -> tuple[str, str]:
        """Return both bounds in words, such as "max(1 ms, 5 % of TTFT p50)"; "–" for none."""
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
    """Return a value in words: "2.5 ms", "12 %"."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{significant(int(value) if value == int(value) else value, 2)} ms"


LIMITS: tuple[ClientLimit, ...] = (
    ClientLimit(
        name="load_not_delivered",
        measures="open loop: what the rate of started conversations lacks of the schedule's",
        unit="share",
        degraded=Bound(least=0.02),
        invalid=Bound(least=0.10),
    ),
    ClientLimit(
        name="send_delay",
        measures="open loop: sent − scheduled, p99 of the measured requests",
        unit="ms",
        degraded=Bound(least=1.0, share=0.05),
        invalid=Bound(least=20.0, share=0.25),
        of="TTFT p50",
    ),
    ClientLimit(
        name="turn_round",
        measures="closed loop: sent − end of the answer before and its think time, p99",
        unit="ms",
        degraded=Bound(least=1.0, share=0.05),
        invalid=Bound(least=20.0, share=0.25),
        of="E2E p50",
    ),
    ClientLimit(
        name="loop_lag",
        measures="how late the event loop wakes, p99 of the worst worker",
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
        measures="closed loop: what the mean of conversations alive lacks of the concurrency",
        unit="share",
        degraded=Bound(least=0.02),
        invalid=Bound(least=0.10),
    ),
    ClientLimit(
        name="open_files",
        measures="most open files / how many the process may have",
        unit="share",
        degraded=Bound(least=0.80),
        invalid=Bound(least=0.99),
    ),
    ClientLimit(
        name="ports",
        measures="ports held by connections of one minute / ports there are",
        unit="share",
        degraded=Bound(least=0.80),
        invalid=Bound(least=1.0),
    ),
    ClientLimit(
        name="failed_share",
        measures="failed requests / all sent",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=Bound(least=0.05, share=1.0),
        of="max_failed_share",
    ),
    ClientLimit(
        name="usage_missing",
        measures="answers whose tokens the server did not count / answers",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="shorter_than_asked",
        measures="output tokens that did not come / those asked for",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="read_on_the_clock",
        measures="answers read while the clock ran / requests",
        unit="share",
        degraded=Bound(least=0.01),
        invalid=None,
    ),
    ClientLimit(
        name="beyond_calibration",
        measures="output tokens/s of a worker / the most for which one was calibrated",
        unit="share",
        degraded=Bound(least=1.0),
        invalid=None,
    ),
    ClientLimit(
        name="wall_clock_stepped",
        measures="how far the wall clock jumped ahead of the monotonic one",
        unit="ms",
        degraded=Bound(least=100.0),
        invalid=None,
    ),
)
