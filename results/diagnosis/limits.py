"""The one table of what makes a bottleneck: a measured value, its limit, and why there.

`docs/diagnosing.md` has the same table and tells how each is measured and what to try.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.results.units import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckLimit:
    """One bottleneck: it is named where the value lies above `above`."""

    name: str
    title: str  # for people
    measures: str
    unit: str  # share | times | count
    above: float
    reason: str  # why the limit lies there

    @property
    def limit_text(self) -> str:
        """The limit in words: "20 %", "2 ×", "0"."""
        return amount(self.above, self.unit)


def amount(value: float, unit: str) -> str:
    """Return a value of a unit in words."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{significant(value, 2)} ×" if unit == "times" else f"{value:,.0f}"


# Causes before their consequences: the first that is found is called the bottleneck.
LIMITS: tuple[BottleneckLimit, ...] = (
    BottleneckLimit(
        name="client",
        title="the client is the limit",
        measures="reasons on the client's certificate",
        unit="count",
        above=0,
        reason="figures of a client that is late are not the server's, so nothing else counts",
    ),
    BottleneckLimit(
        name="preemptions",
        title="sequences lose their KV blocks",
        measures="preemptions / answered requests",
        unit="share",
        above=0.01,
        reason="a preempted sequence is computed again; from one in a hundred on the P99 holds it",
    ),
    BottleneckLimit(
        name="kv_room",
        title="the KV cache is full",
        measures="tokens that requests in flight would hold beyond the KV room / all of them",
        unit="share",
        above=0.10,
        reason="some must wait though slots are free; lengths in flight are known to a tenth",
    ),
    BottleneckLimit(
        name="idle_slots",
        title="slots stand idle in a batch",
        measures="static or no batching: slots without a token in a step / slots in use",
        unit="share",
        above=0.25,
        reason="answers of unlike lengths leave a quarter idle; continuous batching fills them",
    ),
    BottleneckLimit(
        name="cache_unused",
        title="prefixes could be found and are not",
        measures="prefix hits / prompt tokens, what they lack of the ceiling",
        unit="share",
        above=0.20,
        reason="a fifth of all prompt tokens computed in vain; blocks and races explain less",
    ),
    BottleneckLimit(
        name="hidden_prefix",
        title="what prompts share stands behind what differs",
        measures="prompt tokens seen before, behind the first that differs / prompt tokens",
        unit="share",
        above=0.20,
        reason="the same fifth, which no cache finds until the prompt is put in another order",
    ),
    BottleneckLimit(
        name="drafts",
        title="most drafted tokens are thrown away",
        measures="drafted tokens that were not accepted / drafted tokens",
        unit="share",
        above=0.85,
        reason="of five drafted tokens less than 0.75 stand: a step then costs what it brings",
    ),
    BottleneckLimit(
        name="launches",
        title="steps wait for the host to launch kernels",
        measures="CUDA graphs or overlap off, few decoding at once: P10 of token gaps / floor",
        unit="times",
        above=2.0,
        reason="good kernels reach 60 % of the bandwidth, a factor of 1.7; the rest is the host",
    ),
    BottleneckLimit(
        name="far_from_floor",
        title="steps are far from what the memory allows",
        measures="CUDA graphs and overlap on, few decoding at once: P10 of token gaps / floor",
        unit="times",
        above=5.0,
        reason="narrow weights and small models reach a third or a fourth; beyond, the host leads",
    ),
    BottleneckLimit(
        name="arrivals",
        title="requests come faster than they are answered",
        measures="open loop: requests that piled up from half-way to the last start",
        unit="count",
        above=0,
        reason="counted only where waits grow as well: then no finite queue is long enough",
    ),
    BottleneckLimit(
        name="queue",
        title="requests wait before they are computed",
        measures="time in the engine's queue / TTFT, means of the measured requests",
        unit="share",
        above=0.50,
        reason="more than half of the TTFT is waiting: a faster prefill would not be seen",
    ),
    BottleneckLimit(
        name="prefill_stalls",
        title="prefills hold up the answers of others",
        measures="what gaps beside other prompts' prefills have above a gap without / all gaps",
        unit="share",
        above=0.25,
        reason="a quarter of the time that a reader waits between tokens; below it lies jitter",
    ),
)
LIMIT_BY_NAME = {limit.name: limit for limit in LIMITS}
