"""One request inside the engine, from arrival to its last token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.answer import Answer
from harness.adapters.embedded.engine.cache_nodes import Node
from harness.adapters.embedded.engine.config import Speculation
from harness.adapters.embedded.engine.kv_blocks import BlockIds, KvBlocks
from harness.adapters.embedded.engine.speculative import mix, tokens_per_step


class Sequence:
    """A prompt, its block table, and the answer so far.

    prompt ids │ output ids
    ───────────┼─────────────┬───┐
               │ in the KV   │ ? │   the newest token enters the KV in the step after it
    """

    __slots__ = (
        "answer",
        "answer_read",
        "arrival_ns",
        "asked_tokens",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "counted",
        "finished_ns",
        "generated_tokens",
        "held",
        "held_blocks",
        "host_ids",
        "preemptions",
        "prefill_ends_ns",
        "prefill_start",
        "promised_blocks",
        "prompt_ids",
        "spans",
        "started_ns",
        "table",
    )

    def __init__(
        self,
        prompt_ids: NDArray[np.int32],
        asked_tokens: int,
        arrival_ns: int,
        *,
        answer_read: bool = True,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.answer = Answer(len(prompt_ids), asked_tokens)
        self.answer_read = answer_read  # somebody will look at its ids
        self.asked_tokens = asked_tokens
        self.arrival_ns = arrival_ns
        self.table: BlockIds = np.empty(0, np.int32)
        self.blocks = 0  # blocks of the table in use, from its start
        # `counted`: it has no table, which nobody needs who reads nothing. Its first `held_blocks`
        # blocks are those up to the node `held` of the prefix cache; the others are promised.
        self.counted = False
        self.held: Node | None = None
        self.held_blocks = 0
        self.promised_blocks = 0  # that it holds beside those, not settled yet which
        self.cached_tokens: int | None = None  # found in the prefix cache when first admitted
        self.prefill_start = 0  # tokens that this prefill found in the prefix cache
        self.computed_tokens = 0  # of the prefill target, so far
        self.generated_tokens = 0
        self.preemptions = 0
        self.started_ns: int | None = None  # when the first step that computes for it began
        self.host_ids: NDArray[np.int32] | None = None  # its KV, while that lies with the host
        # Each prefill, first or repeated, gives one token; None: it came back without one.
        self.prefill_ends_ns: list[int | None] = []
        self.spans: list[tuple[int, int]] = []  # decode steps after each of those, log positions
        self.finished_ns: int | None = None

    @property
    def output_ids(self) -> NDArray[np.int32]:
        """The ids of the answer, shape (asked_tokens,); those not worked out mean nothing."""
        return self.answer.ids

    @property
    def total_tokens(self) -> int:
        """Prompt and answer at their full length."""
        return len(self.prompt_ids) + self.asked_tokens

    @property
    def target_tokens(self) -> int:
        """Tokens that prefill computes before it can sample: after a preemption the answer too."""
        return len(self.prompt_ids) + self.generated_tokens

    @property
    def decode_steps(self) -> int:
        """Decode steps that this sequence took part in, up to the last time it was looked at."""
        return sum(last - first for first, last in self.spans)

    @property
    def key(self) -> np.uint64:
        """What the acceptance of its drafts hangs on: its prompt, whatever the schedule."""
        length = np.uint64(len(self.prompt_ids))
        weights = np.arange(1, 1 + min(64, len(self.prompt_ids)), dtype=np.uint64)
        tail = self.prompt_ids[-64:].astype(np.uint64)
        return np.uint64(mix(np.array([(tail * weights).sum() + length], dtype=np.uint64))[0])

    def known_ids(self) -> NDArray[np.int32]:
        """Return prompt and answer so far, as ids."""
        if not self.answer.known_tokens:
            return self.prompt_ids
        return np.concatenate([self.prompt_ids, self.output_ids[: self.answer.known_tokens]])

    def write_known(self, kv: KvBlocks, start: int) -> None:
        """Store the ids known from position `start` on: before it lie those of the cache."""
        kv.write(self.table, start, self.known_ids()[start:])
        self.answer.written_tokens = self.answer.known_tokens

    def work_out(self, kv: KvBlocks) -> None:
        """Give every generated token its id, and store in the KV all but the newest."""
        self.work_out_ids(kv)
        self.answer.write(kv, self.table, self.generated_tokens - 1)

    def work_out_ids(self, kv: KvBlocks) -> None:
        """Give every generated token its id."""
        self.answer.work_out(kv, self.table, self.generated_tokens)

    def token_events(
        self, step_ends_ns: NDArray[np.int64], speculation: Speculation | None
    ) -> NDArray[np.int64]:
        """Return (time in ns, tokens) of each event so far, shape (events, 2)."""
        of_prefills = len(self.prefill_ends_ns) - self.prefill_ends_ns.count(None)
        events = np.empty((of_prefills + self.decode_steps, 2), dtype=np.int64)
        events[:, 1] = 1
        at = verified = 0
        for number, end_ns in enumerate(self.prefill_ends_ns):
            if end_ns is not None:
                events[at, 0] = end_ns
                at += 1
            first, last = self.spans[number] if number < len(self.spans) else (0, 0)
            steps = last - first
            events[at : at + steps, 0] = step_ends_ns[first:last]
            if speculation and steps:
                events[at : at + steps, 1] = self.verify_tokens(speculation, verified, steps)
            at, verified = at + steps, verified + steps
        tokens = int(events[:, 1].sum()) if speculation else at
        if tokens > self.generated_tokens:  # the last draft reached past the end of the answer
            events[-1, 1] -= tokens - self.generated_tokens
        return events

    def verify_tokens(self, speculation: Speculation, first: int, steps: int) -> NDArray[np.int64]:
        """Return the tokens of this sequence's verify steps `first`…, shape (steps,)."""
        keys = np.array([self.key], dtype=np.uint64)
        tokens = tokens_per_step(speculation, keys, np.array([first], dtype=np.int64), steps)
        return tokens.reshape(steps)
