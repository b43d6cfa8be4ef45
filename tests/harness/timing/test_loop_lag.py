"""Tests of the lag of the event loop."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
import uvloop

from harness.timing.loop_lag import PERIOD_NS, LoopLag

MS = 1_000_000
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a timer of Linux"),
]


def measured(busy_s: float, times: int) -> dict[str, int]:
    """Return the lag of a loop that is blocked repeatedly, with pauses of 20 ms."""

    async def main() -> dict[str, int] | None:
        with LoopLag() as lag:
            for _ in range(times):
                time.sleep(busy_s)  # noqa: ASYNC251 - the point
                await asyncio.sleep(0.02)
        return lag.facts()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        facts = runner.run(main())
    assert facts is not None
    return facts


def test_a_blocked_loop_is_late_for_every_missed_reading() -> None:
    """A loop that is blocked for 60 ms of every 80 ms is late in most readings, by up to 60 ms."""
    facts = measured(0.06, 5)

    assert facts["n"] >= 300 * MS // PERIOD_NS
    assert facts["p50"] > 10 * MS
    assert 40 * MS < facts["p99"] <= facts["max"]


def test_a_loop_that_rests_is_on_time() -> None:
    """The median lag of an idle loop is below half a millisecond."""
    facts = measured(0.0, 20)

    assert facts["n"] > 300 * MS // PERIOD_NS
    assert 0 <= facts["p50"] < MS // 2


def test_a_run_that_is_too_short_has_no_lag() -> None:
    """Without a reading the lag is None, not 0."""

    async def main() -> dict[str, int] | None:
        with LoopLag() as lag:
            pass
        return lag.facts()

    assert asyncio.run(main()) is None
