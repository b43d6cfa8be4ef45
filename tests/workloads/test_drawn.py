"""Shared-prefix and multi-turn workloads: drawn requests, shared prefixes and context limits."""

from dataclasses import replace
from typing import Any

import pytest

from harness.workloads import WORKLOADS
from harness.workloads.base import Drawn, Segment, Workload, WorkloadError
from harness.workloads.lengths import Fixed, Lognormal, Uniform
from harness.workloads.multi_turn import MultiTurn
from harness.workloads.prompts.token_ids import prefix_hit_ceiling, shared_prefix_tokens
from harness.workloads.shared_prefix import SharedPrefix
from harness.workloads.trace.replay import TraceReplay

SUPPORT = SharedPrefix(
    name="support-bot",
    prefix_tokens=Fixed(2_000),
    suffix_tokens=Lognormal(120, 900),
    output_tokens=Fixed(256),
)
CHAT = MultiTurn(
    name="chat",
    turns=5,
    first_tokens=Fixed(300),
    turn_tokens=Fixed(300),
    output_tokens=Fixed(200),
    think_time_ns=1_000_000_000,
    system_tokens=Fixed(100),
)
EACH_KIND: list[Workload] = [SUPPORT, replace(CHAT, output_tokens=Uniform(10, 300))]


def prompts_of(drawn: Drawn) -> list[tuple[Segment, ...]]:
    return [turn.prompt for conversation in drawn.conversations for turn in conversation.turns]


def texts_of(drawn: Drawn) -> set[int]:
    return {segment.text for prompt in prompts_of(drawn) for segment in prompt}


@pytest.mark.parametrize("workload", EACH_KIND, ids=lambda workload: workload.name)
def test_a_draw_depends_only_on_the_seed(workload: Workload) -> None:
    """The same seed gives the same conversations; another seed shares no text with them."""
    drawn = workload.draw(requests=40, seed=7, max_model_len=8_192)
    assert drawn == workload.draw(requests=40, seed=7, max_model_len=8_192)
    other = workload.draw(requests=40, seed=8, max_model_len=8_192)
    assert not texts_of(drawn) & texts_of(other)
    assert prefix_hit_ceiling(prompts_of(drawn), 16) != 0
    assert prefix_hit_ceiling([*prompts_of(drawn)[:1], *prompts_of(other)[:1]], 16) == 0


@pytest.mark.parametrize("workload", EACH_KIND, ids=lambda workload: workload.name)
def test_more_requests_begin_with_the_same_ones(workload: Workload) -> None:
    """A larger draw extends a smaller one, also beyond one group of lengths drawn together."""
    few = workload.draw(requests=30, seed=7, max_model_len=8_192).conversations
    many = workload.draw(requests=1_500, seed=7, max_model_len=8_192).conversations
    assert many[: len(few)] == few
    assert len({conversation.conversation_id for conversation in many}) == len(many)
    assert len({turn.prompt for conversation in many for turn in conversation.turns}) >= 1_500


@pytest.mark.parametrize("workload", EACH_KIND, ids=lambda workload: workload.name)
def test_drawn_requests_need_a_number(workload: Workload) -> None:
    """A drawn workload refuses a missing number of requests and a number of 0."""
    for requests in (None, 0):
        with pytest.raises(WorkloadError, match=workload.name):
            workload.draw(requests=requests, seed=0, max_model_len=8_192)


@pytest.mark.parametrize("workload", EACH_KIND, ids=lambda workload: workload.name)
def test_a_description_is_one_line(workload: Workload) -> None:
    """The plan's line begins with the name of the workload."""
    line = workload.describe()
    assert line.startswith(f"{workload.name}: ")
    assert "\n" not in line


def test_other_output_lengths_leave_the_prompts_alone() -> None:
    """Shorter answers change no prompt of a shared-prefix workload."""
    short = replace(SUPPORT, output_tokens=Uniform(1, 8))
    one, other = (w.draw(requests=50, seed=3, max_model_len=8_192) for w in (SUPPORT, short))
    assert prompts_of(one) == prompts_of(other)
    assert {turn.output_tokens for c in other.conversations for turn in c.turns} <= set(range(1, 9))


