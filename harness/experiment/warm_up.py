"""The requests before a run: they warm the engine up, and their mean time spreads the slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.experiment.request_sets import RequestSets
from harness.plan import PlannedRun
from harness.results.store import RequestRecord
from harness.sweep_file import Load
from harness.workloads import Conversation

_WARM_UP_SEED = 0x7761726D  # another draw than any that is measured
_ROUND_SEEDS = 1 << 32  # apart from those of the next round
_SETTLED = 0.2  # two rounds in a row that differ by less of the longer one: the engine is warm
_MOST_ROUNDS = 8
_MOST_S = 600.0  # no further round begins after that

Play = Callable[[tuple[Conversation, ...]], Sequence[RequestRecord]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What was sent before a run."""

    ramp_ns: int = 0  # mean service time of the last round; the slots start spread over it
    round_s: tuple[float, ...] = ()  # first send to last byte of each round
    settled: bool | None = None  # None: its length was given, and was not compared

    def note(self) -> str | None:
        """Return what a reader must know of it: an engine that was still getting faster."""
        if self.settled is not False:
            return None
        rounds = ", ".join(f"{seconds:.3g}" for seconds in self.round_s)
        return (
            f"the warm-up did not settle: its rounds took {rounds} s; the engine may still have "
            "been compiling when the run began"
        )


def rounds_until_settled(rounds: Iterator[tuple[Conversation, ...]], play: Play) -> WarmUp:
    """Play rounds until two in a row take the same time within 20 %.

    The first requests of a real engine's life wait for kernels to compile: a ramp computed from
    them would be many times too long. At most 8 rounds, and none begins after 10 minutes.
    """
    times_s: list[float] = []
    records: Sequence[RequestRecord] = ()
    settled = False
    for conversations in rounds:
        records = play(conversations)
        times_s.append(_length_s(records))
        settled = len(times_s) > 1 and _alike(*times_s[-2:])
        if settled or len(times_s) == _MOST_ROUNDS or sum(times_s) > _MOST_S:
            break
    return WarmUp(ramp_ns=mean_service_time_ns(records), round_s=tuple(times_s), settled=settled)


def of_given_length(conversations: tuple[Conversation, ...], slots: int, play: Play) -> WarmUp:
    """Play `conversations` once; the ramp comes from the last request of each slot."""
    if not conversations:
        return WarmUp()
    records = sorted(play(conversations), key=lambda one: one.sent_ns or 0)
    return WarmUp(ramp_ns=mean_service_time_ns(records[-slots:]), round_s=(_length_s(records),))


def rounds(run: PlannedRun, request_sets: RequestSets) -> Iterator[tuple[Conversation, ...]]:
    """Yield rounds without end: one request for each slot, of texts that come only once."""
    slots, number = run.load.concurrency or 1, 0
    while True:
        seed = run.seed ^ (_WARM_UP_SEED + number * _ROUND_SEEDS)
        conversations = request_sets.drawn(run, seed).conversations
        for begin in range(0, max(1, len(conversations) - slots + 1), slots):
            yield _first_turns(conversations[begin : begin + slots])
        number += 1


def one_request(run: PlannedRun, request_sets: RequestSets) -> tuple[Conversation, ...]:
    """Return the warm-up on virtual time, where one request is as good as many."""
    slots = run.load.concurrency or 1
    return _first_turns(request_sets.of(run).conversations[:1]) if slots > 1 else ()


def given_requests(
    run: PlannedRun, request_sets: RequestSets, requests: int
) -> tuple[Conversation, ...]:
    """Return so many requests, in whole conversations of other texts; none for 0."""
    if not requests:
        return ()
    load = Load(
        mode="concurrency",
        arrivals="closed",
        concurrency=run.load.concurrency or 1,
        requests=requests,
    )
    as_closed_loop = replace(run, load=load)
    return request_sets.drawn(as_closed_loop, run.seed ^ _WARM_UP_SEED).conversations


def mean_service_time_ns(records: Sequence[RequestRecord]) -> int:
    """Return the mean time from sending to the last byte, in nanoseconds; 0 without requests."""
    times = [one.closed_ns - one.sent_ns for one in records if one.sent_ns is not None]
    return sum(times) // max(1, len(times))


def _first_turns(conversations: Sequence[Conversation]) -> tuple[Conversation, ...]:
    return tuple(
        Conversation(conversation_id=one.conversation_id, turns=one.turns[:1])
        for one in conversations
    )


def _length_s(records: Sequence[RequestRecord]) -> float:
    sent = [one.sent_ns for one in records if one.sent_ns is not None]
    return (max(one.closed_ns for one in records) - min(sent)) / 1e9 if sent else 0.0


def _alike(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) <= _SETTLED * max(one_s, other_s)
