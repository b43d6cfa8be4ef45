"""Speculation with chains and trees: tokens and time of a step, and when it is faster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_play import Ask, LinearTimer, config, play
from small_sweeps import settings_of, swept
from sweep_files import problems, sweep

from harness.adapters.base import ToggleValue, UnsupportedToggleError
from harness.adapters.embedded.adapter import EmbeddedAdapter, deployment, engine_config
from harness.adapters.embedded.engine.core import EngineCore
from harness.adapters.embedded.engine.speculative import SpeculativeConfig, tree_tokens
from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

ONE_A100 = Deployment(model=find_model("llama-3-8b"), gpu=find_gpu("a100-80gb"))


def tree(branches: int, depth: int, acceptance: float) -> SpeculativeConfig:
    """Return a draft tree of EAGLE."""
    return SpeculativeConfig(
        method="eagle",
        draft_tokens=tree_tokens(branches, depth),
        acceptance=acceptance,
        branches=branches,
        depth=depth,
    )


def chain(tokens: int, acceptance: float) -> SpeculativeConfig:
    """Return a chain of EAGLE."""
    return SpeculativeConfig(method="eagle", draft_tokens=tokens, acceptance=acceptance)


def gain(speculation: SpeculativeConfig, sequences: int, context: int = 800) -> float:
    """Return output tokens/s with speculation ÷ without, for 8B on one A100."""
    drafting = replace(
        ONE_A100,
        speculative="eagle",
        draft_branches=speculation.branches,
        draft_depth=speculation.depth,
    )
    read = sequences * context
    plain_s, plain_slope_s = StepTime(ONE_A100).decode_line(sequences)
    step_s, slope_s = StepTime(drafting).decode_line(sequences, speculation.draft_tokens + 1)
    steps = (plain_s + plain_slope_s * read) / (step_s + slope_s * read)
    return speculation.mean_tokens_per_step * steps


@pytest.mark.parametrize(
    ("speculation", "mean"),
    [
        (chain(5, 0.78), (1 - 0.78**6) / 0.22),
        (chain(3, 0.0), 1.0),
        (chain(3, 1.0), 4.0),
        (tree(2, 3, 0.6), (1 - 0.84**4) / 0.16),
        (tree(3, 2, 0.5), (1 - 0.875**3) / 0.125),
        (tree(2, 3, 1.0), 4.0),
    ],
)
def test_a_step_gives_the_mean_of_the_formula(speculation: SpeculativeConfig, mean: float) -> None:
    """A step gives (1 − β^(d+1))/(1 − β) tokens, β = 1 − (1 − α)^b; all nodes count as drafted."""
    core = EngineCore(config(speculation=speculation), LinearTimer())

    play(core, [Ask(0, np.arange(20, dtype=np.int32) + i, 400) for i in range(30)])

    counters = core.counters()
    assert counters.verify_steps
    brought = 1 + (counters.accepted_tokens or 0) / counters.verify_steps
    assert brought == pytest.approx(mean, rel=0.03)
    assert speculation.mean_tokens_per_step == pytest.approx(mean)
    assert counters.drafted_tokens == counters.verify_steps * speculation.draft_tokens


def test_a_tree_of_two_by_three_drafts_fourteen() -> None:
    """A tree of 2 branches and 3 levels has 2 + 4 + 8 nodes; a chain is a tree of one branch."""
    assert tree_tokens(2, 3) == 14
    assert tree_tokens(1, 5) == 5
    assert tree(1, 5, 0.7).level_acceptance == pytest.approx(chain(5, 0.7).level_acceptance)


def test_a_tree_gives_more_tokens_per_step_than_its_longest_chain() -> None:
    """Branches give more accepted tokens, and the drafter runs equally often."""
    assert tree(2, 3, 0.6).mean_tokens_per_step > 1.3 * chain(3, 0.6).mean_tokens_per_step
    deep = replace(ONE_A100, speculative="eagle", draft_branches=2, draft_depth=3)
    flat = replace(ONE_A100, speculative="eagle")
    tree_s, chain_s = (StepTime(deep).decode_line(1, 15)[0], StepTime(flat).decode_line(1, 4)[0])
    assert chain_s < tree_s < 1.15 * chain_s
    assert tree_s < StepTime(flat).decode_line(1, 15)[0]


def test_the_gain_falls_with_the_batch_and_ends_as_a_loss() -> None:
    """EAGLE on an A100 gains most with one sequence, less with 56, nothing with 256."""
    gains = {count: gain(chain(3, 0.6), count) for count in (2, 32, 56, 128, 256)}

    assert gains[2] > 1.3
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert gains[56] / gains[2] < 0.8
    assert gains[256] < 1
    assert gain(tree(2, 3, 0.6), 1) > gain(chain(3, 0.6), 1)
    assert gain(tree(2, 3, 0.6), 56) < 1 < gain(chain(3, 0.6), 56)


def test_drafts_that_are_rarely_accepted_are_slower_at_any_batch_size() -> None:
    """At acceptance 0.3 five drafts give 1.4 tokens per step, which costs more than it gains."""
    assert all(gain(chain(5, 0.3), count) < 1 for count in (1, 8, 64))


def test_the_sweep_file_names_a_tree(tmp_path: Path) -> None:
    """Branches and depth determine the label, the core's tree and the drafter's runs."""
    read = sweep(
        tmp_path, toggles="[{speculative: [off, {method: eagle, tree: {branches: 2, depth: 3}}]}]"
    )
    value = read.toggles[0].values[1]
    settings = settings_of(speculative=value)

    assert value.label == "eagle(tree=2x3)"
    assert engine_config(settings).speculation == tree(2, 3, 0.85)
    assert engine_config(settings).queries == 15
    built = deployment(settings)
    assert (built.draft_branches, built.draft_depth) == (2, 3)
    with EmbeddedAdapter().start(settings) as endpoint:
        assert endpoint.effective()["speculative"] == "eagle(tree=2x3)"
        assert any("2 branches and depth 3" in said for said in endpoint.facts()["assumptions"])


def test_a_lookup_drafts_no_tree() -> None:
    """Prompt lookup finds one continuation, so a tree is refused with the reason."""
    with pytest.raises(UnsupportedToggleError, match="one continuation"):
        EmbeddedAdapter().check(settings_of(speculative=ToggleValue("ngram", (("tree", "2x3"),))))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{branches: 2}", "the key 'depth' is missing"),
        ("{branches: 1, depth: 3}", "branches: must be at least 2, found 1"),
        ("{branches: 4, depth: 4}", "are 340 tokens a step; at most 64 are drafted"),
        ("{branchs: 2, depth: 3}", "unknown key 'branchs'; did you mean 'branches'?"),
        ("{branches: 2, depth: 3}, tokens: 5", "leave 'tokens' out"),
    ],
)
def test_an_invalid_tree_is_refused(tmp_path: Path, value: str, message: str) -> None:
    """The error names a missing, too small, too large, misspelt or repeated key."""
    found = problems(
        tmp_path, toggles=f"[{{speculative: [off, {{method: eagle, tree: {value}}}]}}]"
    )
    assert any(message in line for line in found), found


def test_a_tree_is_verified_by_the_counters(tmp_path: Path) -> None:
    """A tree in a sweep is verified by its drafted tokens, 14 per step."""
    arms = swept(
        tmp_path,
        "model: llama-3-8b\nhardware: {gpu: a100-80gb}\nengines: [embedded]\nblocks: 1\n"
        "toggles: [{speculative: [off, {method: eagle, tree: {branches: 2, depth: 3}}]}]\n"
        "workloads: [{kind: shared-prefix, prefix_tokens: 64, suffix_tokens: 16, "
        "output_tokens: 30}]\nload: [{concurrency: 4, requests: 12}]\n",
    )

    drafted = arms["speculative=eagle(tree=2x3)"]
    assert drafted["evidence"]["speculative"]["verdict"] == "verified"
    counters = drafted["counters"]
    assert counters["drafted_tokens"] == 14 * counters["verify_steps"]
    assert arms["baseline"]["evidence"]["speculative"]["verdict"] == "verified"
