"""docs/reference-numbers.md contains the values of the current step times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reference_numbers import (
    CONTEXT_TOKENS,
    HUNDRED_USERS_TOKENS_PER_S,
    ONE_USER_TOKENS_PER_S,
    PAGE,
    PROMPT_TOKENS,
    TTFT_MS,
    decode_tokens_per_s,
    longest_prompt,
    prefill_s,
    settings,
    tables,
    verdict,
    written,
)

from harness.adapters.base import EngineError
from harness.adapters.embedded.adapter import engine_config
from harness.adapters.embedded.capacity import capacity_of

TEXT = PAGE.read_text(encoding="utf-8")
FLAT = " ".join(TEXT.split())


def test_each_table_is_what_the_engine_computes(tmp_path: Path) -> None:
    """All tables are those that `tests/support/sweeps/reference_numbers.py` writes."""
    computed = tables(tmp_path)

    assert re.findall(r"<!-- (.+) -->", TEXT) == list(computed)
    for title, text in computed.items():
        assert f"<!-- {title} -->\n\n{text}\n\n" in TEXT, title
    assert written(TEXT, computed) == TEXT


def test_one_user_has_a_roof_in_16_bit() -> None:
    """The roofline of one user is 1 / 17.1 ms: 65 tokens/s exceed it, 50 and 55 do not."""
    roof, predicted = decode_tokens_per_s(settings(), 1, CONTEXT_TOKENS)

    assert f"at least {1e3 / roof:.1f} ms" in FLAT
    assert f"at most {roof:.1f} tokens/s" in FLAT
    assert ONE_USER_TOKENS_PER_S[1] < roof < ONE_USER_TOKENS_PER_S[2]
    assert verdict(65, roof, predicted) == "impossible"


def test_the_arithmetic_of_a_long_prompt() -> None:
    """The page has tokens × 2 × parameters, and the time for it at the peak."""
    parameters = capacity_of(settings()).parameters
    flops = PROMPT_TOKENS * 2 * parameters

    assert f"2 × {parameters / 1e9:.1f} billion" in FLAT
    assert f"are {flops / 1e12:.0f} TFLOP" in FLAT
    assert f"needs {flops / 312e12:.2f} s" in FLAT
    assert prefill_s(settings(1), PROMPT_TOKENS)[0] == pytest.approx(flops / 312e12, rel=0.03)
    with pytest.raises(EngineError, match="does not fit"):
        engine_config(settings(1))


def test_the_page_has_the_crossover() -> None:
    """The page has peak FLOP/s ÷ peak bandwidth, and its often quoted rounded value."""
    crossover = capacity_of(settings()).crossover_flops_per_byte

    assert f"312e12 / 2.039e12 = {crossover:.0f} FLOP per byte" in FLAT
    assert f"{312e12 / 2.0e12:.0f}" == "156"
    assert "often quoted 156" in FLAT
    assert capacity_of(settings()).decode[-1].binding_side == "memory"


def test_the_quoted_numbers_are_in_the_first_paragraph() -> None:
    """The first paragraph and the tables have the same numbers."""
    first = FLAT.partition("This page")[0]

    assert "{}, {} and {} tokens/s for one user".format(*ONE_USER_TOKENS_PER_S) in first
    assert "{:,}, {:,} and {:,} tokens/s for a hundred".format(*HUNDRED_USERS_TOKENS_PER_S) in first
    assert "TTFT of {}, {} and {} ms".format(*TTFT_MS) in first


def test_the_longest_prompt_is_the_longest() -> None:
    """Ten more tokens take longer than the limit."""
    chosen = settings()

    def seconds(tokens: int) -> float:
        return prefill_s(chosen, tokens)[1]

    found = longest_prompt(seconds, 0.4)

    assert seconds(found) <= 0.4 < seconds(found + 10)


def test_a_verdict_is_by_roof_and_prediction() -> None:
    """A value is impossible, within the prediction, or a share of the roofline."""
    assert [verdict(one, 100, 50) for one in (101, 100, 75, 50)] == [
        "impossible",
        "100% of the roof",
        "75% of the roof",
        "within the prediction",
    ]
