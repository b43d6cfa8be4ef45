"""Loading a server that somebody else started: one run, stored and analysed like any other."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import __version__
from harness.adapters import ServerCounters
from harness.adapters.attached import Attached
from harness.client import RequestOptions
from harness.environment import git_commit, host_facts
from harness.experiment import counter_moves, diagnosis_facts, probe, prompt_counts, refused
from harness.interrupts import answering_interrupts
from harness.load import (
    OnProgress,
    Played,
    PlayInterrupted,
    RequestSet,
    play_http,
    request_set_of,
    worker_count,
)
from harness.results import count, write_summary
from harness.results.dialects import dialect_document
from harness.results.store import create_sweep, run_folder, write_run, write_sweep
from harness.sweep_file import AnyWorkload, Load, SpecError

MOST_REQUESTS = 1_000_000  # of one load: all of them, and their answers, are held in memory
_UNBOUNDED_TOKENS = 1 << 20  # where the server does not tell how long a request may be
_BLOCK_TOKENS = 16  # in which the prefix hits of a server that does not tell are counted
_RUN = "load"  # the key of the one run
_SEEDS = 1 << 31  # servers take a seed of 32 bits
_WARMUP_SEED = 0x7761726D  # another draw than any that is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """What is asked of a server that runs."""

    endpoint: Attached
    workload: AnyWorkload
    workload_kind: str
    load: Load
    seed: int
    warmup: int  # requests before the measured ones, of other texts
    timeout_s: float | None  # for one request
    workers: int | None  # processes that offer the load; None: as many as it needs
    out: Path | None  # None: nothing is kept
    dialect: str | None = None  # a tool by whose formulas the records are stated as well


def load_server(order: LoadOrder, on_progress: OnProgress) -> dict[str, Any]:
    """Return the summary of one run against the server; written to `out` where it is given.

    With a dialect the summary that is returned has a key `dialect` more. An interrupted run has
    the status `interrupted` and the figures of what had ended; where nothing had, nothing is left
    and `KeyboardInterrupt` says so. Raises `WorkloadError`, `EngineError` or `StoreError` before
    anything is sent.
    """
    request_set = _asked(order)
    with ExitStack() as kept:
        folder = order.out or Path(kept.enter_context(tempfile.TemporaryDirectory())) / "load"
        create_sweep(folder)
        try:
            return _stored(order, request_set, folder, on_progress)
        except BaseException:
            if not run_folder(folder, _RUN).exists():
                shutil.rmtree(folder, ignore_errors=True)  # so that the order can be given again
            raise


def _asked(order: LoadOrder) -> RequestSet:
    """Return what is asked. Raises `SpecError` where that cannot be what was ordered."""
    request_set = _request_set(order, order.load, order.seed)
    if request_set.requests > MOST_REQUESTS:
        raise SpecError(
            f"{request_set.requests:,} requests are asked; one load has at most {MOST_REQUESTS:,}"
        )
    alive, conversations = order.load.concurrency or 1, len(request_set.conversations)
    if alive > conversations:
        turns = -(-request_set.requests // conversations)
        error = SpecError(
            f"--concurrency {alive:,}: {request_set.requests:,} requests are asked, in "
            f"{count(conversations, 'conversation')}, and more are never alive at once"
        )
        error.add_note(
            f"ask for less concurrency, or for more: --requests {alive * (turns + 3):,} makes a "
            "steady load of it"
        )
        raise error
    return request_set


def _probed(order: LoadOrder) -> LoadOrder:
    """Return `order` without what the server refuses. Its counters are read later."""
    found = probe(order.endpoint.target, _asking(order))
    endpoint = replace(order.endpoint, target=found.target, told=found.notes)
    return replace(order, endpoint=endpoint)


def _stored(
    order: LoadOrder, request_set: RequestSet, folder: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Return the summary of the run, stored in `folder`; an interrupt does not end the storing."""
    order, run = _accepted(order, request_set, on_progress)
    with answering_interrupts(lambda: None):
        write_sweep(folder, _document(order, run.started))
        write_run(folder, _RUN, _manifest(order, request_set, run), run.played.records)
        summary = write_summary(folder).summary
        if order.dialect is None:
            return summary
        return {**summary, "dialect": dialect_document(folder, order.dialect, summary)}


