"""What consecutive decode steps bring: one token each, or what a verified draft gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64] | int  # one number for all sequences, or shape (sequences,)


class Progress:
    """Tokens of the next `steps` steps; `tokens`, shape (sequences, steps), is None for 1 each."""

    def __init__(
        self, steps: int, sequences: int, queries: int, tokens: NDArray[np.int64] | None
    ) -> None:
        self.steps = steps
        self._sequences = sequences
        self._queries = queries
        self._brought = None if tokens is None else np.cumsum(tokens, axis=1)

    def after(self, steps: int) -> Tokens:
        """Return the tokens that the first `steps` steps bring each sequence."""
        if self._brought is None:
            return steps
        return self._brought[:, steps - 1] if steps else 0

    def room(self, steps: int) -> Tokens:
        """Return the tokens of room each sequence needs for `steps` steps: drafts need it too."""
        return self.after(steps - 1) + self._queries

    def grown(self) -> NDArray[np.int64]:
        """Return by how many tokens all contexts together have grown before each step, (steps,)."""
        if self._brought is None:
            return np.arange(self.steps, dtype=np.int64) * self._sequences
        grown = np.zeros(self.steps, dtype=np.int64)
        grown[1:] = self._brought[:, : self.steps - 1].sum(axis=0)
        return grown

    def until_first_end(self, remaining: NDArray[np.int64]) -> None:
        """Cut the steps after the first one that completes an answer of `remaining` tokens."""
        if self._brought is None:  # no more steps were asked for than the first end allows
            return
        complete = (self._brought[:, : self.steps] >= remaining[:, None]).any(axis=0)
        if complete.any():
            self.steps = int(complete.argmax()) + 1
