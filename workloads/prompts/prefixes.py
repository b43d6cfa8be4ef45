"""What prompts have in common: how far one begins as others do, and which beginnings are shared.

A tree of texts, not of tokens: a prompt of thousands of tokens is a few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.workloads.base import Conversation, Segment

Prompt = tuple[Segment, ...]


class PrefixTree:
    """Prompts by their beginnings, each with an owner whose own prompts do not count for it.

    An edge is one text: the longest stretch of it that any prompt followed, whose that was, and
    the longest of all other owners.
    """

    def __init__(self) -> None:
        self._edges: dict[tuple[int, int, int], int] = {}  # (edge before, tokens of it, text)
        self._longest: list[int] = [0]  # edge → tokens; edge 0 is the empty start
        self._owners: list[int] = [-1]  # edge → whose that is
        self._others: list[int] = [0]  # edge → tokens of the longest of anybody else

    def add(self, prompt: Prompt, owner: int) -> None:
        """Take in a prompt of `owner`."""
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
        """Return the tokens of the longest prefix of `prompt` that a prompt of others begins with.

        `owner` is whose prompt it is; with -1 all prompts count.
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
    """Return the beginnings that at least two conversations share, each once, the longest first.

    Those shorter than `least_tokens` are left out, and so is one that another begins with.
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
    """Yield what each turn leaves in a cache without limit: its prompt, and live its answer too.

    With live history the next prompt begins with the answer; a recorded answer was never in it.
    """
    turns = conversation.turns
    for number, turn in enumerate(turns):
        after = turns[number + 1].prompt if conversation.live and number + 1 < len(turns) else ()
        yield after[: len(turn.prompt) + 1] if after else turn.prompt