def test_shared_prefix_shares_its_prefix_and_nothing_else() -> None:
    """Every prompt but the first shares exactly the 2,000 tokens of the prefix."""
    prompts = prompts_of(SUPPORT.draw(requests=60, seed=1, max_model_len=16_384))
    assert list(shared_prefix_tokens(prompts)) == [0] + [2_000] * 59
    assert all(len(prompt) == 2 for prompt in prompts)


def test_groups_take_turns_and_share_nothing() -> None:
    """Request i has the prefix of group i mod groups; each group's prefix has one drawn length."""
    grouped = replace(SUPPORT, groups=3, prefix_tokens=Uniform(500, 900))
    prompts = prompts_of(grouped.draw(requests=9, seed=1, max_model_len=16_384))
    prefixes = [prompt[0] for prompt in prompts]
    assert prefixes[:3] * 3 == prefixes
    assert len({prefix.text for prefix in prefixes}) == 3
    assert len({prefix.tokens for prefix in prefixes}) > 1
    shared = list(shared_prefix_tokens(prompts))
    assert shared == [0, 0, 0, *(prefix.tokens for prefix in prefixes[3:])]


def test_without_a_prefix_nothing_is_shared() -> None:
    """A prefix of no tokens leaves prompts of one text each."""
    bare = replace(SUPPORT, prefix_tokens=Fixed(0)).draw(requests=30, seed=1, max_model_len=9_000)
    assert all(len(prompt) == 1 for prompt in prompts_of(bare))
    assert prefix_hit_ceiling(prompts_of(bare), 1) == 0


def test_requests_that_do_not_fit_are_counted_and_replaced() -> None:
    """Requests that are too long are counted as context_length and replaced by other draws."""
    tight = replace(SUPPORT, suffix_tokens=Uniform(100, 200))
    drawn = tight.draw(requests=400, seed=1, max_model_len=2_000 + 150 + 256)
    lengths = [turn.prompt_tokens for c in drawn.conversations for turn in c.turns]
    assert len(lengths) == 400
    assert max(lengths) == 2_150  # equal to the limit is allowed
    assert 250 < drawn.skipped["context_length"] < 600
    assert SUPPORT.draw(requests=9, seed=1, max_model_len=10**6).skipped == {}


@pytest.mark.parametrize("workload", EACH_KIND, ids=lambda workload: workload.name)
def test_a_workload_that_never_fits_is_refused(workload: Workload) -> None:
    """The error names the tokens needed and the limit, instead of an endless draw."""
    with pytest.raises(
        WorkloadError, match=r"longer than max_model_len 320; .* \(prompt \d+ \+"
    ) as caught:
        workload.draw(requests=10, seed=0, max_model_len=320)
    assert "max_model_len" in caught.value.__notes__[0]


def test_a_chat_grows_by_answer_and_question() -> None:
    """Each prompt is the previous prompt, its answer and a new question."""
    [chat] = CHAT.draw(requests=5, seed=1, max_model_len=8_192).conversations
    assert [turn.prompt_tokens for turn in chat.turns] == [400, 900, 1_400, 1_900, 2_400]
    for before, turn in zip(chat.turns, chat.turns[1:], strict=False):
        *history, answer, question = turn.prompt
        assert tuple(history) == before.prompt
        assert (answer.tokens, question.tokens) == (before.output_tokens, 300)
    texts = {segment.text for segment in chat.turns[-1].prompt}
    assert len(texts) == len(chat.turns[-1].prompt)


def test_recorded_answers_have_their_turns_own_length() -> None:
    """The answer in the history has the requested output length."""
    drawn = replace(CHAT, output_tokens=Uniform(1, 50)).draw(
        requests=50, seed=1, max_model_len=8_192
    )
    for chat in drawn.conversations:
        for before, turn in zip(chat.turns, chat.turns[1:], strict=False):
            assert turn.prompt[-2].tokens == before.output_tokens
    assert any("recorded" in note for note in drawn.notes)


