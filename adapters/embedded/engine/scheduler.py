"""The scheduler: admission, prompt chunks and preemption of sequences in each step.

waiting ──admit──▶ prefilling ──prompt done──▶ decoding ──▶ finished
   ▲                    │                       │   ▲
   ├──────preempted─────┴───────────────────────┘   │     (blocks freed, recomputed later)
   └──────preempted: KV in host memory ─────────────┘     (copied out and back: `swap`)

A sequence can be cancelled in each of the first three states.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.decode_batch import DecodeBatch, Progress, UniformBatch
from harness.adapters.embedded.engine.draft_batch import DraftBatch
from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.engine.sequence_blocks import SequenceBlocks

# An admission leaves this share of blocks free for running sequences, so that their growth does not
# cause a preemption immediately. The share is vLLM's former default.
_WATERMARK_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """The work of one step: prompt chunks, and whether the decoding sequences decode."""

    chunks: list[tuple[Sequence, int]]  # (sequence, prompt tokens computed in this step)
    decode: bool
    moved_tokens: int = 0  # tokens whose KV is swapped before the step


@dataclass(slots=True)
class SchedulerCounts:
    """Running totals of the scheduler."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    swapped_tokens: int = 0  # copied to host memory
    late_admissions: int = 0
    peak_running: int = 0


def _batch(config: EngineConfig) -> DecodeBatch[Any]:
    """Return an empty batch for decoding sequences."""
    if config.speculation is None:
        return UniformBatch(config.block_size)
    return DraftBatch(config.running_limit, config.block_size, config.speculation)


