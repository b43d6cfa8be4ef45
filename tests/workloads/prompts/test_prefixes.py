"""Prefixes that several conversations share, and the tokens that a request can find in a cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.workloads.base import Conversation, Segment, Turn
from harness.workloads.lengths import Fixed
from harness.workloads.multi_turn import MultiTurn
from harness.workloads.prompts.prefixes import (
    PrefixTree,
    Prompt,
    beginning,
    left_behind,
    shared_prefixes,
)
from harness.workloads.prompts.token_ids import draw_token_ids, shared_prefix_tokens
from harness.workloads.shared_prefix import SharedPrefix

SEGMENTS = st.builds(Segment, st.integers(1, 3), st.integers(1, 4))
PROMPTS = st.lists(SEGMENTS, min_size=1, max_size=4).map(tuple)


def conversation(name: str, *prompts: Prompt) -> Conversation:
    turns = tuple(Turn(prompt=prompt, output_tokens=1) for prompt in prompts)
    return Conversation(conversation_id=name, turns=turns)


@given(st.lists(PROMPTS, min_size=1, max_size=6))
def test_the_tree_finds_the_longest_prefix_of_another_owner(prompts: list[Prompt]) -> None:
    """The tree returns the same shared prefix as a comparison of all token ids."""
    tree = PrefixTree()
    for owner, prompt in enumerate(prompts):
        tree.add(prompt, owner)
    for owner, prompt in enumerate(prompts):
        others = [one for other, one in enumerate(prompts) if other != owner]
        assert tree.shared_tokens(prompt, owner) <= max(
            (common(prompt, o) for o in others), default=0
        )
        assert tree.shared_tokens(prompt, -1) == sum(part.tokens for part in prompt)

    in_order = PrefixTree()
    found = []
    for prompt in prompts:
        found.append(in_order.shared_tokens(prompt, -1))
        in_order.add(prompt, 0)
    assert found == list(shared_prefix_tokens(prompts))


def common(one: Prompt, other: Prompt) -> int:
    """Return the number of leading ids that two prompts share."""
    pairs = zip(draw_token_ids(one).tolist(), draw_token_ids(other).tolist(), strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(map(length, (one, other))))


def length(prompt: Prompt) -> int:
    return sum(part.tokens for part in prompt)


def test_own_prompts_do_not_count() -> None:
    """The tree ignores an owner's own prompts and keeps the longest beginning of the others."""
    tree = PrefixTree()
    tree.add((Segment(1, 50),), 0)
    tree.add((Segment(1, 30),), 1)
    tree.add((Segment(1, 40),), 0)

    assert tree.shared_tokens((Segment(1, 50),), 0) == 30
    assert tree.shared_tokens((Segment(1, 40),), 1) == 40
    assert tree.shared_tokens((Segment(1, 60),), 2) == 50
    assert tree.shared_tokens((Segment(2, 60),), 2) == 0


def test_each_groups_prefix_is_shared_and_no_suffix_is() -> None:
    """Three groups have three shared prefixes, each with the length of the group's prefix."""
    workload = SharedPrefix(
        name="w",
        prefix_tokens=Fixed(100),
        suffix_tokens=Fixed(10),
        output_tokens=Fixed(5),
        groups=3,
    )
    drawn = workload.draw(requests=9, seed=1, max_model_len=1000)

    found = shared_prefixes(drawn.conversations)

    assert {one.turns[0].prompt[:1] for one in drawn.conversations} == set(found)
    assert [length(prefix) for prefix in found] == [100, 100, 100]


def test_chats_share_the_system_prompt_and_no_history() -> None:
    """The history that the turns of one chat share is not a prefix of several conversations."""
    drawn = chats().draw(requests=6, seed=1, max_model_len=1000)

    [prefix] = shared_prefixes(drawn.conversations)

    assert prefix == drawn.conversations[0].turns[0].prompt[:1]


def test_a_beginning_inside_a_longer_one_is_not_sent_twice() -> None:
    """Trace rows give only the longest shared prefixes, and no prefix shorter than a block."""
    a, b, c, d = (Segment(text, 16) for text in (1, 2, 3, 4))
    rows = [(a, b, c), (a, b, d), (a, d), (d, Segment(9, 5)), (d, Segment(9, 7)), (Segment(5, 5),)]
    all_conversations = [conversation(str(number), row) for number, row in enumerate(rows)]
    all_conversations += [conversation("short", (Segment(5, 6),))]

    assert set(shared_prefixes(all_conversations, 16)) == {(a, b), (d, Segment(9, 5))}
    assert (Segment(5, 5),) in shared_prefixes(all_conversations)


def test_a_beginning_has_the_requested_number_of_tokens() -> None:
    """A beginning ends inside a segment or at its end."""
    prompt = (Segment(1, 10), Segment(2, 0), Segment(3, 10))

    assert beginning(prompt, 12) == (Segment(1, 10), Segment(3, 2))
    assert beginning(prompt, 10) == (Segment(1, 10),)
    assert beginning(prompt, 0) == ()


def test_a_live_chat_leaves_its_answers_in_the_cache() -> None:
    """A recorded chat leaves only its prompts; the last answer of a chat is never reused."""
    [recorded, *_] = chats().draw(requests=2, seed=1, max_model_len=1000).conversations
    [live, *_] = chats("live").draw(requests=2, seed=1, max_model_len=1000).conversations

    assert list(left_behind(recorded)) == [turn.prompt for turn in recorded.turns]
    assert list(left_behind(live)) == [live.turns[1].prompt[:-1], live.turns[1].prompt]
    assert live.turns == recorded.turns


def chats(history: str = "recorded") -> MultiTurn:
    return MultiTurn(
        name="chat",
        turns=2,
        system_tokens=Fixed(40),
        first_tokens=Fixed(30),
        turn_tokens=Fixed(20),
        output_tokens=Fixed(10),
        history=history,
    )
