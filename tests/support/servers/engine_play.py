"""Plays a list of timed requests through the embedded engine core, without an event loop."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.adapters.embedded.engine.config import EngineConfig
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.sequence import Sequence


class LinearTimer:
    """20 ms a step, and 10 µs a query, 1 ns a context token, 100 µs a prompt token on top."""

    def decode_line(self, sequences: int, queries: int = 1) -> tuple[float, float]:
        return 0.02 + sequences * queries * 1e-5, 1e-9

    def step_s(
        self,
        sequences: int,
        queries: int,
        context_tokens: int,
        chunks: Many[tuple[int, int]],
        sampled: int,
    ) -> float:
        fixed, slope = self.decode_line(sequences, queries)
        return fixed + slope * context_tokens + sum(new for new, _ in chunks) * 1e-4

    def swap_s(self, tokens: int) -> float:
        """0.01 ms a token."""
        return tokens * 1e-5


@dataclass(frozen=True)
class Ask:
    """One request: when, what, how long an answer, and when its client goes away, if it does."""

    at_ns: int
    prompt: NDArray[np.int32]
    output_tokens: int
    gone_ns: int | None = None


def config(**changes: object) -> EngineConfig:
    """Return a roomy engine of 4,000 blocks, with `changes`."""
    settings: dict[str, object] = {"num_blocks": 4000, "max_model_len": 4096}
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


def random_asks(
    seed: int,
    count: int,
    *,
    shared: int = 200,
    suffix: tuple[int, int] = (1, 120),
    output: tuple[int, int] = (1, 150),
    gap_ns: float = 5e7,
) -> list[Ask]:
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, 128_000, shared, dtype=np.int32)
    times = np.cumsum(rng.exponential(gap_ns, count)).astype(int)
    return [
        Ask(
            int(at),
            np.concatenate([prefix, rng.integers(0, 128_000, rng.integers(*suffix), np.int32)]),
            int(rng.integers(*output)),
        )
        for at in times
    ]


def play(
    core: EngineCore,
    asks: Many[Ask],
    max_steps: int | None = None,
    *,
    output_read: bool = True,
) -> list[Sequence]:
    """Submit each request when it is due and step until all are answered; times are the core's.

    A request whose client goes away is cancelled after the step in progress.
    """
    todo = sorted(asks, key=lambda ask: ask.at_ns)
    sequences: list[Sequence] = []
    leaving: list[tuple[int, Sequence]] = []
    now_ns = 0
    while len(sequences) < len(todo) or core.has_work:
        for ask in todo[len(sequences) :]:
            if ask.at_ns > now_ns:
                break
            sequences.append(
                core.submit(ask.prompt, ask.output_tokens, ask.at_ns, output_read=output_read)
            )
            if ask.gone_ns is not None:
                leaving.append((ask.gone_ns, sequences[-1]))
        for gone_ns, sequence in leaving:
            if gone_ns <= now_ns:
                core.cancel(sequence)
        leaving = [one for one in leaving if one[0] > now_ns]
        upcoming = [ask.at_ns for ask in todo[len(sequences) :]] + [at_ns for at_ns, _ in leaving]
        if core.has_work:
            now_ns, _ = core.advance(now_ns, min(upcoming, default=None), max_steps)
        elif upcoming:
            now_ns = min(upcoming)
    return sequences
