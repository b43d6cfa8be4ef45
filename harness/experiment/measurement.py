"""One run on an engine that is up: cache prepared, requests sent, toggles proven, judged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from harness.adapters import Endpoint, EngineError, ServerCounters, Transport
from harness.client import RequestOptions
from harness.experiment.cache_state import (
    AS_FOUND,
    CacheFinding,
    CacheStart,
    examine_cache,
    fresh_salt,
    primed,
    steady,
)
from harness.experiment.counter_moves import counter_moves, own_traffic, settled_moves
from harness.experiment.evidence import Exercise, Triple, contradictions, examine
from harness.experiment.manifest import Outcome
from harness.experiment.request_facts import diagnosis_facts, prompt_counts
from harness.experiment.request_sets import RequestSets
from harness.experiment.warm_up import (
    WarmUp,
    given_requests,
    of_given_length,
    one_request,
    rounds,
    rounds_until_settled,
)
from harness.load import (
    ClosedLoop,
    LoadResult,
    OnProgress,
    PlayInterrupted,
    RequestSet,
    Schedule,
    engine_ended,
    play_on,
    steady_seed,
    worker_count,
)
from harness.machine_load import MachineLoad, machine_facts, machine_load
from harness.plan import PlannedRun
from harness.results.store import RequestRecord
from harness.workloads import Conversation

_SEEDS = 1 << 31  # servers take a seed of 32 bits


class MeasurementInterrupted(KeyboardInterrupt):
    """The user ended a run early: `outcome` has the requests that had ended by then."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The state in which a run started."""

    warm_up: WarmUp
    cache: CacheStart
    salted: bool
    machine: MachineLoad
    counters: ServerCounters
    time: datetime


