"""One request inside the engine, from arrival to its last token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adapters.embedded.config import Speculation
from adapters.embedded.kv_blocks import BlockIds, KvBlocks
from adapters.embedded.speculative import mix, mixed_word, tokens_per_step

# An answer's tokens hash what was read at most this many tokens ago; then all of it is read again.
READ_EVERY_TOKENS = 128
VOCABULARY = 128_000
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_STRIDE = np.arange(READ_EVERY_TOKENS, dtype=np.uint64) * np.uint64(_GOLDEN)


class Sequence:
    """A prompt, its block table, and the answer so far.

    prompt ids │ output ids
    ───────────┼─────────────┬───┐
               │ in the KV   │ ? │   the newest token enters the KV in the step after it
    """

    __slots__ = (
        "_known_tokens",
        "_read_position",
        "_written_tokens",
        "arrival_ns",
        "asked_tokens",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "finished_ns",
        "generated_tokens",
        "host_ids",
        "output_ids",
        "preemptions",
        "prefill_ends_ns",
        "prefill_start",
        "prompt_ids",
        "spans",
        "started_ns",
        "table",
    )

    def __init__(self, prompt_ids: NDArray[np.int32], asked_tokens: int, arrival_ns: int) -> None:
        self.prompt_ids = prompt_ids
        self.asked_tokens = asked_tokens
        self.arrival_ns = arrival_ns
        self.table: BlockIds = np.empty(0, np.int32)
        self.blocks = 0  # blocks of the table in use, from its start
        self.cached_tokens: int | None = None  # found in the prefix cache when first admitted
        self.prefill_start = 0  # tokens that this prefill found in the prefix cache
        self.computed_tokens = 0  # of the prefill target, so far
        self.generated_tokens = 0
        self.preemptions = 0
        self.output_ids = np.zeros(asked_tokens, np.int32)  # those not generated yet mean nothing
        self.started_ns: int | None = None  # when the first step that computes for it began
        self.host_ids: NDArray[np.int32] | None = None  # its KV, while that lies with the host
        # Each prefill, first or repeated, gives one token; None: it came back without one.
        self.prefill_ends_ns: list[int | None] = []
        self.spans: list[tuple[int, int]] = []  # decode steps after each of those, log positions
        self.finished_ns: int | None = None
        self._known_tokens = 0  # output tokens whose ids have been worked out
        self._written_tokens = 0  # output tokens whose ids lie in the KV
        self._read_position = -1  # output position at which the KV was read last

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
        if not self._known_tokens:
            return self.prompt_ids
        return np.concatenate([self.prompt_ids, self.output_ids[: self._known_tokens]])

    def write_prefill(self, kv: KvBlocks) -> None:
        """Store what prefill computed: all of the target but what the cache already held."""
        kv.write(self.table, self.prefill_start, self.known_ids()[self.prefill_start :])
        self._written_tokens = self._known_tokens

    def work_out(self, kv: KvBlocks) -> None:
        """Give every generated token its id, and store in the KV all but the newest.

        Timing never looks at ids, so this waits until somebody does: at the end, at a preemption.
        """
        self.work_out_ids(kv)
        self._write_output(kv, self.generated_tokens - 1)  # the newest token has no KV yet

    def work_out_ids(self, kv: KvBlocks) -> None:
        """Give every generated token its id: a hash of what is read back through the block table.

        A read holds for a stride, whose ids are made at once: each further token of it is cheap.
        """
        prompt = len(self.prompt_ids)
        while self._known_tokens < self.generated_tokens:
            start = self._known_tokens
            end = self._stride_end(start)
            if self._read_position != self._stride_start(start):
                self._write_output(kv, start)
                state = kv.read(self.table, prompt + start)
                self.output_ids[start:end] = _answer(state, prompt + start, prompt + end)
                self._read_position = start
            self._known_tokens = min(self.generated_tokens, end)

    def token_events(
        self, step_ends_ns: NDArray[np.int64], speculation: Speculation | None
    ) -> NDArray[np.int64]:
        """Return (time in ns, tokens) of each event so far, shape (events, 2)."""
        pieces, verified = [], 0
        for number, end_ns in enumerate(self.prefill_ends_ns):
            if end_ns is not None:
                pieces.append(np.array([[end_ns, 1]], dtype=np.int64))
            if number < len(self.spans):
                first, last = self.spans[number]
                span = np.ones((last - first, 2), dtype=np.int64)
                span[:, 0] = step_ends_ns[first:last]
                if speculation and last > first:
                    span[:, 1] = self.verify_tokens(speculation, verified, last - first)
                    verified += last - first
                pieces.append(span)
        events = np.concatenate(pieces) if pieces else np.empty((0, 2), np.int64)
        tokens = int(events[:, 1].sum()) if speculation else len(events)
        if tokens > self.generated_tokens:  # the last draft reached past the end of the answer
            events[-1, 1] -= tokens - self.generated_tokens
        return events

    def verify_tokens(self, speculation: Speculation, first: int, steps: int) -> NDArray[np.int64]:
        """Return the tokens of this sequence's verify steps `first`…, shape (steps,)."""
        keys = np.array([self.key], dtype=np.uint64)
        tokens = tokens_per_step(speculation, keys, np.array([first], dtype=np.int64), steps)
        return tokens.reshape(steps)

    def _write_output(self, kv: KvBlocks, tokens: int) -> None:
        """Store the first `tokens` output ids, where they do not lie in the KV already."""
        if tokens > self._written_tokens:
            start = len(self.prompt_ids) + self._written_tokens
            kv.write(self.table, start, self.output_ids[self._written_tokens : tokens])
            self._written_tokens = tokens

    def _stride_start(self, position: int) -> int:
        if position == self.asked_tokens - 1:  # the last token vouches for everything before it
            return position
        return position - position % READ_EVERY_TOKENS

    def _stride_end(self, position: int) -> int:
        last = self.asked_tokens - 1
        return (
            position + 1
            if position == last
            else min(position - position % READ_EVERY_TOKENS + READ_EVERY_TOKENS, last)
        )


def _answer(state: int, first: int, last: int) -> NDArray[np.int32]:
    """Return the ids of positions `first`…`last` − 1 of a sequence whose ids hash to `state`."""
    start = (state + first * _GOLDEN) & _MASK
    if last - first == 1:  # one of every answer: an array of one costs ten times as much
        return np.array([mixed_word(start) % VOCABULARY], dtype=np.int32)
    words = mix(_STRIDE[: last - first] + np.uint64(start))
    words %= np.uint64(VOCABULARY)
    return words.astype(np.int32)
