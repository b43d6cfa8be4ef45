"""A request inside the engine, from arrival to its last token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.kv_blocks import BlockIds
from harness.adapters.embedded.engine.kv_contents import KvContents
from harness.adapters.embedded.engine.output_tokens import OutputTokens
from harness.adapters.embedded.engine.prefix_cache import NO_BLOCKS, Node
from harness.adapters.embedded.engine.speculative import SpeculativeConfig, mix, tokens_per_step


class Sequence:
    """A prompt, its block table, and the output so far.

    prompt ids │ output ids
    ───────────┼─────────────┬───┐
               │ in the KV   │ – │   the newest token enters the KV in the next step
    """

    __slots__ = (
        "arrival_ns",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "counted",
        "finished_ns",
        "generated_tokens",
        "host_ids",
        "output",
        "output_read",
        "preemptions",
        "prefill_ends_ns",
        "prefill_start",
        "prefix_blocks",
        "prefix_end",
        "prompt_ids",
        "requested_tokens",
        "reserved_blocks",
        "spans",
        "started_ns",
        "table",
    )

    def __init__(
        self,
        prompt_ids: NDArray[np.int32],
        requested_tokens: int,
        arrival_ns: int,
        *,
        output_read: bool = True,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.output = OutputTokens(len(prompt_ids), requested_tokens)
        self.output_read = output_read  # a client reads the ids of the output
        self.requested_tokens = requested_tokens
        self.arrival_ns = arrival_ns
        self.table: BlockIds = NO_BLOCKS
        self.blocks = 0  # blocks of the table in use, from its start
        # `counted`: without block table, because no client reads the output. The first
        # `prefix_blocks` blocks are in the prefix cache up to node `prefix_end`; the others are
        # reserved.
        self.counted = False
        self.prefix_end: Node | None = None
        self.prefix_blocks = 0
        self.reserved_blocks = 0  # in addition to `blocks`, reserved by a decoding batch
        self.cached_tokens: int | None = None  # prefix cache hits at the first admission
        self.prefill_start = 0  # prefix cache hits of the current prefill
        self.computed_tokens = 0  # computed part of `target_tokens`, with cached tokens
        self.generated_tokens = 0
        self.preemptions = 0
        self.started_ns: int | None = None  # start of its first step
        self.host_ids: NDArray[np.int32] | None = None  # its KV while it is in host memory
        # The end of each prefill, which gives one token. None is a swap-in, which gives no token.
        self.prefill_ends_ns: list[int | None] = []
        self.spans: list[tuple[int, int]] = []  # decode steps after each entry, as log positions
        self.finished_ns: int | None = None

    @property
    def output_ids(self) -> NDArray[np.int32]:
        """The ids of the output, shape (requested_tokens,). Ids that are not computed are 0."""
        return self.output.ids

    @property
    def total_tokens(self) -> int:
        """The number of prompt and requested output tokens."""
        return len(self.prompt_ids) + self.requested_tokens

    @property
    def target_tokens(self) -> int:
        """Tokens of a complete prefill: the prompt, and after a preemption the output so far."""
        return len(self.prompt_ids) + self.generated_tokens

    @property
    def decode_steps(self) -> int:
        """The number of decode steps of this sequence, as of the last sync of its batch."""
        return sum(last - first for first, last in self.spans)

    @property
    def key(self) -> np.uint64:
        """A hash of the prompt that determines which drafts are accepted in any schedule."""
        length = np.uint64(len(self.prompt_ids))
        weights = np.arange(1, 1 + min(64, len(self.prompt_ids)), dtype=np.uint64)
        tail = self.prompt_ids[-64:].astype(np.uint64)
        return np.uint64(mix(np.array([(tail * weights).sum() + length], dtype=np.uint64))[0])

    def known_ids(self) -> NDArray[np.int32]:
        """Return the ids of the prompt and of the output so far."""
        if not self.output.known_tokens:
            return self.prompt_ids
        return np.concatenate([self.prompt_ids, self.output_ids[: self.output.known_tokens]])

    def write_known(self, contents: KvContents, start: int) -> None:
        """Store the known ids from position `start`. Cached blocks contain the earlier ids."""
        contents.write(self.table, start, self.known_ids()[start:])
        self.output.written_tokens = self.output.known_tokens

    def make_output(self, contents: KvContents) -> None:
        """Compute the ids of all generated tokens, and store all but the newest in the KV."""
        self.make_output_ids(contents)
        self.output.write(contents, self.table, self.generated_tokens - 1)

    def make_output_ids(self, contents: KvContents) -> None:
        """Compute the ids of all generated tokens."""
        self.output.make_ids(contents, self.table, self.generated_tokens)

    def token_events(
        self, step_ends_ns: NDArray[np.int64], speculation: SpeculativeConfig | None
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
        if tokens > self.generated_tokens:  # the last step accepted more than the output needs
            events[-1, 1] -= tokens - self.generated_tokens
        return events

    def verify_tokens(
        self, speculation: SpeculativeConfig, first: int, steps: int
    ) -> NDArray[np.int64]:
        """Return the tokens of `steps` verify steps from step `first`, shape (steps,)."""
        keys = np.array([self.key], dtype=np.uint64)
        tokens = tokens_per_step(speculation, keys, np.array([first], dtype=np.int64), steps)
        return tokens.reshape(steps)
