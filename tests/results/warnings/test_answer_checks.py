"""Doubts of answers whose counts or ends cannot be as they were told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_runs import known_manifest, known_record, steady_records

from harness.adapters.base import Target
from harness.experiment.request_facts import prompt_counts
from harness.results.metrics import run_metrics
from harness.results.store.parquet import table_of
from harness.results.store.records import UNBELIEVED, RequestRecord
from harness.results.summary import RunWarning
from harness.results.warnings.checks import run_warnings
from harness.workloads.base import Conversation, Segment, Turn

NAMES = {
    "longer_than_asked",
    "usage_unbelieved",
    "no_finish_reason",
    "prompt_tokens_differ",
    "prompt_tokens_untold",
}


def doubts_of(*changed: RequestRecord, **manifest: Any) -> dict[str, RunWarning]:
    """The doubts of these answers among 600 good ones, of the kinds that are tested here."""
    whole = known_manifest(**manifest)
    records = [*steady_records(2, 301), *changed]
    found = run_warnings(run_metrics(table_of(records), whole), whole)
    return {doubt.name: doubt for doubt in found if doubt.name in NAMES}


def odd_record(**changes: Any) -> RequestRecord:
    """One more answer of five tokens, changed."""
    return replace(
        known_record(9000, [(t, 1) for t in range(1, 6)], sent_ms=0.5, asked_tokens=5), **changes
    )


def test_good_answers_raise_none() -> None:
    """As long as asked, with a reason for their end, and prompts counted as they were sent."""
    prompts = {"form": "ids", "requests": 9, "sent_tokens": 90, "counted_tokens": 90,
               "untold": 0, "differing": 0}  # fmt: skip

    assert doubts_of(odd_record(), prompts=prompts) == {}


def test_answers_longer_than_asked_are_told() -> None:
    """How many, and by how much."""
    found = doubts_of(odd_record(output_tokens=9, asked_tokens=5))

    assert set(found) == {"longer_than_asked"}
    assert "1 of 603 answers are longer than asked (9 tokens of 5)" in (
        found["longer_than_asked"].message
    )


def test_a_count_that_was_not_believed_is_told_and_is_not_missing() -> None:
    """The server did send a usage: to ask for one would be no remedy."""
    whole = known_manifest()
    records = [*steady_records(2, 301), odd_record(output_tokens_source=UNBELIEVED)]
    names = {doubt.name for doubt in run_warnings(run_metrics(table_of(records), whole), whole)}

    assert "usage_unbelieved" in names
    assert "usage_missing" not in names


def test_answers_without_a_finish_reason_are_told() -> None:
    """Those that failed have theirs: they are no answers."""
    found = doubts_of(
        odd_record(finish_reason=None),
        known_record(9001, sent_ms=0.5, error_kind="timeout", source=None),
    )

    assert "1 of 603 answers ended without a finish_reason" in found["no_finish_reason"].message


@pytest.mark.parametrize(("differing", "told"), [(0, False), (1, True)])
def test_other_prompt_tokens_than_were_sent_are_told_with_both_means(
    differing: int, *, told: bool
) -> None:
    """What it may be is the server's to say."""
    prompts = {"form": "ids", "requests": 4, "sent_tokens": 512, "counted_tokens": 516,
               "untold": 0, "differing": differing}  # fmt: skip

    found = doubts_of(prompts=prompts)

    assert ("prompt_tokens_differ" in found) == told
    if told:
        message = found["prompt_tokens_differ"].message
        assert "prompts of 128 tokens on average went out as token ids" in message
        assert "counted 129 on average (1 of 4 differ)" in message


def test_prompt_tokens_that_nobody_told_are_told() -> None:
    """So that one knows why a total is absent."""
    prompts = {"form": "ids", "requests": 1, "sent_tokens": 9, "counted_tokens": 9,
               "untold": 3, "differing": 0}  # fmt: skip

    assert "for 3 of 4 answers" in doubts_of(prompts=prompts)["prompt_tokens_untold"].message


ASKED = (
    Conversation(
        conversation_id="c0000",
        turns=tuple(Turn(prompt=(Segment(1, tokens),), output_tokens=5) for tokens in (100, 200)),
    ),
)


def counts(target: Target, first: int | None, second: int | None, **changes: Any) -> dict[str, Any]:
    """What is noted where the server counts the two prompts so."""
    records = [
        replace(known_record(0, [(1, 1)], turn=turn, prompt_tokens=told), conversation="c0000")
        for turn, told in enumerate((first, second))
    ]
    conversations = tuple(replace(one, **changes) for one in ASKED)
    return prompt_counts(records, conversations, target)


IDS = Target(url="http://h", model="m", vocabulary=4096)
TEXT, CHAT = replace(IDS, vocabulary=None), replace(IDS, api="chat")


def test_of_ids_every_token_counts() -> None:
    """One more is one that nobody sent."""
    assert counts(IDS, 100, 200)["differing"] == 0
    assert counts(IDS, 100, 201)["differing"] == 1
    assert counts(IDS, 99, 201) == {
        "form": "ids",
        "requests": 2,
        "sent_tokens": 300,
        "counted_tokens": 300,
        "untold": 0,
        "differing": 2,
    }
    assert (counts(IDS, None, 200)["untold"], counts(IDS, None, 200)["requests"]) == (1, 1)


@pytest.mark.parametrize(("target", "form"), [(TEXT, "completions"), (CHAT, "chat")])
def test_of_text_a_template_and_a_tokenizer_may_make_more(target: Target, form: str) -> None:
    """Within reason."""
    assert counts(target, 130, 260) | {"form": form} == counts(target, 130, 260)
    assert counts(target, 130, 260)["differing"] == 0
    assert counts(target, 20, 2000)["differing"] == 2


def test_of_a_live_chat_only_the_first_turn_is_known() -> None:
    """The next holds the server's own answer, which may be shorter."""
    found = counts(IDS, 100, 150, live=True)

    assert (found["requests"], found["sent_tokens"], found["differing"]) == (1, 100, 0)
