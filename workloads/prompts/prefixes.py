"""Shared prefixes of prompts, found with a tree of texts.

An edge of the tree is a text, not a token, so a prompt of thousands of tokens takes a few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.workloads.base import Conversation, Segment

Prompt = tuple[Segment, ...]


class PrefixTree:
    """A prefix tree of prompts that can exclude the prompts of one owner.

    An edge is one text. It stores the longest beginning of the text in any prompt, the owner of
    that prompt, and the longest beginning among all other owners.
    """

    def __init__(self) -> None:
        self._edges: dict[tuple[int, int, int], int] = {}  # (previous edge, its tokens, text)
        self._longest: list[int] = [0]  # edge → tokens; edge 0 is the empty start
        self._owners: list[int] = [-1]  # edge → owner of the longest beginning
        self._others: list[int] = [0]  # edge → longest beginning of any other owner, in tokens

    def add(self, prompt: Prompt, owner: int) -> None:
        """Add a prompt of `owner`."""
        edge = left_at = 0
        for segment in prompt:
            if not segment.tokens:
                continue
            edge = self._edges.setdefault((edge, left_at, segment.text), len(self._longest))
            left_at = segment.tokens
            if edge == len(self._longest):
                self._longest.append(left_at)
                self._owners.append(owner)
                self._others.append(0)
            elif owner == self._owners[edge]:
                self._longest[edge] = max(left_at, self._longest[edge])
            elif left_at > self._longest[edge]:
                self._others[edge], self._longest[edge] = self._longest[edge], left_at
                self._owners[edge] = owner
            else:
                self._others[edge] = max(left_at, self._others[edge])

    def shared_tokens(self, prompt: Prompt, owner: int) -> int:
        """Return the length of the longest prefix that `prompt` shares with another owner's prompt.

        `owner` is the owner of `prompt`; -1 includes the prompts of every owner.
        """
        edge = left_at = shared = 0
        for segment in prompt:
            if not segment.tokens:
                continue
            found = self._edges.get((edge, left_at, segment.text))
            if found is None:
                break
            edge, left_at = found, segment.tokens
            own = owner == self._owners[edge]
            common = min(left_at, self._others[edge] if own else self._longest[edge])
            shared += common
            if common < left_at:
                break
        return shared


def shared_prefixes(conversations: Sequence[Conversation], least_tokens: int = 1) -> list[Prompt]:
    """Return the distinct prefixes that at least two conversations share, longest first.

    Excludes prefixes shorter than `least_tokens` and prefixes of another returned prefix.
    """
    tree = PrefixTree()
    for owner, one in enumerate(conversations):
        for turn in one.turns:
            tree.add(turn.prompt, owner)
    found: dict[Prompt, int] = {}
    for owner, one in enumerate(conversations):
        for turn in one.turns:
            tokens = tree.shared_tokens(turn.prompt, owner)
            if tokens >= least_tokens:
                found[beginning(turn.prompt, tokens)] = tokens
    kept, known = [], PrefixTree()
    for prefix in sorted(found, key=lambda one: -found[one]):
        if known.shared_tokens(prefix, -1) < found[prefix]:
            known.add(prefix, 0)
            kept.append(prefix)
    return kept


def beginning(prompt: Prompt, tokens: int) -> Prompt:
    """Return the first `tokens` tokens of `prompt`."""
    kept: list[Segment] = []
    for segment in prompt:
        if tokens <= 0:
            break
        if segment.tokens:
            kept.append(Segment(segment.text, min(segment.tokens, tokens)))
        tokens -= segment.tokens
    return tuple(kept)


def left_behind(conversation: Conversation) -> Iterable[Prompt]:
    """Yield the cache content after each turn, for a cache without limit.

    With recorded history this is the prompt. With live history it is the prompt and the answer,
    because the next prompt repeats the engine's own answer.
    """
    turns = conversation.turns
    for number, turn in enumerate(turns):
        after = turns[number + 1].prompt if conversation.live and number + 1 < len(turns) else ()
        yield after[: len(turn.prompt) + 1] if after else turn.prompt