def test_chats_share_the_system_prompt_only() -> None:
    """First turns share the system prompt; later turns share the history of their own chat."""
    prompts = prompts_of(CHAT.draw(requests=10, seed=1, max_model_len=8_192))
    history = [400, 900, 1_400, 1_900]
    assert list(shared_prefix_tokens(prompts)) == [0, *history, 100, *history]
    alone = replace(CHAT, system_tokens=None).draw(requests=10, seed=1, max_model_len=8_192)
    assert list(shared_prefix_tokens(prompts_of(alone)))[5] == 0
    none = replace(CHAT, system_tokens=Fixed(0)).draw(requests=10, seed=1, max_model_len=8_192)
    assert none == alone


def test_every_turn_but_the_first_has_the_think_time() -> None:
    """The first turn has no think time; each later turn has the configured one."""
    [chat] = CHAT.draw(requests=5, seed=1, max_model_len=8_192).conversations
    assert [turn.think_time_ns for turn in chat.turns] == [0, *[1_000_000_000] * 4]


def test_a_chat_ends_when_the_context_is_full() -> None:
    """Turns above the limit are counted as context_full; a turn equal to the limit is sent.

    Prompt + 200 output tokens is 600, 1,100, 1,600, then 2,100; the limit is 1,600.
    """
    drawn = CHAT.draw(requests=3, seed=1, max_model_len=1_600)
    [chat] = drawn.conversations
    assert [turn.prompt_tokens for turn in chat.turns] == [400, 900, 1_400]
    assert drawn.skipped == {"context_full": 2}


def test_chats_are_whole_and_enough() -> None:
    """The number of turns is rounded up to whole chats, also when chats are cut short."""
    assert len(CHAT.draw(requests=11, seed=1, max_model_len=8_192).conversations) == 3
    cut = CHAT.draw(requests=11, seed=1, max_model_len=1_600)
    assert [len(chat.turns) for chat in cut.conversations] == [3, 3, 3, 3]
    assert cut.skipped == {"context_full": 8}


def test_a_chat_without_a_first_turn_is_dropped_whole() -> None:
    """A chat whose first turn does not fit is replaced, and all its turns are counted."""
    mixed = replace(CHAT, first_tokens=Uniform(1, 1_000), turns=2, system_tokens=None)
    drawn = mixed.draw(requests=100, seed=1, max_model_len=700)
    sent = sum(len(chat.turns) for chat in drawn.conversations)
    assert sent in (100, 101)
    assert drawn.skipped["context_full"] > 2 * len(drawn.conversations) - sent
    assert all(chat.turns for chat in drawn.conversations)


@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": 0},
        {"think_time_ns": -1},
        {"first_tokens": Fixed(0)},
        {"turn_tokens": Fixed(0)},
        {"output_tokens": Fixed(0)},
    ],
)
def test_invalid_chats_are_refused(wrong: dict[str, Any]) -> None:
    """A chat needs at least one turn, and questions and answers of at least one token."""
    with pytest.raises(WorkloadError, match="chat: "):
        replace(CHAT, **wrong)


@pytest.mark.parametrize(
    "wrong", [{"groups": 0}, {"suffix_tokens": Fixed(0)}, {"output_tokens": Fixed(0)}]
)
def test_invalid_requests_are_refused(wrong: dict[str, Any]) -> None:
    """A request needs a group, a suffix and an output of at least one token."""
    with pytest.raises(WorkloadError, match="support-bot: "):
        replace(SUPPORT, **wrong)


def test_the_table_names_every_workload() -> None:
    """Each `kind` of a sweep file has its class."""
    kinds = {
        "shared-prefix": SharedPrefix,
        "multi-turn": MultiTurn,
        "trace": TraceReplay,
    }
    assert kinds == WORKLOADS