def _accepted(
    order: LoadOrder, request_set: RequestSet, on_progress: OnProgress
) -> tuple[LoadOrder, _Run]:
    """Return what came of the load, and the order as the server takes it.

    Where it refuses every request of a closed loop, which takes no time, it is asked which field it
    does not take, and the load begins again without. An open loop would be refused for its whole
    length, so there that is asked first.
    """
    if order.load.mode != "concurrency":
        order = _probed(order)
        return order, _run(order, request_set, on_progress)
    run = _run(order, request_set, on_progress)
    if run.interrupted is None and all(map(refused, run.played.records)):
        taken = _probed(order)
        if taken.endpoint.target != order.endpoint.target:
            return taken, _run(taken, request_set, lambda _: None)
    return order, run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What was played, and how it came to its end."""

    played: Played
    started: datetime
    counters: ServerCounters  # moves over the run
    odd: tuple[str, ...] = ()  # what must be said of them
    interrupted: str | None = None  # how far it was then; None: it came to its own end


def _run(order: LoadOrder, request_set: RequestSet, on_progress: OnProgress) -> _Run:
    """Return what came of the load. Raises `KeyboardInterrupt` where nothing had ended."""
    ramp_ns = _warm_up(order)
    before = order.endpoint.counters()
    started = datetime.now(UTC)
    try:
        played = _play(order, request_set, ramp_ns, on_progress)
    except PlayInterrupted as cut:
        played, ended = cut.played, len(cut.played.records)
        if not ended:
            raise
        if ended < request_set.requests:
            how = f"{ended} of {request_set.requests} requests had ended"
            left_out = f"; {cut.in_flight} in flight were cut off and are in no figure"
            # What the server counts holds those that were cut off too.
            return _Run(
                played=played,
                started=started,
                counters=ServerCounters(),
                interrupted=how + left_out * bool(cut.in_flight),
            )
    counters, odd = counter_moves(before, order.endpoint.counters())
    return _Run(played=played, started=started, counters=counters, odd=odd)


def _request_set(order: LoadOrder, load: Load, seed: int) -> RequestSet:
    limit = order.endpoint.max_model_len or _UNBOUNDED_TOKENS
    return request_set_of(order.workload, load, seed=seed, max_model_len=limit)


def _play(
    order: LoadOrder, request_set: RequestSet, ramp_ns: int, on_progress: OnProgress
) -> Played:
    schedule = request_set.schedule(order.load, ramp_ns)
    return play_http(
        order.endpoint.target,
        schedule,
        request_set.conversations,
        on_progress,
        _asking(order),
        worker_count(order.workers, request_set),
    )


def _asking(order: LoadOrder) -> RequestOptions:
    return RequestOptions(seed=order.seed % _SEEDS, timeout_s=order.timeout_s)


def _warm_up(order: LoadOrder) -> int:
    """Send the requests that are not measured; return their mean time, over which slots start.

    Without a warm-up nothing is known of the server, and all slots start at once.
    """
    if not order.warmup:
        return 0
    slots = order.load.concurrency or 1
    load = Load(mode="concurrency", arrivals="closed", concurrency=slots, requests=order.warmup)
    request_set = _request_set(order, load, order.seed ^ _WARMUP_SEED)
    records = _play(replace(order, load=load), request_set, 0, lambda _: None).records
    times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
    return sum(times) // len(times) if times else 0


def _document(order: LoadOrder, started: datetime) -> dict[str, Any]:
    return {
        "name": "load",
        "created": started.isoformat(timespec="seconds"),
        "model": order.endpoint.target.model,
        "hardware": {"gpu": "unknown", "count": None},
        "seed": order.seed,
        "slo": None,
        "harness_version": __version__,
        "planned": [],
    }


def _manifest(order: LoadOrder, request_set: RequestSet, run: _Run) -> dict[str, Any]:
    endpoint, played = order.endpoint, run.played
    status, reason = _outcome(run)
    return {
        "key": _RUN,
        "arm": "baseline",
        "toggles": {},
        "flipped": {},
        "block": 0,
        "engine": "url",
        "label": "url",
        "engine_version": endpoint.engine_version,
        "engine_kind": endpoint.engine_kind,
        "model": endpoint.target.model,
        "workload": order.workload.name,
        "workload_kind": order.workload_kind,
        "load": _load_facts(order, request_set),
        "seed": order.seed,
        "status": status,
        "reason": reason,
        "max_failed_share": 0.0,  # a load that lost a request exits with 1
        "clock": played.clock,
        "clock_origin_ns": played.origin_ns,
        "client": played.client,
        "counters": asdict(run.counters),
        "started": run.started.isoformat(timespec="seconds"),
        **diagnosis_facts(None, request_set),
        "prefix_hit_ceiling": request_set.prefix_hit_ceiling(_BLOCK_TOKENS),
        "prompts": prompt_counts(played.records, request_set.conversations, endpoint.target),
        "skipped_rows": request_set.skipped,
        "notes": [*request_set.notes, *played.notes, *endpoint.notes, *run.odd],
        "facts": dict(endpoint.facts()),
        "host": host_facts(),
        "harness_version": __version__,
        "git_commit": git_commit(),
    }


def _load_facts(order: LoadOrder, request_set: RequestSet) -> dict[str, Any]:
    """Return what was asked for; of a trace in closed loop all its rows where no number was."""
    facts = {**order.load.facts(), "warmup_requests": order.warmup}
    del facts["warmup"]  # that part of a run is none of its own here: the warm-up is sent before
    if order.load.mode == "concurrency":
        facts["requests"] = order.load.requests or request_set.requests
    return facts


def _outcome(run: _Run) -> tuple[str, str | None]:
    """Return the status of the run and, where it is not ok, the reason."""
    if run.interrupted is not None:
        return "interrupted", run.interrupted
    records = run.played.records
    failed = sum(one.error_kind is not None for one in records)
    return ("failed", f"{failed} of {len(records)} requests failed") if failed else ("ok", None)
