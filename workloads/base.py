"""Conversations of turns, each with an exact prompt. Knows no clock, no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


class WorkloadError(Exception):
    """A workload that cannot be made, for a reason the user can mend (file, line, value)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The first `tokens` tokens of the endless text named `text`.

    Two segments with one `text` share a prefix; two with different ones share nothing.
    A prompt stays this small until it is sent: a trace of 145 million prompt tokens fits in memory.
    """

    text: int  # a 64-bit name, drawn by the workload from its seed
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a conversation. The whole history is inside `prompt`."""

    prompt: tuple[Segment, ...]
    output_tokens: int  # requested tokens, at least 1
    think_time_ns: int = 0  # pause between the answer before and this turn; 0 for the first

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return sum(segment.tokens for segment in self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns that one user sends one after the other, each after the answer to the one before."""

    conversation_id: str
    turns: tuple[Turn, ...]
    start_ns: int | None = None  # start in the trace, from its first row; else None
    live: bool = False  # the server's own answers stand in later prompts, not the drawn ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a workload gives for one run, and what it had to leave out."""

    conversations: tuple[Conversation, ...]
    skipped: dict[str, int]  # reason → rows or turns left out; empty when nothing was
    notes: tuple[str, ...] = ()  # what the report must say (rows repeated, rows sorted, …)


class Workload(Protocol):
    """How to draw the conversations of one run. The same arguments give the same answer."""

    @property
    def name(self) -> str:
        """The workload's name in plans, reports and run folders."""
        ...

    def describe(self) -> str:
        """Describe the requests on one line, for the plan. Reads no file."""
        ...

    def draw(self, *, requests: int | None, seed: int, max_model_len: int) -> Drawn:
        """Return conversations with at least `requests` turns in all, whole conversations only.

        `requests` None takes all that there is (traces only). `max_model_len` bounds prompt plus
        output of each turn, in tokens. Raises `WorkloadError`.
        """
        ...
