"""The demand of a workload under a load: requests, tokens and P99 samples, before any start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.load import starts_of
from harness.results import needed_samples
from harness.sweep_file import AnyWorkload, Load, WorkloadChoice, duration_text
from harness.workloads import Drawn, WorkloadError
from harness.workloads.prompts import shared_prefix_tokens
from harness.workloads.trace import TraceReplay

P99_REQUESTS = needed_samples(0.99)
STEADY_FACTOR = 3  # measured requests per slot that a steady window of a closed loop needs
_DRAWN_REQUESTS = 2_000  # drawn from an unlimited workload to estimate its means
_SPREADS = 4  # standard deviations within which a random number of starts stays
_MANY_STARTS = 100  # expected starts above which a Poisson process always has at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The requests of one run of a workload under a load; drawn for the first block."""

    workload: str
    load: Load
    conversations: int
    requests: int  # the expected number if arrivals are random
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int  # prompt tokens in a prefix shared with an earlier request of the run
    think_ns: int  # think time of all users together
    span_ns: int | None  # from first to last start in open loop
    skipped: Mapping[str, int]  # reason → rows or turns left out
    notes: tuple[str, ...]
    available: int | None = None  # requests in the trace; None: unlimited, or all are replayed

    @property
    def slots(self) -> int | None:
        """Concurrent conversations in closed loop; None in open loop."""
        concurrency = self.load.concurrency
        return None if concurrency is None else min(concurrency, self.conversations)

    @property
    def _outside(self) -> int:
        """Requests of a closed loop in ramp-up or drain.

        The first turn of each slot is ramp-up. When the first slot runs empty, each other slot has
        at most one conversation left, minus its first turn.
        """
        if self.slots is None:
            return 0
        return self.slots + (self._turns - 1) * (self.slots - 1)

    @property
    def _turns(self) -> int:
        """Requests per conversation, rounded up; both counts may be extrapolated."""
        return math.ceil(self.requests / self.conversations - 0.01)

    @property
    def while_full(self) -> int:
        """Requests sent while every slot has a conversation."""
        return max(0, self.requests - self._outside)

    @property
    def steady(self) -> bool:
        """Whether there are enough requests for a steady window; else the whole run counts."""
        return self.while_full >= STEADY_FACTOR * (self.load.concurrency or 0)

    @property
    def measured(self) -> int:
        """Requests in the metrics of the run."""
        return self.while_full if self.steady else self.requests

    @property
    def p99_reliable(self) -> bool:
        """Whether there are enough requests for a 95 % upper bound of P99."""
        return self.measured >= P99_REQUESTS

    def warnings(self) -> list[str]:
        """Return a warning with a remedy for each statistic that needs more requests."""
        warnings = []
        concurrency = self.load.concurrency or 0
        if self.slots is not None and self.slots < concurrency:
            warnings.append(
                f"only {self.slots} conversations, fewer than the concurrency {concurrency}; "
                f"{self._closed_remedy()}"
            )
        if not self.steady:
            warnings.append(
                f"metrics cover the whole run: {self.while_full} requests between ramp-up and "
                f"drain, a steady window needs {STEADY_FACTOR * concurrency} "
                f"({STEADY_FACTOR} × concurrency); {self._closed_remedy()}"
            )
        if not self.p99_reliable:
            warnings.append(
                f"P99 is not reliable: {self.measured} measured requests, needs {P99_REQUESTS}; "
                f"{self._remedy()}"
            )
        return warnings

    def _remedy(self) -> str:
        """Return the change of the load for a reliable P99."""
        if self.load.mode == "concurrency":
            if self.available is not None and self._closed_requests() > self.available:
                return _longer_trace(self.available)
            return self._closed_remedy()
        if self.load.mode == "trace":
            return "replay more rows"
        if self.available is not None and _most_starts(self.load, P99_REQUESTS) > self.available:
            return _longer_trace(self.available)
        needed_ns = (self.load.duration_ns or 0) * P99_REQUESTS / max(1, self.requests)
        return f"set duration: {math.ceil(needed_ns / 1e9)} s"

    def _closed_requests(self) -> int:
        """Return the number of requests for a steady window with a reliable P99."""
        concurrency = self.load.concurrency or 0
        outside = concurrency + (self._turns - 1) * (concurrency - 1)
        return max(STEADY_FACTOR * concurrency, P99_REQUESTS) + outside

    def _closed_remedy(self) -> str:
        """Return the change of a closed loop, the same for all of its warnings."""
        requests, available = self._closed_requests(), self.available
        if available is None or requests <= available:
            return f"set requests: {requests}"
        if fewer := available // (STEADY_FACTOR + self._turns):
            return f"set concurrency: {fewer}, requests: {available} (all rows of the trace)"
        return _longer_trace(available)


def _longer_trace(available: int) -> str:
    return f"use a longer trace; this one has {available} rows to replay"


