"""A cache of token ids for texts that occur in several prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness.workloads.base import Segment, TokenIds
from harness.workloads.prompts.token_ids import draw_token_ids

_CAPACITY_TOKENS = 1 << 22  # 16 MB of ids
_TOKENS_AHEAD = 1 << 13  # computed together: many short texts cost little more than one


class Texts:
    """The token ids of recent texts, for prompts that share prefixes or whole histories."""

    def __init__(
        self, expected: Iterable[Segment] = (), capacity_tokens: int = _CAPACITY_TOKENS
    ) -> None:
        """Create an empty cache. `expected` lists future texts in approximate order of use."""
        self._expected = iter(expected)
        self._free_tokens = capacity_tokens
        self._known: dict[int, TokenIds] = {}  # text → ids of its longest beginning, oldest first

    def token_ids(self, prompt: tuple[Segment, ...]) -> TokenIds:
        """Return the token ids of a prompt, the same as `draw_token_ids` returns."""
        return np.concatenate([self._ids(segment) for segment in prompt])

    def _ids(self, segment: Segment) -> TokenIds:
        known = self._known.get(segment.text)
        if known is None or len(known) < segment.tokens:
            known = self._compute(segment)
        return known[: segment.tokens]

    def _compute(self, segment: Segment) -> TokenIds:
        """Return the ids of `segment`. Cache them and the ids of the next expected texts."""
        together = (segment, *self._ahead(segment.text))
        ids, at = draw_token_ids(together), 0
        for one in together:
            self._keep(one.text, ids[at : at + one.tokens])
            at += one.tokens
        return ids[: segment.tokens]

    def _ahead(self, text: int) -> Iterator[Segment]:
        """Yield the next expected texts, without `text` and cached ones."""
        taken, tokens = {text}, 0
        while tokens < _TOKENS_AHEAD and (one := next(self._expected, None)) is not None:
            if one.text not in taken and one.text not in self._known:
                taken.add(one.text)
                tokens += one.tokens
                yield one

    def _keep(self, text: int, ids: TokenIds) -> None:
        """Cache the ids of a text. Evict the oldest texts when the cache is full."""
        if (before := self._known.pop(text, None)) is not None:
            self._free_tokens += len(before)
        self._known[text] = ids
        self._free_tokens -= len(ids)
        while self._free_tokens < 0:
            oldest = next(iter(self._known))
            self._free_tokens += len(self._known.pop(oldest))
