"""The step loop of the engine, which combines the scheduler, the step times and the KV blocks.

Between two events (an arrival, a finished output, too few blocks) decoding repeats the same step,
so `advance` computes all of these steps at once. `max_steps=1` computes single steps; the results
are the same to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.adapters.base import EngineError, ServerCounters
from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.decode_batch import Progress, Times
from harness.adapters.embedded.engine.scheduler import ScheduledStep, Scheduler
from harness.adapters.embedded.engine.sequence import Sequence

_NS = 1e9


class StepTimer(Protocol):
    """A model of step times in seconds."""

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        """Return (fixed, per token of context) of a step that only decodes."""
        ...

    def step_s(
        self,
        sequences: int,
        queries: int,
        context_tokens: int,
        chunks: Many[tuple[int, int]],
        sampled: int,
    ) -> float:
        """Return the time of a step that also computes `chunks` of (new, earlier) prompt tokens."""
        ...

    def swap_s(self, tokens: int) -> float:
        """Return the time to copy the KV of `tokens` tokens to host memory, or back."""
        ...


@dataclass(slots=True)
class StepCounts:
    """Running totals of the steps."""

    steps: int = 0
    graph_steps: int = 0
    mixed_steps: int = 0
    split_prefills: int = 0
    computed_tokens: int = 0  # tokens computed by prefill, including recomputation
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    sequence_steps: int = 0
    queued_ns: int = 0


class TimeLog:
    """The end time of each decode step in ns. It can grow while arrays of it are in use."""

    def __init__(self) -> None:
        self._times = np.empty(1024, dtype=np.int64)
        self.length = 0

    @property
    def times(self) -> NDArray[np.int64]:
        """All times so far, shape (steps,)."""
        return self._times[: self.length]

    def extend(self, times: Times) -> None:
        """Append `times`."""
        end = self.length + len(times)
        if end > len(self._times):
            grown = np.empty(max(end, 2 * len(self._times)), dtype=np.int64)
            grown[: self.length] = self.times
            self._times = grown
        self._times[self.length : end] = times
        self.length = end


class EngineCore:
    """A simulated engine: requests in, token times and ids out. The caller sets the time."""

    def __init__(self, config: EngineConfig, timer: StepTimer) -> None:
        self.config = config
        self._timer = timer
        self.scheduler = Scheduler(config)
        self._log = TimeLog()
        self._counts = StepCounts()
        self._complete: list[Sequence] = []  # sequences with one output token, done after prefill

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        scheduler = self.scheduler
        return bool(scheduler.waiting or scheduler.prefilling or scheduler.decoding.sequences)

    def submit(
        self,
        prompt_ids: NDArray[np.int32],
        output_tokens: int,
        now_ns: int,
        *,
        output_read: bool = True,
    ) -> Sequence:
        """Queue a request. With `output_read` False, no client reads the ids of its output.

        Raises `EngineError` when the request is longer than `max_model_len`.
        """
        total = len(prompt_ids) + output_tokens
        if not len(prompt_ids) or output_tokens < 1 or total > self.config.max_model_len:
            raise EngineError(
                f"{len(prompt_ids)} prompt tokens and {output_tokens} output tokens are invalid; "
                f"each must be at least 1, and their sum at most max_model_len "
                f"{self.config.max_model_len}"
            )
        sequence = Sequence(prompt_ids, output_tokens, now_ns, output_read=output_read)
        self.scheduler.waiting.append(sequence)
        return sequence

    def advance(
        self, now_ns: int, horizon_ns: int | None = None, max_steps: int | None = None
    ) -> tuple[int, list[Sequence]]:
        """Run steps from `now_ns`; return (end of the last step in ns, finished sequences).

        Stops after a step in which a sequence finished, before a step that would start at or after
        `horizon_ns`, after `max_steps`, or when no sequence is left.
        """
        left = max_steps
        while self.has_work and (horizon_ns is None or now_ns < horizon_ns) and left != 0:
            step = self.scheduler.next_step(self._log.length)
            if step.moved_tokens:
                now_ns += round(self._timer.swap_s(step.moved_tokens) * _NS)
            if step.chunks:
                now_ns, steps = self._run_step(step, now_ns), 1
            else:
                now_ns, steps = self._run_decodes(now_ns, horizon_ns, left)
            left = None if left is None else left - steps
            finished = self._collect(now_ns)
            if finished:
                return now_ns, finished
        return now_ns, []

    def cancel(self, sequence: Sequence) -> None:
        """Cancel a request, for example after a disconnect. Does nothing if it has finished."""
        if sequence.finished_ns is None:
            self.scheduler.cancel(sequence, self._log.length)

    def catch_up(self) -> None:
        """Update `generated_tokens` and `output_ids` of every decoding sequence.

        Other sequences are always up to date.
        """
        batch = self.scheduler.decoding
        batch.sync(self._log.length)
        for sequence in batch.sequences:
            self.scheduler.blocks.name(sequence)
            sequence.make_output_ids(self.scheduler.contents)

    def forget_times(self) -> None:
        """Clear the log of step times, so that the memory of a server stays bounded.

        `token_events` of earlier sequences are lost. Raises `EngineError` while requests are in
        flight.
        """
        if self.has_work:
            raise EngineError("step times cannot be cleared while requests are in flight")
        self._log = TimeLog()

    def token_events(self, sequence: Sequence) -> NDArray[np.int64]:
        """Return (time in ns, tokens) of each token event of `sequence`, shape (events, 2)."""
        if sequence.finished_ns is None:
            self.scheduler.decoding.sync(self._log.length)
        return sequence.token_events(self._log.times, self.config.speculation)

    def counters(self) -> ServerCounters:
        """Return the running totals since the engine started."""
        steps, sequences = self._counts, self.scheduler.counts
        cache = self.scheduler.cache
        speculative = self.config.speculation is not None
        return ServerCounters(
            prompt_tokens=sequences.prompt_tokens,
            cached_prompt_tokens=sequences.cached_prompt_tokens,
            output_tokens=steps.output_tokens,
            drafted_tokens=steps.drafted_tokens,
            accepted_tokens=steps.accepted_tokens if speculative else None,
            verify_steps=steps.verify_steps if speculative else None,
            preemptions=sequences.preemptions,
            swapped_tokens=sequences.swapped_tokens,
            steps=steps.steps,
            sequence_steps=steps.sequence_steps,
            graph_steps=steps.graph_steps,
            split_prefills=steps.split_prefills,
            mixed_steps=steps.mixed_steps,
            late_admissions=sequences.late_admissions,
            peak_running=sequences.peak_running,
            evicted_blocks=cache.evicted_blocks if cache else 0,
            queued_ns=steps.queued_ns,
        )

    @property
    def computed_prompt_tokens(self) -> int:
        """Tokens that prefill has computed so far, without cached tokens."""
        return self._counts.computed_tokens

    def reset(self) -> None:
        """Clear the prefix cache and the peak load. Raises `EngineError` while sequences run."""
        if self.has_work:
            raise EngineError("the prefix cache cannot be reset while requests are in flight")
        if self.scheduler.cache is not None:
            self.scheduler.cache.clear()
        self.scheduler.counts.peak_running = 0

    def _run_decodes(
        self, now_ns: int, horizon_ns: int | None, max_steps: int | None
    ) -> tuple[int, int]:
        """Run decode-only steps until the next event; return (end in ns, steps)."""
        batch, queries = self.scheduler.decoding, self.config.queries
        fixed_s, slope_s = self._timer.decode_line(len(batch), queries)
        context = batch.context_tokens + len(batch) * queries
        most = batch.first_end
        most = most if max_steps is None else min(most, max_steps)
        if horizon_ns is not None:  # later steps are never shorter, because contexts grow
            left_s = max(0, horizon_ns - now_ns) / _NS  # negative if a swap passed the horizon
            most = min(most, 1 + int(left_s / (fixed_s + slope_s * context)))
        progress = batch.progress(most)
        ends_ns = progress.ends_ns(now_ns, fixed_s, slope_s, context)
        steps = progress.steps
        if horizon_ns is not None:
            steps = min(steps, 1 + bisect_left(ends_ns, horizon_ns))
        steps = self.scheduler.grow(progress, steps)
        self._decode(progress, ends_ns[:steps])
        self._counts.graph_steps += steps if self.config.cuda_graphs else 0
        return int(ends_ns[steps - 1]), steps

    def _run_step(self, step: ScheduledStep, now_ns: int) -> int:
        """Run one step with prompt chunks; return its end in ns."""
        self._note_starts(step, now_ns)
        batch, queries = self.scheduler.decoding, self.config.queries
        decoding = len(batch) if step.decode else 0
        context = batch.context_tokens + decoding * queries if decoding else 0
        chunks = [(tokens, sequence.computed_tokens) for sequence, tokens in step.chunks]
        done = sum(
            sequence.computed_tokens + tokens == sequence.target_tokens
            for sequence, tokens in step.chunks
        )
        seconds = self._timer.step_s(decoding, queries, context, chunks, decoding * queries + done)
        end_ns = now_ns + round(seconds * _NS)
        if decoding:
            self._decode(batch.progress(1), [end_ns])
            self._counts.mixed_steps += 1
        else:
            self._counts.steps += 1
        for sequence, tokens in step.chunks:
            self._compute(sequence, tokens, end_ns)
        return end_ns

    def _note_starts(self, step: ScheduledStep, now_ns: int) -> None:
        """Record the start and the queue time of sequences that run for the first time."""
        for sequence, _ in step.chunks:
            if sequence.started_ns is None:
                sequence.started_ns = now_ns
                self._counts.queued_ns += now_ns - sequence.arrival_ns

    def _decode(self, progress: Progress, ends_ns: Times) -> None:
        """Advance every decoding sequence by the steps that end at `ends_ns`."""
        batch, steps = self.scheduler.decoding, len(ends_ns)
        tokens = batch.advance(progress, steps)
        self._log.extend(ends_ns)
        self._counts.steps += steps
        self._counts.output_tokens += tokens
        self._counts.sequence_steps += steps * len(batch)
        if self.config.speculation is not None:
            verified = steps * len(batch)
            self._counts.verify_steps += verified
            self._counts.drafted_tokens += verified * self.config.speculation.draft_tokens
            self._counts.accepted_tokens += tokens - verified

    def _compute(self, sequence: Sequence, tokens: int, end_ns: int) -> None:
        """Record `tokens` more computed prompt tokens. A complete prompt gives an output token."""
        sequence.computed_tokens += tokens
        self._counts.computed_tokens += tokens
        if sequence.computed_tokens < sequence.target_tokens:
            return
        self._counts.split_prefills += tokens < sequence.target_tokens - sequence.prefill_start
        self._counts.output_tokens += 1
        self._counts.sequence_steps += 1
        self.scheduler.finish_prefill(sequence)
        sequence.prefill_ends_ns.append(end_ns)
        sequence.generated_tokens += 1
        if sequence.generated_tokens == sequence.requested_tokens:
            self._complete.append(sequence)
        else:
            self.scheduler.start_decoding(sequence, self._log.length)

    def _collect(self, now_ns: int) -> list[Sequence]:
        """Return the sequences that finished with the step that ended at `now_ns`."""
        finished = self._complete + self.scheduler.decoding.take_finished(self._log.length)
        self._complete = []
        for sequence in finished:
            sequence.finished_ns = now_ns
            self.scheduler.blocks.finish(sequence)
        return finished
