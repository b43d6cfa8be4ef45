"""Texts that come again: their token ids are worked out once, as long as the cache holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness.workloads.base import Segment, TokenIds
from harness.workloads.prompts.token_ids import draw_token_ids

_ROOM_TOKENS = 1 << 22  # 16 MB of ids
_TOKENS_AHEAD = 1 << 13  # worked out together: many short texts cost little more than one


class Texts:
    """The ids of the texts seen last, for prompts that share beginnings or whole histories."""

    def __init__(self, expected: Iterable[Segment] = (), room_tokens: int = _ROOM_TOKENS) -> None:
        """`expected` are the texts to come, about in the order in which they will."""
        self._expected = iter(expected)
        self._room_tokens = room_tokens
        self._known: dict[int, TokenIds] = {}  # text → ids of its longest beginning, oldest first

    def token_ids(self, prompt: tuple[Segment, ...]) -> TokenIds:
        """Return the token ids of a prompt, as `workloads.prompts.token_ids` does."""
        return np.concatenate([self._ids(segment) for segment in prompt])

    def _ids(self, segment: Segment) -> TokenIds:
        known = self._known.get(segment.text)
        if known is None or len(known) < segment.tokens:
            known = self._work_out(segment)
        return known[: segment.tokens]

    def _work_out(self, segment: Segment) -> TokenIds:
        """Return the ids of `segment`; keep them, and those of the texts expected next."""
        together = (segment, *self._ahead(segment.text))
        ids, at = draw_token_ids(together), 0
        for one in together:
            self._keep(one.text, ids[at : at + one.tokens])
            at += one.tokens
        return ids[: segment.tokens]

    def _ahead(self, text: int) -> Iterator[Segment]:
        """Yield some of the texts that are expected next, without `text` and those known."""
        taken, tokens = {text}, 0
        while tokens < _TOKENS_AHEAD and (one := next(self._expected, None)) is not None:
            if one.text not in taken and one.text not in self._known:
                taken.add(one.text)
                tokens += one.tokens
                yield one

    def _keep(self, text: int, ids: TokenIds) -> None:
        """Keep the ids of a text, and let go of the oldest ones where the cache is full."""
        if (before := self._known.pop(text, None)) is not None:
            self._room_tokens += len(before)
        self._known[text] = ids
        self._room_tokens -= len(ids)
        while self._room_tokens < 0:
            oldest = next(iter(self._known))
            self._room_tokens += len(self._known.pop(oldest))
