"""Estimate of the duration of a run: demand × speed of an idle engine. Never a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from harness.adapters import EngineSettings
from harness.plan.demand import Demand

# Lower bounds for the simulation speed of the embedded engine, per second of wall time.
_PLAYED_TOKENS_PER_S = 300_000
_PLAYED_STEPS_PER_S = 50_000


@runtime_checkable
class PredictsSpeed(Protocol):
    """An adapter that predicts the speed of its engine."""

    def predict(self, settings: EngineSettings) -> tuple[float, float]:
        """Return seconds per prompt token and seconds per output token of an idle engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The estimated duration of one run, in seconds."""

    engine_s: float  # on the engine's clock, simulated or not
    wall_s: float  # of the machine that runs the harness


def with_cache_setup(once: Expected | None, cache: str) -> Expected | None:
    """Return the duration of a run including the set-up of its cache.

    A steady cache doubles the duration, at least; priming takes almost no time.
    """
    if once is None or cache != "steady":
        return once
    return Expected(engine_s=2 * once.engine_s, wall_s=2 * once.wall_s)


def expected(
    adapter: object, settings: EngineSettings, demand: Demand, *, simulated: bool
) -> Expected | None:
    """Return the estimated duration of a run; None if the adapter predicts no speed.

    Prefills run one after the other; a decode step serves all running sequences. Shared prompt
    tokens take no time if prefix caching is on.
    """
    if not isinstance(adapter, PredictsSpeed):
        return None
    prefill_s, token_s = adapter.predict(settings)
    cached = demand.shared_tokens if settings.toggles["prefix_caching"].kind == "on" else 0
    together = min(demand.slots or settings.max_num_seqs, settings.max_num_seqs)
    steps = demand.output_tokens / together
    busy_s = (demand.prompt_tokens - cached) * prefill_s + steps * token_s
    engine_s = busy_s + demand.think_ns / 1e9 / together
    if demand.span_ns is not None:
        last_s = demand.output_tokens / max(1, demand.requests) * token_s
        engine_s = max(engine_s, demand.span_ns / 1e9 + last_s)
        steps = min(demand.output_tokens, engine_s / token_s)
    played_s = max(demand.output_tokens / _PLAYED_TOKENS_PER_S, steps / _PLAYED_STEPS_PER_S)
    return Expected(engine_s=engine_s, wall_s=played_s if simulated else engine_s)
