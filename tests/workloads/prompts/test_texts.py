"""The cache of token ids returns correct ids and computes each text once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workloads.base import Segment
from harness.workloads.prompts import texts
from harness.workloads.prompts.texts import Texts
from harness.workloads.prompts.token_ids import draw_token_ids

segments = st.builds(Segment, st.integers(0, 5), st.integers(0, 40))
prompts = st.lists(st.lists(segments, min_size=1, max_size=4).map(tuple), max_size=12)


@given(
    in_order=prompts,
    expected=st.lists(segments, max_size=20),
    capacity=st.sampled_from([0, 50, 9999]),
)
def test_ids_are_those_of_the_prompt_alone(
    in_order: list[tuple[Segment, ...]], expected: list[Segment], capacity: int
) -> None:
    """The ids do not depend on expected texts, earlier texts or evictions."""
    known = Texts(expected, capacity)

    for prompt in in_order:
        assert known.token_ids(prompt).tolist() == draw_token_ids(prompt).tolist()


def test_a_text_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared prefix and an expected text are not computed again."""
    worked_out: list[Segment] = []

    def noted(prompt: tuple[Segment, ...]) -> object:
        worked_out.extend(prompt)
        return draw_token_ids(prompt)

    monkeypatch.setattr(texts, "draw_token_ids", noted)
    in_order = [(Segment(1, 500), Segment(number, 100)) for number in range(2, 12)]
    known = Texts(part for prompt in in_order for part in prompt)

    for prompt in in_order:
        known.token_ids(prompt)

    assert sorted(one.text for one in worked_out) == list(range(1, 12))