class Scheduler:
    """The queues and KV blocks of one engine, independent of time."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.blocks = SequenceBlocks(config)
        self.kv, self.contents = self.blocks.kv, self.blocks.contents
        self.cache = self.blocks.cache
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding = _batch(config)
        self.counts = SchedulerCounts()
        self._running_limit = config.running_limit
        self._watermark = int(_WATERMARK_SHARE * config.num_blocks)
        self._batch_places = 0  # free places in the current static batch
        self._newest_at_start_ns = 0  # newest waiting request when work last started

    @property
    def running(self) -> int:
        """The number of sequences with blocks."""
        return len(self.prefilling) + len(self.decoding)

    def next_step(self, log_position: int) -> ScheduledStep:
        """Return the work of the next step. `log_position` counts the earlier decode steps."""
        if self._decodes_undisturbed():
            return ScheduledStep([], decode=True)
        moved = self._preempt(log_position)
        if self.config.preemption == "swap" and not moved:
            moved = self._swap_in(log_position)
        chunked = self.config.chunked_prefill
        decoding = len(self.decoding)
        budget = self.config.prefill_budget - (decoding if chunked else 0)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            budget -= self._take(sequence, budget, chunks)
        while budget > 0 and self._may_admit() and self.waiting[0].host_ids is None:
            if not chunked and chunks and self.waiting[0].target_tokens > budget:
                break
            admitted = self._admit()
            if admitted is None:
                break
            budget -= self._take(admitted, budget, chunks)
        return ScheduledStep(
            chunks, decode=decoding > 0 and (chunked or not chunks), moved_tokens=moved
        )

    def _decodes_undisturbed(self) -> bool:
        """Return whether all sequences decode and one step cannot run out of blocks."""
        if self.waiting or self.prefilling or not self.decoding.sequences:
            return False
        each = 1 + self.config.blocks_for(self.config.queries)  # upper limit per sequence
        return len(self.decoding.sequences) * each <= self.kv.available

    def finish_prefill(self, sequence: Sequence) -> None:
        """Store the KV of a finished prefill, and cache its whole blocks."""
        self.prefilling.remove(sequence)
        self.blocks.store_prefill(sequence)

    def start_decoding(self, sequence: Sequence, log_position: int) -> None:
        """Move a sequence with a computed prompt to the decoding batch."""
        self.decoding.add(sequence, log_position)

    def cancel(self, sequence: Sequence, log_position: int) -> None:
        """Remove an unfinished sequence in any state, and free its blocks.

        The KV of a decoding sequence stays in the prefix cache, as after a normal end. A prefill in
        progress leaves nothing in the cache.
        """
        if sequence in self.waiting:
            self._leave_queue(sequence)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
            self.blocks.free(sequence)
        else:
            self.decoding.take(sequence, log_position)
            self.blocks.finish(sequence)

    def grow(self, progress: Progress, steps: int) -> int:
        """Give every decoding sequence the blocks for up to `steps` steps.

        Returns the number of steps that fit in the available blocks, at least one.
        """
        count = self.decoding.missing_blocks(progress.tokens_needed(steps))
        if count > self.kv.available:
            steps = self._steps_that_fit(progress, steps)
            count = self.decoding.missing_blocks(progress.tokens_needed(steps))
        self._give(count)
        return steps

    def _steps_that_fit(self, progress: Progress, steps: int) -> int:
        low, high = 1, steps - 1  # more steps never need fewer blocks
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.decoding.missing_blocks(progress.tokens_needed(middle)) <= self.kv.available
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _give(self, count: int) -> None:
        """Reserve `count` blocks, the result of `missing_blocks`, for the decoding sequences."""
        if count:
            self.blocks.reserve(count)
            self.decoding.add_blocks()

    def _take(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        tokens = min(sequence.target_tokens - sequence.computed_tokens, budget)
        if tokens > 0:
            chunks.append((sequence, tokens))
        return max(tokens, 0)

    def _may_admit(self) -> bool:
        if not self.waiting or self.blocks.exhausted or self.running >= self._running_limit:
            return False
        if self.running == 0:
            self._newest_at_start_ns = self.waiting[-1].arrival_ns
        if self.config.batching != "static":
            return True
        if self.running == 0:
            self._batch_places = min(len(self.waiting), self.config.running_limit)
        return self._batch_places > 0 or self.waiting[0].preemptions > 0

    def _admit(self) -> Sequence | None:
        """Start the prefill of the first waiting sequence; return None if blocks are missing."""
        sequence = self.waiting[0]
        cached = self.blocks.reserve_prefill(sequence, self._spared)
        if cached is None:
            self._batch_places = 0
            return None
        self.waiting.popleft()
        self.prefilling.append(sequence)
        sequence.prefill_start = sequence.computed_tokens = cached * self.config.block_size
        self._count_admission(sequence)
        return sequence

    @property
    def _spared(self) -> int:
        """Free blocks that an admission leaves for running sequences."""
        return self._watermark if self.running else 0

    def _leave_queue(self, sequence: Sequence) -> None:
        """Remove `sequence` from the queue, and its place in the current static batch."""
        newcomers = [one for one in self.waiting if one.preemptions == 0]
        self._batch_places -= sequence in newcomers[: self._batch_places]
        self.waiting.remove(sequence)
        self.blocks.exhausted = False  # the new first sequence may need fewer blocks

    def _count_admission(self, sequence: Sequence) -> None:
        counts = self.counts
        counts.peak_running = max(counts.peak_running, self.running)
        counts.late_admissions += sequence.arrival_ns > self._newest_at_start_ns
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            counts.prompt_tokens += len(sequence.prompt_ids)
            counts.cached_prompt_tokens += sequence.cached_tokens
            self._batch_places -= 1

    def _swap_in(self, log_position: int) -> int:
        """Resume swapped sequences; return the tokens copied from host memory.

        Tokens that are still in the prefix cache are not copied.
        """
        moved = 0
        while self._may_admit() and (host_ids := self.waiting[0].host_ids) is not None:
            sequence, context = self.waiting[0], len(host_ids)
            next_step = min(context + self.config.queries, sequence.total_tokens)
            cached = self.blocks.reserve_table(sequence, next_step, self._spared)
            if cached is None:
                break
            self.waiting.popleft()
            start = cached * self.config.block_size
            self.contents.write(sequence.table, start, host_ids[start:])
            sequence.host_ids = None
            moved += context - start
            sequence.prefill_ends_ns.append(None)
            self.start_decoding(sequence, log_position)
            self._count_admission(sequence)
        return moved

    def _preempt(self, log_position: int) -> int:
        """Preempt the last admitted sequences until the others have blocks for one more step.

        Returns the tokens whose KV is copied to host memory.
        """
        moved = 0
        while len(self.decoding):
            count = self.decoding.missing_blocks(self.config.queries)
            if count <= self.kv.available:
                self._give(count)
                break
            if self.prefilling:
                victim = self.prefilling.pop()
            else:
                victim = self.decoding.take_last(log_position)
                self.blocks.name(victim)
                victim.make_output(self.contents)
                if self.config.preemption == "swap":
                    context = victim.target_tokens - 1  # the newest token has no KV yet
                    victim.host_ids = self.contents.token_ids(victim.table, context).copy()
                    moved += context
            victim.preemptions += 1
            victim.computed_tokens = 0
            self.counts.preemptions += 1
            self.waiting.appendleft(victim)
            self.blocks.free(victim)
        self.counts.swapped_tokens += moved
        return moved
