"""What consecutive decode steps bring: one token each, or what a verified draft gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Numpy pays for its calls from about so many steps on.
_STEPS_OF_AN_ARRAY = 24
_NS = 1e9

Times = list[int] | NDArray[np.int64]
Tokens = NDArray[np.int64] | int  # one number for all sequences, or shape (sequences,)


class Progress(ABC):
    """The next `steps` steps of a batch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @abstractmethod
    def room(self, steps: int) -> Tokens:
        """Return the tokens of room that each sequence needs for `steps` steps."""

    @abstractmethod
    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return when each step ends, if the first begins at `now_ns` with `context` tokens.

        A step takes `fixed_s`, and `slope_s` for each token of all contexts before it.
        """


class Alike(Progress):
    """One token for each of `sequences` in each step."""

    def __init__(self, steps: int, sequences: int) -> None:
        super().__init__(steps)
        self._sequences = sequences

    def room(self, steps: int) -> int:
        """Return the tokens of room that each sequence needs for `steps` steps."""
        return steps

    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return when each step ends, if the first begins at `now_ns` with `context` tokens."""
        steps, sequences = self.steps, self._sequences
        if steps >= _STEPS_OF_AN_ARRAY:
            grown = np.arange(steps, dtype=np.int64) * sequences
            return _ends(now_ns, fixed_s + slope_s * (context + grown))
        ends = []
        for tokens in range(context, context + steps * sequences, sequences):
            now_ns += round((fixed_s + slope_s * tokens) * _NS)
            ends.append(now_ns)
        return ends


class Drafted(Progress):
    """What verified drafts give: `tokens`, shape (sequences, steps); each feeds `queries` tokens.

    Not cut at the end of an answer.
    """

    def __init__(self, tokens: NDArray[np.int64], queries: int) -> None:
        super().__init__(tokens.shape[1])
        self._queries = queries
        self._brought = np.cumsum(tokens, axis=1)

    def after(self, steps: int) -> NDArray[np.int64]:
        """Return the tokens that the first `steps` steps, at least one, bring each sequence."""
        return self._brought[:, steps - 1]

    def room(self, steps: int) -> NDArray[np.int64] | int:
        """Return the tokens of room each sequence needs for `steps` steps: drafts need it too."""
        return self._queries if steps == 1 else self.after(steps - 1) + self._queries

    def until_first_end(self, remaining: NDArray[np.int64]) -> None:
        """Cut the steps after the first one that completes an answer of `remaining` tokens."""
        complete = (self._brought >= remaining[:, None]).any(axis=0)
        if complete.any():
            self.steps = int(complete.argmax()) + 1

    def ends_ns(self, now_ns: int, fixed_s: float, slope_s: float, context: int) -> Times:
        """Return when each step ends, if the first begins at `now_ns` with `context` tokens."""
        grown = np.zeros(self.steps, dtype=np.int64)
        grown[1:] = self._brought[:, : self.steps - 1].sum(axis=0)
        return _ends(now_ns, fixed_s + slope_s * (context + grown))


def _ends(now_ns: int, seconds: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return when steps of `seconds` end, one after the other."""
    ends: NDArray[np.int64] = now_ns + np.rint(seconds * _NS).astype(np.int64).cumsum()
    return ends
