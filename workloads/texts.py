"""Texts that come again: their token ids are worked out once, as long as there is room for them."""

from __future__ import annotations

import numpy as np

from workloads.base import Segment, TokenIds
from workloads.prompts import text_ids

_ROOM_TOKENS = 1 << 22  # 16 MB of ids


class Texts:
    """The ids of the texts seen last, for prompts that share beginnings or whole histories."""

    def __init__(self, room_tokens: int = _ROOM_TOKENS) -> None:
        self._room_tokens = room_tokens
        self._known: dict[int, TokenIds] = {}  # text → ids of its longest beginning, oldest first

    def token_ids(self, prompt: tuple[Segment, ...]) -> TokenIds:
        """Return the token ids of a prompt, as `workloads.prompts.token_ids` does."""
        return np.concatenate([self._ids(segment) for segment in prompt])

    def _ids(self, segment: Segment) -> TokenIds:
        known = self._known.get(segment.text)
        if known is None or len(known) < segment.tokens:
            known = text_ids(segment)
            self._keep(segment.text, known)
        return known[: segment.tokens]

    def _keep(self, text: int, ids: TokenIds) -> None:
        """Keep the ids of a text, and let go of the oldest ones where there is no room."""
        if (before := self._known.pop(text, None)) is not None:
            self._room_tokens += len(before)
        self._known[text] = ids
        self._room_tokens -= len(ids)
        while self._room_tokens < 0:
            oldest = next(iter(self._known))
            self._room_tokens += len(self._known.pop(oldest))
