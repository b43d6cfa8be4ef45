"""The requests of one run, and when: a workload drawn for a load, the same for all arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.load.arrivals import (
    constant_arrivals,
    gamma_arrivals,
    poisson_arrivals,
    trace_arrivals,
)
from harness.load.schedule import ClosedLoop, OpenLoop, Schedule
from harness.sweep_file import Load, duration_text, plain_number
from harness.workloads import Conversation, Drawn, Workload, WorkloadError
from harness.workloads.prompts import (
    Overlap,
    PrefixTree,
    Prompt,
    hit_share,
    left_behind,
    overlap_of,
)

_STEADY_SEED = 0x737465616479  # other draws than any that are measured


@dataclass(frozen=True, kw_only=True)  # without slots, so that what takes long is kept
class RequestSet:
    """Conversations and, in open loop, when each starts."""

    conversations: tuple[Conversation, ...]
    starts_ns: tuple[int, ...] | None  # None: closed loop
    skipped: dict[str, int]
    notes: tuple[str, ...]

    @property
    def requests(self) -> int:
        """Turns in all."""
        return sum(len(one.turns) for one in self.conversations)

    @property
    def longest_prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""
        return max(turn.prompt_tokens for one in self.conversations for turn in one.turns)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Output tokens requested per second in open loop; None where the server sets the pace."""
        if self.starts_ns is None or self.starts_ns[-1] <= self.starts_ns[0]:
            return None
        tokens = sum(turn.output_tokens for one in self.conversations for turn in one.turns)
        return tokens / (self.starts_ns[-1] - self.starts_ns[0]) * 1e9

    def prefix_hit_ceiling(self, block_tokens: int, primed: Sequence[Prompt] = ()) -> float | None:
        """Return the share of prompt tokens that an unlimited cache would find.

        `primed` was in it before the first request.
        """
        return hit_share(self._shared(primed), block_tokens)

    @cached_property
    def overlap(self) -> Overlap | None:
        """What the prompts have in common with earlier ones; the same for all arms of a block."""
        return overlap_of(self._shared(()))

    def _shared(self, primed: Sequence[Prompt]) -> Iterator[tuple[Prompt, int]]:
        """Yield each prompt, in order, with the tokens that it shares with what came before."""
        tree = PrefixTree()
        for prompt in primed:
            tree.add(prompt, 0)
        for one in self.conversations:
            for turn, left in zip(one.turns, left_behind(one), strict=True):
                yield turn.prompt, tree.shared_tokens(turn.prompt, -1)
                tree.add(left, 0)

    def schedule(self, load: Load, ramp_ns: int) -> Schedule:
        """Return when it is sent; `ramp_ns` spreads the starts of a closed loop."""
        if self.starts_ns is None:
            return ClosedLoop(concurrency=load.concurrency or 1, ramp_ns=ramp_ns)
        return OpenLoop(starts_ns=self.starts_ns, max_concurrency=load.max_concurrency)


def steady_seed(seed: int, round_number: int) -> int:
    """Return the seed of the requests that fill the cache before a run with that seed."""
    return (seed ^ _STEADY_SEED) + round_number


def request_set_of(workload: Workload, load: Load, *, seed: int, max_model_len: int) -> RequestSet:
    """Return the requests of `workload` under `load`. Raises `WorkloadError`."""

    def draw(requests: int | None) -> Drawn:
        return workload.draw(requests=requests, seed=seed, max_model_len=max_model_len)

    if load.mode == "concurrency":
        return _request_set(draw(load.requests), None)
    if load.mode == "rate":
        starts = starts_of(load, seed=seed)
        if not starts:
            raise _no_start(load, seed)
        return _request_set(_enough(draw, len(starts)), starts)
    drawn = draw(None)
    times = [one.start_ns for one in drawn.conversations if one.start_ns is not None]
    if len(times) < len(drawn.conversations):
        raise WorkloadError(f"{workload.name}: the trace has no times, which arrivals: trace needs")
    return _request_set(drawn, trace_arrivals(times, speedup=load.speedup or 1.0))


def _no_start(load: Load, seed: int) -> WorkloadError:
    """Return the error of a random load in which nothing happens to start."""
    length = duration_text(load.duration_ns or 0)
    rate = plain_number(load.rate_rps or 0)
    error = WorkloadError(f"seed {seed} draws no start within {length} at {rate} a second")
    error.add_note("ask for a longer duration or a higher rate, or take another seed")
    return error


def _request_set(drawn: Drawn, starts_ns: tuple[int, ...] | None) -> RequestSet:
    conversations = drawn.conversations[: None if starts_ns is None else len(starts_ns)]
    return RequestSet(
        conversations=conversations,
        starts_ns=starts_ns,
        skipped=drawn.skipped,
        notes=drawn.notes,
    )


def _enough(draw: Callable[[int], Drawn], conversations: int) -> Drawn:
    """Return at least `conversations` conversations; more requests only extend a draw."""
    requests = conversations
    while len((drawn := draw(requests)).conversations) < conversations:
        requests = math.ceil(requests * conversations / len(drawn.conversations))
    return drawn


def starts_of(load: Load, *, seed: int) -> tuple[int, ...]:
    """Return when the conversations of an open loop at a rate start, in nanoseconds."""
    rate, length = load.rate_rps or 0.0, load.duration_ns
    if load.arrivals == "constant":
        return constant_arrivals(rate, duration_ns=length)
    if load.arrivals == "gamma":
        return gamma_arrivals(rate, load.gamma_cv or 1.0, duration_ns=length, seed=seed)
    return poisson_arrivals(rate, duration_ns=length, seed=seed)
