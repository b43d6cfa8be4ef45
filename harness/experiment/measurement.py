"""One run on an engine that is up: its cache made ready, asked, proven, judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from harness.adapters import Endpoint, EngineError
from harness.client import RequestOptions, takes_live
from harness.experiment.cache_state import (
    CacheFinding,
    CacheStart,
    examine_cache,
    fresh_salt,
    primed,
    steady,
)
from harness.experiment.counter_moves import counter_moves
from harness.experiment.diagnosis_facts import diagnosis_facts
from harness.experiment.evidence import Exercise, Triple, contradictions, examine
from harness.experiment.prompt_counts import prompt_counts
from harness.experiment.request_sets import RequestSets
from harness.load import (
    ClosedLoop,
    OnProgress,
    Played,
    RequestSet,
    Schedule,
    play_on,
    steady_seed,
    worker_count,
)
from harness.plan import PlannedRun
from harness.results.store import RequestRecord
from harness.sweep_file import SweepSpec
from harness.workloads import Conversation

_WARM_UP_SEED = 0x7761726D  # another draw than any that is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run."""

    records: list[RequestRecord]
    status: str
    reason: str | None
    facts: dict[str, Any]  # what only the run itself could tell, for its manifest
    notes: tuple[str, ...] = ()
    engine_died: bool = False


class Measurement:
    """One planned run of a sweep on the engine behind `endpoint`."""

    def __init__(
        self, run: PlannedRun, spec: SweepSpec, request_sets: RequestSets, endpoint: Endpoint
    ) -> None:
        self._run, self._spec, self._endpoint = run, spec, endpoint
        self._request_sets = request_sets
        self._request_set = request_sets.of(run)

    def take(self, on_progress: OnProgress) -> Outcome:
        """Prepare the cache, play the run, and compare what the engine did with what was requested.

        `on_progress` gets the number of requests that ended since its last call. Raises
        `EngineError` where the engine dies before any record.
        """
        run, request_set, endpoint = self._run, self._request_set, self._endpoint
        ramp_ns = self._warm_up()
        schedule = request_set.schedule(run.load, ramp_ns)
        asking = RequestOptions(
            seed=run.seed % 2**31,
            cache_salt=fresh_salt(endpoint),
            timeout_s=self._spec.request_timeout_s,
        )
        workers = worker_count(self._spec.workers, request_set)
        endpoint.reset()
        cache = self._cache(asking, ramp_ns)
        before = endpoint.counters()
        started = datetime.now(UTC)
        played = play_on(
            endpoint, schedule, request_set.conversations, on_progress, asking, workers
        )
        records = played.records
        try:
            counters, odd = counter_moves(before, endpoint.counters())
        except EngineError as error:
            return Outcome(
                records=records,
                status="failed",
                reason=words(error),
                facts=_told(endpoint, played, started),
                engine_died=True,
            )
        engine_facts = dict(endpoint.facts())
        block_tokens = engine_facts.get("block_size")
        ceiling = self._request_sets.ceiling(run, block_tokens, cache.primed)
        exercise = _exercise(run, request_set, ceiling, engine_facts.get("kv_tokens"))
        triples = examine(
            run.arm.settings, endpoint.effective(), counters, exercise, endpoint.engine_kind
        )
        found = examine_cache(records, request_set.conversations, cache.primed, block_tokens)
        status, reason = _judge(records, triples, self._spec.max_failed_share, _fault(cache, found))
        facts = {
            **_told(endpoint, played, started),
            **_prompts(records, request_set, endpoint),
            "evidence": {toggle: asdict(triple) for toggle, triple in triples.items()},
            "counters": asdict(counters),
            "prefix_hit_ceiling": ceiling,
            **diagnosis_facts(run.arm.settings, request_set),
            "cache": {**cache.facts(), "salted": bool(asking.cache_salt), **found.facts()},
            "facts": engine_facts,
        }
        return Outcome(
            records=records,
            status=status,
            reason=reason,
            facts=facts,
            notes=(*cache.notes, *played.notes, *odd),
        )

    def _cache(self, asking: RequestOptions, ramp_ns: int) -> CacheStart:
        """Bring the emptied cache into the state that the sweep asks for.

        What is asked for that is in no record. Raises `EngineError` where it fails.
        """
        spec, run, endpoint = self._spec, self._run, self._endpoint

        def play(
            schedule: Schedule, asked: tuple[Conversation, ...], workers: int = 1
        ) -> list[RequestRecord]:
            return play_on(endpoint, schedule, asked, lambda _: None, asking, workers).records

        def play_all(others: RequestSet) -> list[RequestRecord]:
            workers = worker_count(spec.workers, others)
            return play(others.schedule(run.load, ramp_ns), others.conversations, workers)

        if spec.cache == "primed":
            at_once = run.load.concurrency or run.load.max_concurrency or 1
            return primed(self._request_set, play, at_once, endpoint.facts().get("block_size"))
        if spec.cache == "steady":
            caches = run.arm.settings.toggles["prefix_caching"].kind == "on"
            return steady(
                lambda number: self._request_sets.drawn(run, steady_seed(run.seed, number)),
                play_all,
                endpoint.facts().get("kv_tokens") if caches else None,
                spec.max_failed_share,
            )
        return CacheStart(state="cold")

    def _warm_up(self) -> int:
        """Return the mean service time of a request, in nanoseconds; leaves the engine warm.

        The slots of a closed loop start spread over it. The first requests of a real engine's life
        are slower than any after them, so it gets as many at once as the load has, of other texts.
        On virtual time one request says it all.
        """
        run, endpoint = self._run, self._endpoint
        slots = run.load.concurrency or 1
        if endpoint.target is None:
            if slots == 1:
                return 0
            others, slots = self._request_set, 1
        else:
            others = self._request_sets.drawn(run, run.seed ^ _WARM_UP_SEED)
        first_turns = tuple(
            Conversation(conversation_id=one.conversation_id, turns=one.turns[:1])
            for one in others.conversations[:slots]
        )
        asking = RequestOptions(timeout_s=self._spec.request_timeout_s)
        schedule = ClosedLoop(concurrency=slots)
        records = play_on(endpoint, schedule, first_turns, lambda _: None, asking).records
        times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
        return sum(times) // max(1, len(times))


