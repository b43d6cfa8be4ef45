"""Doing what was planned: start, ask, prove, store, run by run. Nothing is decided here."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from adapters.base import Endpoint, EngineAdapter, EngineError
from harness import __version__
from harness.client.live_history import takes_live
from harness.client.request_body import Asking
from harness.counter_moves import counter_moves
from harness.diagnosis_facts import diagnosis_facts
from harness.environment import git_commit, host_facts
from harness.evidence import Exercise, Triple, contradictions, examine
from harness.load.cache_state import (
    CacheFinding,
    CacheStart,
    examine_cache,
    fresh_salt,
    primed,
    steady,
)
from harness.load.play import Played, play_on
from harness.load.question import Question, question_of, steady_seed
from harness.load.schedule import ClosedLoop, Schedule
from harness.load.worker_count import worker_count
from harness.plan.document import plan_document
from harness.plan.planned import Plan, PlannedArm, PlannedRun
from results.records import RequestRecord
from results.store import create_sweep, write_run, write_sweep
from workloads.base import Conversation
from workloads.prefixes import Prompt

_FAILED_STARTS = 2  # different arms of an engine, after which the others are not tried
_WARM_UP_SEED = 0x7761726D  # another draw than any that is measured


class SweepProgress(Protocol):
    """Who wants to know how far the sweep is."""

    def starting(self, arm: PlannedArm) -> None:
        """Note that an engine is being started, which may take minutes."""
        ...

    def started(self, run: PlannedRun, requests: int) -> None:
        """Note that `run` begins, with so many requests."""
        ...

    def answered(self, requests: int) -> None:
        """Note that so many more requests of the present run have ended."""
        ...

    def ended(self, run: PlannedRun, status: str) -> None:
        """Note that `run` is stored, and how it came out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run."""

    records: list[RequestRecord]
    status: str
    reason: str | None
    facts: dict[str, Any]  # what only the run itself could tell, for its manifest
    notes: tuple[str, ...] = ()
    engine_died: bool = False


class Sweep:
    """One sweep on its way through its plan."""

    def __init__(self, plan: Plan, adapters: Mapping[str, EngineAdapter], directory: Path) -> None:
        self._plan = plan
        self._adapters = adapters
        self._directory = directory
        self._questions: dict[tuple[str, str, int, int], Question] = {}
        self._ceilings: dict[tuple[str, str, int, int, int], float | None] = {}
        # Engine label → arm → why it did not start; None once one has started.
        self._starts: dict[str, dict[str, str] | None] = {}
        self._about = {
            "host": host_facts(),
            "harness_version": __version__,
            "git_commit": git_commit(),
        }

    def run(self, progress: SweepProgress) -> bool:
        """Run all that is planned and store it; return whether every run came out ok.

        Each run is stored when it ends: an interrupt loses the one that it interrupts. Raises
        `StoreError` when the folder exists or cannot be written.
        """
        create_sweep(self._directory)
        write_sweep(self._directory, self._document())
        statuses = []
        for _, group in groupby(self._plan.planned, key=lambda run: run.group):
            for run, outcome in self._run_group(list(group), progress):
                write_run(self._directory, run.key, self._manifest(run, outcome), outcome.records)
                progress.ended(run, outcome.status)
                statuses.append(outcome.status)
        return all(status == "ok" for status in statuses)

    def _run_group(
        self, runs: list[PlannedRun], progress: SweepProgress
    ) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Yield the runs of one server start with what came of them.

        An engine that dies in a run ends that run; the others get a new start. A bug ends what it
        is in, told with it, and not the sweep.
        """
        left, arm = list(runs), runs[0].arm
        while left:
            asked, facts = False, {}
            try:
                self._check_starts(arm)
                with self._started(arm, left[0].block, progress) as endpoint:
                    self._starts[arm.label] = None
                    while left and not asked:
                        run, question, asked = left[0], self._question(left[0]), True
                        progress.started(run, question.requests)
                        outcome = self._ask(run, question, endpoint, progress.answered)
                        left.pop(0)
                        asked = outcome.engine_died
                        yield run, outcome
                continue
            except EngineError as error:
                reason = _words(error)
            except Exception as error:  # noqa: BLE001  the edge of a run
                reason = f"a bug of the harness, please report it: {type(error).__name__}: {error}"
                facts = {"traceback": traceback.format_exc()}
            ended = left[:1] if asked else left  # one that does not start, starts for nobody
            left = left[len(ended) :]
            if not asked:
                self._note_failed_start(arm, reason)
            for run in ended:
                yield run, Outcome(records=[], status="failed", reason=reason, facts=facts)

    def _check_starts(self, arm: PlannedArm) -> None:
        """Raise `EngineError` where other arms of this engine have failed to start, and none did.

        What is wrong with all of them needs minutes each time, and says nothing new.
        """
        failed = self._starts.get(arm.label) or {}
        if arm.name not in failed and len(failed) >= _FAILED_STARTS:
            names = ", ".join(failed)
            error = EngineError(f"not started, since no arm of {arm.label} was: {names} failed")
            error.add_note(f"the last: {next(reversed(failed.values()))}")
            raise error

    def _note_failed_start(self, arm: PlannedArm, reason: str) -> None:
        failed = self._starts.setdefault(arm.label, {})
        if failed is not None:  # None: an arm has started, so it is not the engine
            failed.setdefault(arm.name, reason)

    def _started(
        self, arm: PlannedArm, block: int, progress: SweepProgress
    ) -> AbstractContextManager[Endpoint]:
        progress.starting(arm)
        log = self._directory / "logs" / f"{arm.label}.{arm.name}.block{block}.log"
        return self._adapters[arm.engine].start(replace(arm.settings, log_path=log))

    def _ask(
        self,
        run: PlannedRun,
        question: Question,
        endpoint: Endpoint,
        answered: Callable[[int], None],
    ) -> Outcome:
        """Play one run, its cache made ready, and hold what it did against what was asked."""
        ramp_ns = self._warm_up(run, question, endpoint)
        schedule = question.schedule(run.load, ramp_ns)
        asking = Asking(
            seed=run.seed % 2**31,
            cache_salt=fresh_salt(endpoint),
            timeout_s=self._plan.spec.request_timeout_s,
        )
        workers = worker_count(self._plan.spec.workers, question)
        endpoint.reset()
        cache = self._cache(run, question, endpoint, asking, ramp_ns)
        before = endpoint.counters()
        started = datetime.now(UTC)
        played = play_on(endpoint, schedule, question.conversations, answered, asking, workers)
        records = played.records
        try:
            counters, odd = counter_moves(before, endpoint.counters())
        except EngineError as error:
            return Outcome(
                records=records,
                status="failed",
                reason=_words(error),
                facts=_told(endpoint, played, started),
                engine_died=True,
            )
        engine_facts = dict(endpoint.facts())
        block_tokens = engine_facts.get("block_size")
        ceiling = self._ceiling(run, question, block_tokens, cache.primed)
        exercise = _exercise(run, question, ceiling, engine_facts.get("kv_tokens"))
        triples = examine(
            run.arm.settings, endpoint.effective(), counters, exercise, endpoint.engine_kind
        )
        found = examine_cache(records, question.conversations, cache.primed, block_tokens)
        status, reason = _judge(
            records, triples, self._plan.spec.max_failed_share, _fault(cache, found)
        )
        facts = {
            **_told(endpoint, played, started),
            "evidence": {toggle: asdict(triple) for toggle, triple in triples.items()},
            "counters": asdict(counters),
            "prefix_hit_ceiling": ceiling,
            **diagnosis_facts(run.arm.settings, question),
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

    def _cache(
        self,
        run: PlannedRun,
        question: Question,
        endpoint: Endpoint,
        asking: Asking,
        ramp_ns: int,
    ) -> CacheStart:
        """Bring the emptied cache into the state that the sweep asks for.

        What is asked for that is in no record. Raises `EngineError` where it fails.
        """
        spec, load = self._plan.spec, run.load

        def play(
            schedule: Schedule, asked: tuple[Conversation, ...], workers: int = 1
        ) -> list[RequestRecord]:
            return play_on(endpoint, schedule, asked, lambda _: None, asking, workers).records

        def play_all(others: Question) -> list[RequestRecord]:
            workers = worker_count(spec.workers, others)
            return play(others.schedule(load, ramp_ns), others.conversations, workers)

        if spec.cache == "primed":
            at_once = load.concurrency or load.max_concurrency or 1
            return primed(question, play, at_once, endpoint.facts().get("block_size"))
        if spec.cache == "steady":
            caches = run.arm.settings.toggles["prefix_caching"].kind == "on"
            return steady(
                lambda number: self._draw(run, steady_seed(run.seed, number)),
                play_all,
                endpoint.facts().get("kv_tokens") if caches else None,
                spec.max_failed_share,
            )
        return CacheStart(state="cold")

    def _question(self, run: PlannedRun) -> Question:
        """Return what the run asks; all arms of a block ask the same."""
        key = (run.workload.name, run.load.label, run.block, run.seed)
        if key not in self._questions:
            self._questions = {k: q for k, q in self._questions.items() if k[2] == run.block}
            self._questions[key] = self._draw(run, run.seed)
        return self._questions[key]

    def _draw(self, run: PlannedRun, seed: int) -> Question:
        limit = run.arm.settings.max_model_len
        return question_of(run.workload, run.load, seed=seed, max_model_len=limit)

    def _warm_up(self, run: PlannedRun, question: Question, endpoint: Endpoint) -> int:
        """Return the mean service time of a request, in nanoseconds; leaves the engine warm.

        The slots of a closed loop start spread over it. The first requests of a real engine's life
        are slower than any after them, so it gets as many at once as the load has, of other texts.
        On virtual time one request says it all.
        """
        slots = run.load.concurrency or 1
        if endpoint.target is None:
            if slots == 1:
                return 0
            others, slots = question, 1
        else:
            others = self._draw(run, run.seed ^ _WARM_UP_SEED)
        first_turns = tuple(
            Conversation(conversation_id=one.conversation_id, turns=one.turns[:1])
            for one in others.conversations[:slots]
        )
        asking = Asking(timeout_s=self._plan.spec.request_timeout_s)
        schedule = ClosedLoop(concurrency=slots)
        records = play_on(endpoint, schedule, first_turns, lambda _: None, asking).records
        times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
        return sum(times) // max(1, len(times))

    def _ceiling(
        self,
        run: PlannedRun,
        question: Question,
        block_tokens: int | None,
        primed_prefixes: tuple[Prompt, ...],
    ) -> float | None:
        if block_tokens is None:
            return None
        key = (run.workload.name, run.load.label, run.block, run.seed, block_tokens)
        if key not in self._ceilings:
            self._ceilings[key] = question.prefix_hit_ceiling(block_tokens, primed_prefixes)
        return self._ceilings[key]

    def _document(self) -> dict[str, Any]:
        """Return `sweep.json`: what was planned, when, and the text that it was planned from."""
        return {
            **plan_document(self._plan),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "sweep": self._plan.spec.path.read_text(encoding="utf-8"),
        }

    def _manifest(self, run: PlannedRun, outcome: Outcome) -> dict[str, Any]:
        spec, question = self._plan.spec, self._question(run)
        return {
            **run.facts(),
            **self._about,
            "history": spec.history,
            **outcome.facts,
            "model": run.arm.settings.model,
            "hardware": asdict(spec.hardware),
            "sweep_seed": spec.seed,
            "status": outcome.status,
            "reason": outcome.reason,
            "skipped_rows": question.skipped,
            "notes": [*question.notes, *outcome.notes],
            "slo": spec.slo.facts(),
            "max_failed_share": spec.max_failed_share,
            "price_per_gpu_hour": spec.price_per_gpu_hour,
        }


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


def _lesser_history(endpoint: Endpoint) -> dict[str, str]:
    """Return that history is recorded where the server cannot be asked live; else nothing."""
    target = endpoint.target
    return {} if target is None or takes_live(target) else {"history": "recorded"}


def _words(error: EngineError) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", [])])


def _exercise(
    run: PlannedRun, question: Question, ceiling: float | None, kv_tokens: int | None
) -> Exercise:
    return Exercise(
        prefix_hit_ceiling=ceiling,
        longest_prompt_tokens=question.longest_prompt_tokens,
        most_in_flight=run.load.concurrency
        or run.load.max_concurrency
        or len(question.conversations),
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
