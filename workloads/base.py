"""The parts of every workload: segment, turn, conversation and the `Workload` protocol.

Nothing here depends on the clock or on an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


class WorkloadError(Exception):
    """A workload error that the user can fix. The message names the file, line or value."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The first `tokens` tokens of the endless text named `text`.

    Segments with the same `text` share a prefix; segments with different `text` share nothing.
    Token ids are made only when the prompt is sent, so a trace of 145 million prompt tokens fits
    in memory.
    """

    text: int  # a 64-bit name that the workload draws from its seed
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a conversation. `prompt` contains the whole history."""

    prompt: tuple[Segment, ...]
    output_tokens: int  # requested tokens, at least 1
    think_time_ns: int = 0  # pause after the previous answer; 0 for the first turn

    @property
    def prompt_tokens(self) -> int:
        """The length of the prompt in tokens."""
        return sum(segment.tokens for segment in self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns that one user sends in order, each after the answer to the previous turn."""

    conversation_id: str
    turns: tuple[Turn, ...]
    start_ns: int | None = None  # time after the first row of the trace; None without a trace
    live: bool = False  # later prompts contain the server's answers instead of the drawn ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The conversations of one run and the number of skipped rows or turns."""

    conversations: tuple[Conversation, ...]
    skipped: dict[str, int]  # reason → skipped rows or turns; empty when none were skipped
    notes: tuple[str, ...] = ()  # notes for the report (rows sorted, blocks resized, …)


class Workload(Protocol):
    """A source of conversations for one run. The same arguments give the same conversations."""

    @property
    def name(self) -> str:
        """The workload's name in plans, reports and run folders."""
        ...

    def describe(self) -> str:
        """Describe the requests in one line for the plan, without reading a file."""
        ...

    def draw(self, *, requests: int | None, seed: int, max_model_len: int) -> Drawn:
        """Return whole conversations with at least `requests` turns in total.

        For a trace, `requests` None selects every row. `max_model_len` limits the prompt tokens
        plus output tokens of each turn. Raises `WorkloadError`.
        """
        ...