def _told(endpoint: Endpoint, played: Played, started: datetime) -> dict[str, Any]:
    """Return what is known of any run that was played."""
    return {
        "engine_version": endpoint.engine_version,
        "engine_kind": endpoint.engine_kind,
        "clock": played.clock,
        "clock_origin_ns": played.origin_ns,
        "client": played.client,
        "started": started.isoformat(timespec="seconds"),
        **_lesser_history(endpoint),
    }


def _prompts(
    records: list[RequestRecord], request_set: RequestSet, endpoint: Endpoint
) -> dict[str, Any]:
    """Return what a server counted of the prompts; nothing where there is no server."""
    target = endpoint.target
    if target is None:
        return {}
    return {"prompts": prompt_counts(records, request_set.conversations, target)}


def _lesser_history(endpoint: Endpoint) -> dict[str, str]:
    """Return that history is recorded where the server cannot be asked live; else nothing."""
    target = endpoint.target
    return {} if target is None or takes_live(target) else {"history": "recorded"}


def words(error: EngineError) -> str:
    """Return an error and its notes as one line."""
    return "; ".join([str(error), *getattr(error, "__notes__", [])])


def _exercise(
    run: PlannedRun, request_set: RequestSet, ceiling: float | None, kv_tokens: int | None
) -> Exercise:
    return Exercise(
        prefix_hit_ceiling=ceiling,
        longest_prompt_tokens=request_set.longest_prompt_tokens,
        most_in_flight=run.load.concurrency
        or run.load.max_concurrency
        or len(request_set.conversations),
        kv_tokens=kv_tokens,
    )


def _fault(cache: CacheStart, found: CacheFinding) -> str | None:
    """Return why the cache was not as the label says; of a steady one nothing can say so."""
    return None if cache.state == "steady" else found.fault()


def _judge(
    records: list[RequestRecord],
    triples: Mapping[str, Triple],
    max_failed_share: float,
    cache_fault: str | None,
) -> tuple[str, str | None]:
    """Return a run's status and, where it is not ok, the reason."""
    wrong = [*contradictions(triples), *([] if cache_fault is None else [cache_fault])]
    if wrong:
        return "void", "; ".join(wrong)
    failed = sum(
        record.error_kind is not None or not len(record.token_events) for record in records
    )
    if failed > max_failed_share * len(records):
        return "failed", f"{failed} of {len(records)} requests failed"
    return "ok", None
