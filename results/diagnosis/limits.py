"""The table of bottlenecks: the measured value, its limit and the reason for the limit.

`docs/diagnosing.md` repeats the table and describes how each value is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.results.units import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckLimit:
    """One bottleneck, reported when its value is above `above`."""

    name: str
    title: str  # shown in the terminal
    measures: str  # what the value is
    unit: str  # share | times | count
    above: float
    reason: str  # why the limit has this value

    @property
    def limit_text(self) -> str:
        """The limit as text: "20 %", "2 ×", "0"."""
        return amount(self.above, self.unit)


def amount(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{significant(value, 2)} ×" if unit == "times" else f"{value:,.0f}"


# Causes come before their consequences; the first finding of a run is its bottleneck.
LIMITS: tuple[BottleneckLimit, ...] = (
    BottleneckLimit(
        name="client",
        title="the client is the limit",
        measures="number of reasons on the client certificate",
        unit="count",
        above=0,
        reason="a late client distorts every other value, so fix it first",
    ),
    BottleneckLimit(
        name="preemptions",
        title="sequences are preempted",
        measures="preemptions / answered requests",
        unit="share",
        above=0.01,
        reason="a preempted sequence is recomputed; above 1 in 100 it shows in the P99",
    ),
    BottleneckLimit(
        name="kv_room",
        title="the KV cache is full",
        measures="KV tokens of requests in flight that do not fit / all their KV tokens",
        unit="share",
        above=0.10,
        reason="requests wait although slots are free; the estimate is accurate to about 10 %",
    ),
    BottleneckLimit(
        name="idle_slots",
        title="batch slots are idle",
        measures="static or no batching: slots without a token in a step / slots in use",
        unit="share",
        above=0.25,
        reason="answers of different lengths leave a quarter idle; continuous batching fills them",
    ),
    BottleneckLimit(
        name="cache_unused",
        title="prefix cache misses",
        measures="highest possible prefix hit rate − prefix hit rate",
        unit="share",
        above=0.20,
        reason="a fifth of all prompt tokens is recomputed; block sizes and races explain less",
    ),
    BottleneckLimit(
        name="hidden_prefix",
        title="shared prompt text after unique text",
        measures="repeated prompt tokens after the first unique token / prompt tokens",
        unit="share",
        above=0.20,
        reason="a fifth of all prompt tokens; no prefix cache finds them in this order",
    ),
    BottleneckLimit(
        name="drafts",
        title="most draft tokens are rejected",
        measures="rejected draft tokens / draft tokens",
        unit="share",
        above=0.85,
        reason="fewer than 0.75 of 5 draft tokens are accepted: a step costs as much as it gains",
    ),
    BottleneckLimit(
        name="launches",
        title="steps wait for the host to launch kernels",
        measures="CUDA graphs or overlap off, at most 8 sequences decode: token gap P10 / floor",
        unit="times",
        above=2.0,
        reason="good kernels reach 60 % of the bandwidth, a factor of 1.7; the host takes the rest",
    ),
    BottleneckLimit(
        name="far_from_floor",
        title="steps are far above the memory-bandwidth floor",
        measures="CUDA graphs and overlap on, at most 8 sequences decode: token gap P10 / floor",
        unit="times",
        above=5.0,
        reason="quantized and small models reach 3 to 4 ×; above that the host is the limit",
    ),
    BottleneckLimit(
        name="arrivals",
        title="requests arrive faster than they are answered",
        measures="open loop: growth of requests in flight, from half-way to the last send",
        unit="count",
        above=0,
        reason="counted only if waiting times grow as well: the queue then grows without limit",
    ),
    BottleneckLimit(
        name="queue",
        title="requests wait in the engine's queue",
        measures="mean time in the engine's queue / mean TTFT of the measured requests",
        unit="share",
        above=0.50,
        reason="more than half of the TTFT is waiting, so a faster prefill hardly changes it",
    ),
    BottleneckLimit(
        name="prefill_stalls",
        title="prefills delay the tokens of other requests",
        measures="extra time of token gaps during other prefills / time of all token gaps",
        unit="share",
        above=0.25,
        reason="a quarter of the time between tokens; smaller shares are within the jitter",
    ),
)
LIMIT_BY_NAME = {limit.name: limit for limit in LIMITS}
