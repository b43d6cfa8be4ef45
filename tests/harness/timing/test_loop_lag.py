"""The loop's lag is what a socket would have to wait."""

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
    """The lag of a loop that is held up so long, so many times, with 20 ms of rest between."""

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


def test_a_loop_that_is_held_up_is_late_for_all_that_it_missed() -> None:
    """Away for 60 ms of every 80: late in most readings, the longest by nearly the whole time."""
    facts = measured(0.06, 5)

    assert facts["n"] >= 300 * MS // PERIOD_NS
    assert facts["p50"] > 10 * MS
    assert 40 * MS < facts["p99"] <= facts["max"]


def test_a_loop_that_rests_is_on_time() -> None:
    """Half of the readings come within half a millisecond, whatever else this machine does."""
    facts = measured(0.0, 20)

    assert facts["n"] > 300 * MS // PERIOD_NS
    assert 0 <= facts["p50"] < MS // 2


def test_a_run_that_is_too_short_tells_nothing() -> None:
    """No reading is no lag of 0."""

    async def main() -> dict[str, int] | None:
        with LoopLag() as lag:
            pass
        return lag.facts()

    assert asyncio.run(main()) is None
