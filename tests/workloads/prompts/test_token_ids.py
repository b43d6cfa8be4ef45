"""Token ids of texts, and the largest possible prefix hit rate."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workloads.base import Segment, WorkloadError
from harness.workloads.prompts.token_ids import (
    draw_token_ids,
    prefix_hit_ceiling,
    shared_prefix_tokens,
)
from harness.workloads.seeds import generator, text_names

Prompt = tuple[Segment, ...]

segments = st.builds(Segment, st.integers(0, 2), st.integers(0, 9))
prompt_lists = st.lists(st.lists(segments, min_size=1, max_size=4).map(tuple), max_size=8)


def common_ids(one: Prompt, other: Prompt) -> int:
    """Return the number of leading token ids that two prompts share."""
    pairs = zip(draw_token_ids(one), draw_token_ids(other), strict=False)
    equal = [bool(a == b) for a, b in pairs]
    return equal.index(False) if False in equal else len(equal)


def brute_force_shared(prompts: list[Prompt]) -> list[int]:
    """Return each prompt's longest prefix shared with an earlier one, by comparing all ids."""
    return [
        max((common_ids(prompt, before) for before in prompts[:number]), default=0)
        for number, prompt in enumerate(prompts)
    ]


def test_a_prompt_is_its_segments_in_order() -> None:
    """The ids of a prompt are the joined ids of its segments."""
    prompt = (Segment(11, 5), Segment(12, 0), Segment(2**64 - 1, 7), Segment(11, 3))
    apart = [draw_token_ids((segment,)) for segment in prompt]
    assert np.array_equal(draw_token_ids(prompt), np.concatenate(apart))
    assert draw_token_ids(prompt).dtype == np.int32


def test_a_text_is_endless_and_the_same_each_time() -> None:
    """A shorter segment is the beginning of a longer segment of the same text."""
    assert np.array_equal(
        draw_token_ids((Segment(5, 900),)), draw_token_ids((Segment(5, 5_000),))[:900]
    )


def test_texts_share_nothing() -> None:
    """Texts with consecutive names have equal tokens only by chance, at any small shift."""
    texts = [draw_token_ids((Segment(name, 20_000),)) for name in range(4)]
    for one, other in pairwise(texts):
        for shift in range(3):
            assert (one[shift:] == other[: len(other) - shift]).sum() <= 3


@pytest.mark.parametrize(("vocabulary", "first"), [(128_000, 1_000), (32_000, 1_000), (512, 256)])
def test_ids_fill_the_ordinary_vocabulary(vocabulary: int, first: int) -> None:
    """Ids are uniform over the vocabulary, without the special tokens at its start."""
    ids = draw_token_ids((Segment(3, 400_000),), vocabulary)
    assert ids.min() >= first
    assert ids.max() < vocabulary
    counts, _ = np.histogram(ids, bins=16, range=(first, vocabulary))
    assert counts == pytest.approx(np.full(16, 25_000), rel=0.05)


def test_no_prompt_and_no_vocabulary() -> None:
    """An empty prompt has no ids; a vocabulary of one token is refused."""
    assert draw_token_ids(()).shape == (0,)
    with pytest.raises(WorkloadError, match="vocabulary of 1 "):
        draw_token_ids((Segment(1, 1),), vocabulary=1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(prompt_lists)
def test_shared_prefixes_match_the_token_ids(prompts: list[Prompt]) -> None:
    """The tree of texts gives the same prefixes as a comparison of all ids."""
    assert list(shared_prefix_tokens(prompts)) == brute_force_shared(prompts)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(prompt_lists, st.integers(1, 5))
def test_ceiling_is_in_whole_blocks_without_the_last_token(
    prompts: list[Prompt], block_tokens: int
) -> None:
    """The ceiling is the brute-force count of reusable tokens divided by all prompt tokens."""
    lengths = [len(draw_token_ids(prompt)) for prompt in prompts]
    shared = brute_force_shared(prompts)
    usable = [min(tokens, length - 1) for tokens, length in zip(shared, lengths, strict=True)]
    cached = sum(tokens // block_tokens * block_tokens for tokens in usable if tokens > 0)
    expected = cached / sum(lengths) if sum(lengths) else None
    assert prefix_hit_ceiling(prompts, block_tokens) == expected


def test_ceiling_of_known_prompts() -> None:
    """A repeated prompt of two blocks can reuse one, because its last token must be computed."""
    prompt = (Segment(1, 32),)
    assert prefix_hit_ceiling([prompt, prompt], 16) == 16 / 64
    assert prefix_hit_ceiling([(Segment(1, 40),), (Segment(1, 50),)], 16) == 32 / 90
    assert prefix_hit_ceiling([(Segment(1, 40),), (Segment(2, 40),)], 16) == 0
    assert prefix_hit_ceiling([], 16) is None


def test_ceiling_counts_only_earlier_prompts() -> None:
    """A later prompt gives no reuse to an earlier prompt, longer or shorter."""
    short, long = (Segment(1, 16),), (Segment(1, 64),)
    assert list(shared_prefix_tokens([short, long, long])) == [0, 16, 64]
    assert list(shared_prefix_tokens([long, short])) == [0, 16]


def test_names_differ_by_seed_use_and_number() -> None:
    """A text has the same name only for the same seed, use and number."""
    numbers = [0, 1, -1, 2**63 - 1, -(2**63)]
    draws = [text_names(seed, use, numbers) for seed in (0, 1) for use in ("a", "b")]
    names = [name for names in draws for name in names]
    assert len(set(names)) == len(names)
    assert draws[0] == text_names(0, "a", numbers)
    assert text_names(0, "a", [1]) == draws[0][1:2]


def test_each_use_of_a_seed_has_its_own_stream() -> None:
    """Generators of one seed differ between uses and repeat for the same use."""
    first = generator(3, "suffix").integers(2**60, size=4).tolist()
    assert first == generator(3, "suffix").integers(2**60, size=4).tolist()
    assert first != generator(3, "output").integers(2**60, size=4).tolist()
    assert first != generator(4, "suffix").integers(2**60, size=4).tolist()