def demand_of(choice: WorkloadChoice, load: Load, *, seed: int, max_model_len: int) -> Demand:
    """Return the demand of `choice` under `load`. Raises `WorkloadError` if it is empty.

    Traces are read completely. An unlimited workload is drawn in part and extrapolated.
    """
    workload = choice.under(load)
    wanted, available = _wanted_requests(workload, load), None
    if isinstance(workload, TraceReplay) and wanted is not None:
        available = workload.replayable(max_model_len)
        # In closed loop, too many requests raise an error with both counts.
        wanted = max(1, min(wanted, available)) if load.mode == "rate" else wanted
    drawn = workload.draw(requests=wanted, seed=seed, max_model_len=max_model_len)
    factor = _factor(load, drawn)
    turns = [turn for one in drawn.conversations for turn in one.turns]
    shared = sum(shared_prefix_tokens(turn.prompt for turn in turns))
    return Demand(
        workload=choice.name,
        load=load,
        conversations=round(len(drawn.conversations) * factor),
        requests=round(len(turns) * factor),
        prompt_tokens=round(sum(turn.prompt_tokens for turn in turns) * factor),
        output_tokens=round(sum(turn.output_tokens for turn in turns) * factor),
        shared_tokens=round(shared * factor),
        think_ns=round(sum(turn.think_time_ns for turn in turns) * factor),
        span_ns=_span_ns(choice.name, load, drawn),
        skipped=drawn.skipped,
        notes=drawn.notes,
        available=available,
    )


def check_starts(demand: Demand, seeds: Sequence[int]) -> None:
    """Raise `WorkloadError` unless every block has at least one start and enough requests.

    A random process starts a different number of conversations in each block, so all seeds are
    checked before the first run.
    """
    load, name = demand.load, demand.workload
    random = load.arrivals == "gamma" or _expected_starts(load) < _MANY_STARTS
    if load.mode != "rate" or (demand.available is None and not random):
        return
    starts = [len(starts_of(load, seed=seed)) for seed in seeds]
    starting = f"{name}: {load.label} for {duration_text(load.duration_ns or 0)} starts"
    if not min(starts):
        error = WorkloadError(f"{starting} no conversation in block {starts.index(0)}")
        error.add_note("set a longer duration or a higher rate")
        raise error
    if demand.available is not None and max(starts) > demand.available:
        error = WorkloadError(
            f"{starting} {max(starts)} conversations in block {starts.index(max(starts))}, "
            f"but the trace has only {demand.available} rows to replay"
        )
        error.add_note(f"{_fewer_starts(load, demand.available)}; rows are never repeated")
        raise error


def _fewer_starts(load: Load, available: int) -> str:
    """Return the change for which no block starts more than `available` conversations."""
    most = available
    while most and _most_starts(load, most) > available:
        most -= 1
    if not most:
        return f"use a longer trace, or set concurrency: 1, requests: {available}"
    longest_ns = math.floor(most / (load.rate_rps or 1) * 1e9)
    unit_ns = next(unit for unit in (1_000_000_000, 1_000_000, 1) if longest_ns >= 10 * unit)
    return f"set duration: {duration_text(longest_ns // unit_ns * unit_ns)} or less"


def _most_starts(load: Load, expected: float) -> float:
    """Return an upper bound for the starts of a block with this expected number."""
    spread = {"constant": 0.0, "gamma": load.gamma_cv or 1.0}.get(load.arrivals, 1.0)
    return expected + _SPREADS * spread * math.sqrt(expected)


def _wanted_requests(workload: AnyWorkload, load: Load) -> int | None:
    if load.mode == "trace":
        return None
    wanted = load.requests or max(1, math.ceil(_expected_starts(load)))
    return wanted if isinstance(workload, TraceReplay) else min(wanted, _DRAWN_REQUESTS)


def _expected_starts(load: Load) -> float:
    return (load.rate_rps or 0) * (load.duration_ns or 0) / 1e9


def _factor(load: Load, drawn: Drawn) -> float:
    """Return planned requests ÷ drawn requests."""
    if load.mode == "trace":
        return 1.0
    if load.mode == "rate":  # a rate counts conversations, not requests
        return max(1.0, _expected_starts(load)) / len(drawn.conversations)
    turns = sum(len(one.turns) for one in drawn.conversations)
    return max(1.0, (load.requests or 0) / turns)


def _span_ns(name: str, load: Load, drawn: Drawn) -> int | None:
    if load.mode == "concurrency":
        return None
    if load.mode == "rate":
        return load.duration_ns
    starts = [one.start_ns for one in drawn.conversations]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        error = WorkloadError(f"{name}: arrivals: trace needs times, and the trace has none")
        error.add_note("use {concurrency: …, requests: …} or {rate: …, duration: …} as its load")
        raise error
    return round((known[-1] - known[0]) / (load.speedup or 1.0))
