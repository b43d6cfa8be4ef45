"""Estimate of the peak token rate of a planned run. Never a result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.adapters import EngineAdapter, EngineSettings
from harness.plan.demand import Demand
from harness.plan.estimate import PredictsSpeed
from harness.plan.planned import Plan

_SPREADS = 4  # standard deviations within which a random number of running requests stays


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRate:
    """The highest token rate of one workload and load, over all arms of one engine."""

    label: str  # of the engine
    workload: str
    load: str
    concurrency: int | None  # None in open loop
    tokens_per_s: float | None  # None: the speed of this engine is unknown
    simulated: bool  # virtual time: the client reads no socket


def peak_rates(plan: Plan, adapters: Mapping[str, EngineAdapter]) -> Iterator[PeakRate]:
    """Yield the peak of each engine's fastest arm for each workload and load of the plan."""
    labels = dict.fromkeys(arm.label for arm in plan.arms if arm.reason is None)
    for label in labels:
        arms = [arm for arm in plan.arms if arm.label == label and arm.reason is None]
        for demand in plan.demands:
            rates = [_peak(adapters[arm.engine], arm.settings, demand) for arm in arms]
            known = [rate for rate in rates if rate is not None]
            yield PeakRate(
                label=label,
                workload=demand.workload,
                load=demand.load.label,
                concurrency=demand.slots,
                tokens_per_s=max(known) if known and len(known) == len(rates) else None,
                simulated=all(arm.engine_kind == "simulated" for arm in arms),
            )


def _peak(adapter: object, settings: EngineSettings, demand: Demand) -> float | None:
    """Return tokens per second if all concurrent requests decode at the speed of an idle engine.

    This is an upper bound in closed loop, because concurrent sequences slow each other down. In
    open loop the number of running requests is their mean plus four standard deviations.
    """
    if not isinstance(adapter, PredictsSpeed):
        return None
    prefill_s, token_s = adapter.predict(settings)
    running: float | None = demand.slots
    if running is None:
        requests = max(1, demand.requests)
        one_s = (demand.prompt_tokens * prefill_s + demand.output_tokens * token_s) / requests
        span_s = (demand.span_ns or 0) / 1e9
        mean = requests * one_s / span_s if span_s else requests
        running = mean + _SPREADS * math.sqrt(mean)
    return min(running, settings.max_num_seqs) / token_s
