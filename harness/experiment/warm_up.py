"""The requests before a run: they warm the engine up, and their mean time spreads the slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.experiment.request_sets import RequestSets
from harness.plan import PlannedRun
from harness.results.store import RequestRecord
from harness.sweep_file import Load
from harness.workloads import Conversation

_WARM_UP_SEED = 0x7761726D  # another draw than any that is measured


def warm_up_conversations(
    run: PlannedRun, request_sets: RequestSets, *, virtual_time: bool
) -> tuple[Conversation, ...]:
    """Return what is sent before `run`: as many requests as its conditions name.

    Where they name no number, one for each slot, of other texts: the first requests of a real
    engine's life are slower than any after them. On virtual time one request is as good as many.
    """
    slots, requests = run.load.concurrency or 1, run.conditions.warmup_requests
    if requests is not None:
        return _whole_conversations(run, request_sets, requests) if requests else ()
    if not virtual_time:
        others = request_sets.drawn(run, run.seed ^ _WARM_UP_SEED)
        return _first_turns(others.conversations[:slots])
    return _first_turns(request_sets.of(run).conversations[:1]) if slots > 1 else ()


def _whole_conversations(
    run: PlannedRun, request_sets: RequestSets, requests: int
) -> tuple[Conversation, ...]:
    load = Load(
        mode="concurrency",
        arrivals="closed",
        concurrency=run.load.concurrency or 1,
        requests=requests,
    )
    as_closed_loop = replace(run, load=load)
    return request_sets.drawn(as_closed_loop, run.seed ^ _WARM_UP_SEED).conversations


def _first_turns(conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
    return tuple(
        Conversation(conversation_id=one.conversation_id, turns=one.turns[:1])
        for one in conversations
    )


def mean_service_time_ns(records: Sequence[RequestRecord]) -> int:
    """Return the mean time from sending to the last byte, in nanoseconds; 0 without requests."""
    times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
    return sum(times) // max(1, len(times))