class Measurement:
    """One planned run on the engine behind `endpoint`; its requests go over `transport`."""

    def __init__(
        self,
        run: PlannedRun,
        request_sets: RequestSets,
        endpoint: Endpoint,
        transport: Transport,
    ) -> None:
        self._run, self._endpoint, self._transport = run, endpoint, transport
        self._request_sets = request_sets
        self._request_set = request_sets.of(run)

    def take(self, on_progress: OnProgress) -> Outcome:
        """Prepare the cache, play the run, and compare what the engine did with what was requested.

        `on_progress` gets the number of requests that ended since its last call. Raises
        `EngineError` where the engine dies before any record, `MeasurementInterrupted` where the
        user ends the run after the first request has ended, and else `KeyboardInterrupt`.
        """
        warm_up = self._warm_up()
        ramp_ns = warm_up.ramp_ns
        options = self._options()
        self._endpoint.reset()
        start = _Start(
            warm_up=warm_up,
            machine=machine_load(),
            cache=self._prepared_cache(options, ramp_ns),
            salted=options.cache_salt is not None,
            counters=self._endpoint.counters(),
            time=datetime.now(UTC),
        )
        try:
            result = self._play(self._request_set, options, ramp_ns, on_progress)
        except PlayInterrupted as cut:
            if not cut.result.records:
                raise
            outcome = self._outcome(cut.result, start, self._cut_short(cut))
            raise MeasurementInterrupted(outcome) from cut
        if result.gave_up is not None:
            return self._lost(result, start, result.gave_up)
        return self._outcome(result, start)

    def _lost(self, result: LoadResult, start: _Start, reason: str) -> Outcome:
        """Return the outcome of a run whose server is gone: its counters cannot be read."""
        ended, requests = len(result.records), self._request_set.requests
        if not self._transport.virtual_time and engine_ended(self._transport):
            try:
                self._endpoint.counters()
            except EngineError as error:  # with the cause, from the engine's log
                reason = f"{error_line(error)}; {reason}"
        return Outcome(
            records=result.records,
            status="failed",
            reason=f"{reason}; {ended} of {requests} requests had ended",
            facts={**self._played_facts(result, start), **self._request_facts(result.records)},
            notes=result.notes,
            engine_died=True,
        )

    def _options(self) -> RequestOptions:
        run = self._run
        leave_cache = run.conditions.cache == AS_FOUND
        return RequestOptions(
            seed=run.seed % _SEEDS,
            cache_salt=None if leave_cache else fresh_salt(self._endpoint, self._transport),
            timeout_s=run.conditions.request_timeout_s,
        )

    def _play(
        self,
        request_set: RequestSet,
        options: RequestOptions,
        ramp_ns: int,
        on_progress: OnProgress = lambda _: None,
    ) -> LoadResult:
        return play_on(
            self._transport,
            request_set.schedule(self._run.load, ramp_ns),
            request_set.conversations,
            on_progress,
            options,
            worker_count(self._run.conditions.workers, request_set),
        )

    def _warm_up(self) -> WarmUp:
        """Send the requests that warm the engine up; return how long they took."""
        run, request_sets = self._run, self._request_sets
        slots = run.load.concurrency or 1
        options = RequestOptions(timeout_s=run.conditions.request_timeout_s)

        def play(conversations: tuple[Conversation, ...]) -> list[RequestRecord]:
            schedule, workers = ClosedLoop(concurrency=slots), run.conditions.workers or 1
            transport = self._transport
            return _records(
                play_on(transport, schedule, conversations, lambda _: None, options, workers)
            )

        if run.conditions.warmup_requests is not None:
            given = given_requests(run, request_sets, run.conditions.warmup_requests)
            return of_given_length(given, slots, play)
        if self._transport.virtual_time:
            return of_given_length(one_request(run, request_sets), slots, play)
        return rounds_until_settled(rounds(run, request_sets), play)

    def _prepared_cache(self, options: RequestOptions, ramp_ns: int) -> CacheStart:
        """Bring the emptied cache into the state that the conditions name.

        The requests for that are in no record. Raises `EngineError` where it fails.
        """
        run, endpoint = self._run, self._endpoint

        def play(
            schedule: Schedule, conversations: tuple[Conversation, ...]
        ) -> list[RequestRecord]:
            return _records(
                play_on(self._transport, schedule, conversations, lambda _: None, options)
            )

        if run.conditions.cache == "primed":
            at_once = run.load.concurrency or run.load.max_concurrency or 1
            return primed(self._request_set, play, at_once, endpoint.facts().get("block_size"))
        if run.conditions.cache == "steady":
            caches = run.arm.settings.toggles["prefix_caching"].kind == "on"
            return steady(
                lambda number: self._request_sets.drawn(run, steady_seed(run.seed, number)),
                lambda others: _records(self._play(others, options, ramp_ns)),
                endpoint.facts().get("kv_tokens") if caches else None,
                run.conditions.max_failed_share,
            )
        return CacheStart(state=run.conditions.cache)

    def _cut_short(self, cut: PlayInterrupted) -> str | None:
        """Return how far the run was when it was interrupted; None: all requests had ended."""
        ended, requests = len(cut.result.records), self._request_set.requests
        if ended == requests:
            return None
        left_out = f"; {cut.in_flight} in flight were cut off and are in no figure"
        return f"{ended} of {requests} requests had ended" + left_out * bool(cut.in_flight)

    def _outcome(self, result: LoadResult, start: _Start, cut_short: str | None = None) -> Outcome:
        """Return the outcome of what was sent; `cut_short`: how far that is of the run.

        The server's counters then include the requests that were cut off, and prove nothing.
        """
        records, endpoint = result.records, self._endpoint
        known = self._played_facts(result, start)
        counters, remarks, left_out = ServerCounters(), tuple[str, ...](), None
        if cut_short is None:
            try:
                counters, remarks, left_out = self._moves(records, start.counters)
            except EngineError as error:
                return Outcome(
                    records=records,
                    status="failed",
                    reason=error_line(error),
                    facts=known,
                    engine_died=True,
                )
        engine_facts = {**endpoint.facts(), **self._transport.facts()}
        block_tokens = engine_facts.get("block_size")
        ceiling = self._ceiling(block_tokens, start.cache)
        triples = self._triples(counters, ceiling, engine_facts.get("kv_tokens"))
        found = examine_cache(
            [] if cut_short else records,
            self._request_set.conversations,
            start.cache.primed,
            block_tokens,
        )
        status, reason = self._judge(records, triples, _fault(start.cache, found))
        warming = filter(None, [start.warm_up.note()])
        return Outcome(
            records=records,
            status="interrupted" if cut_short else status,
            reason=cut_short or reason,
            facts={
                **known,
                **self._request_facts(records),
                "evidence": {toggle: asdict(triple) for toggle, triple in triples.items()},
                "counters": asdict(counters),
                "counters_left_out": left_out,
                "prefix_hit_ceiling": ceiling,
                "cache": {**start.cache.facts(), "salted": start.salted, **found.facts()},
                "facts": engine_facts,
            },
            notes=(*warming, *start.cache.notes, *result.notes, *endpoint.notes, *remarks),
        )

    def _moves(
        self, records: list[RequestRecord], before: ServerCounters
    ) -> tuple[ServerCounters, tuple[str, ...], str | None]:
        """Return what the counters moved by, remarks, and why they are not used, where not."""
        endpoint, transport = self._endpoint, self._transport
        if not transport.counts_prompts:  # in this process: nobody else can use it
            return *counter_moves(before, endpoint.counters()), None
        return settled_moves(
            lambda: counter_moves(before, endpoint.counters()),
            own_traffic(records, self._request_set.conversations, transport),
            time.sleep,
        )

    def _ceiling(self, block_tokens: int | None, cache: CacheStart) -> float | None:
        assumed = self._run.conditions.assumed_block_tokens
        return self._request_sets.ceiling(self._run, block_tokens or assumed, cache.primed)

    def _triples(
        self, counters: ServerCounters, ceiling: float | None, kv_tokens: int | None
    ) -> dict[str, Triple]:
        """Return what was requested, reported and observed of each toggle."""
        run, endpoint, request_set = self._run, self._endpoint, self._request_set
        exercise = Exercise(
            prefix_hit_ceiling=ceiling,
            longest_prompt_tokens=request_set.longest_prompt_tokens,
            most_in_flight=run.load.concurrency
            or run.load.max_concurrency
            or len(request_set.conversations),
            kv_tokens=kv_tokens,
        )
        return examine(
            run.arm.settings, endpoint.effective(), counters, exercise, endpoint.engine_kind
        )

    def _played_facts(self, result: LoadResult, start: _Start) -> dict[str, Any]:
        """Return what is known of any run, also of one whose engine died."""
        facts: dict[str, Any] = {
            "engine_version": self._endpoint.engine_version,
            "engine_kind": self._endpoint.engine_kind,
            "clock": result.clock,
            "clock_origin_ns": result.origin_ns,
            "client": result.client,
            "started": start.time.isoformat(timespec="seconds"),
            "warm_up": asdict(start.warm_up),
        }
        if not self._transport.virtual_time:
            facts["machine"] = machine_facts(start.machine, machine_load())
        return facts if self._transport.live_history else {**facts, "history": "recorded"}

    def _request_facts(self, records: list[RequestRecord]) -> dict[str, Any]:
        """Return what a diagnosis needs of the requests, and what a server counted of prompts."""
        arm, request_set, transport = self._run.arm, self._request_set, self._transport
        facts = diagnosis_facts(arm.settings if arm.gpus is not None else None, request_set)
        if not transport.counts_prompts:
            return facts
        return {**facts, "prompts": prompt_counts(records, request_set.conversations, transport)}

    def _judge(
        self, records: list[RequestRecord], triples: Mapping[str, Triple], cache_fault: str | None
    ) -> tuple[str, str | None]:
        """Return a run's status and, where it is not ok, the reason."""
        wrong = [*contradictions(triples), *([] if cache_fault is None else [cache_fault])]
        if wrong:
            return "void", "; ".join(wrong)
        failed = sum(
            record.error_kind is not None or not len(record.token_events) for record in records
        )
        if failed > self._run.conditions.max_failed_share * len(records):
            return "failed", f"{failed} of {len(records)} requests failed"
        return "ok", None


def _records(result: LoadResult) -> list[RequestRecord]:
    """Return the records of requests before a run.

    Raises `EngineError` where the server is gone.
    """
    if result.gave_up is not None:
        raise EngineError(f"before the run {result.gave_up}")
    return result.records


def error_line(error: EngineError) -> str:
    """Return an error and its notes as one line."""
    return "; ".join([str(error), *getattr(error, "__notes__", [])])


def _fault(cache: CacheStart, found: CacheFinding) -> str | None:
    """Return why the cache was not as its state requires; only cold and primed require anything."""
    return found.fault() if cache.state in ("cold", "primed") else None
