"""Mixture-of-experts models: bytes read, FLOPs and memory of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.adapters.embedded.step_time.deployment import Deployment
from harness.adapters.embedded.step_time.forward import ForwardPass
from harness.adapters.embedded.step_time.hardware import find_gpu
from harness.adapters.embedded.step_time.memory import weight_bytes
from harness.adapters.embedded.step_time.model_shape import Experts
from harness.adapters.embedded.step_time.models import find_model
from harness.adapters.embedded.step_time.roofline import StepTime

MIXTRAL = Deployment(model=find_model("mixtral-8x7b"), gpu=find_gpu("a100-80gb"), tensor_parallel=2)
QWEN = Deployment(model=find_model("qwen3-30b-a3b"), gpu=find_gpu("a100-80gb"))


def decode_ms(deployment: Deployment, sequences: int) -> float:
    """Return the milliseconds of a step that decodes sequences without context."""
    return 1e3 * StepTime(deployment).decode_line(sequences)[0]


@pytest.mark.parametrize(("count", "per_token"), [(8, 2), (128, 8)])
@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_touched_experts_are_the_mean_of_drawing_them(
    count: int, per_token: int, tokens: int
) -> None:
    """e·(1 − (1 − k/e)^tokens) equals the mean of random draws of k experts for each token."""
    random = np.random.default_rng(7)
    drawn = [
        len({e for _ in range(tokens) for e in random.permutation(count)[:per_token].tolist()})
        for _ in range(300)
    ]

    touched = Experts(count=count, per_token=per_token, intermediate=1).touched(tokens)

    assert touched == pytest.approx(np.mean(drawn), rel=0.03)


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    """One token needs two of eight experts; a thousand tokens need all eight."""
    experts = Experts(count=8, per_token=2, intermediate=1)
    assert experts.touched(1) == pytest.approx(2)
    assert experts.touched(1000) == pytest.approx(8)
    assert experts.touched(0) == 0


def test_active_weights_match_the_published_numbers() -> None:
    """A token uses 12.9 of 46.7 billion weights in Mixtral-8x7B, 3.3 of 30.5 in Qwen3-30B-A3B."""
    for name, billions in (("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3), ("mixtral-8x22b", 39)):
        model = find_model(name)
        idle = model.layers * (model.layer_parameters - model.active_layer_parameters)
        assert (model.parameters - idle) / 1e9 == pytest.approx(billions, rel=0.03)


def test_all_experts_lie_in_memory() -> None:
    """Memory contains all 46.7 billion weights of 2 bytes, not only the active ones."""
    assert weight_bytes(MIXTRAL.model) == 2 * 46_702_792_704


def test_the_roof_reads_the_experts_that_are_needed_and_computes_the_active_ones() -> None:
    """One token is memory-bound and 8,192 tokens are compute-bound, at known times."""
    model, step = MIXTRAL.model, StepTime(MIXTRAL)
    head = model.vocabulary * model.hidden
    one = model.layers * (model.common_parameters + 2 * model.expert_parameters) + head
    active = model.layers * model.active_layer_parameters

    read_s = step.roof_s(1, 1, 0, ())
    computed_s = step.roof_s(0, 1, 0, [(8192, 0)]) - step.roof_s(0, 1, 0, [(4096, 0)])

    assert read_s == pytest.approx((2 * one + 131_072) / 2 / 2.039e12, rel=1e-6)
    pairs = 8192 * 8193 // 2 - 4096 * 4097 // 2
    attention = 4 * model.layers * model.heads * model.head_dim * pairs
    assert computed_s == pytest.approx((2 * active * 4096 + attention) / 2 / 312e12, rel=1e-6)


def test_a_few_sequences_read_more_experts_each() -> None:
    """Unlike in a dense model, 8 sequences take much longer than one: they need more experts."""
    dense = replace(MIXTRAL, model=find_model("llama-3-8b"))
    assert decode_ms(MIXTRAL, 8) > 2.2 * decode_ms(MIXTRAL, 1)
    assert decode_ms(dense, 8) < 1.2 * decode_ms(dense, 1)
    assert decode_ms(QWEN, 64) > 4 * decode_ms(QWEN, 1)


def test_a_mixture_is_faster_than_the_dense_model_of_its_size() -> None:
    """One token of Mixtral reads 13 of 47 billion weights, in under half the time of all."""
    model = MIXTRAL.model
    wide = replace(model, experts=None, intermediate=8 * 14336, name="dense-47b")
    assert decode_ms(MIXTRAL, 1) < 0.5 * decode_ms(replace(MIXTRAL, model=wide), 1)


def test_an_eagle_head_of_a_mixture_is_dense() -> None:
    """EAGLE's layer has one MLP as wide as the experts of one token."""
    drafter = replace(MIXTRAL, speculative="eagle").drafter
    assert drafter is not None
    assert drafter.experts is None
    assert drafter.intermediate == 2 * 14336


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([MIXTRAL, QWEN]))
def test_more_tokens_never_take_less_time(tokens: int, deployment: Deployment) -> None:
    """One more token never makes a step faster, for any number of experts."""
    layers = ForwardPass(deployment, deployment.model, tensor_parallel=deployment.tensor_parallel)
    assert layers.dense_s(tokens) <= layers.dense_s(tokens + 1)


def test_reports_state_that_experts_were_not_measured() -> None:
    """Only a mixture-of-experts model has this assumption."""
    said = [
        any("no kernel of experts" in sentence for sentence in StepTime(one).assumptions())
        for one in (MIXTRAL, replace(MIXTRAL, model=find_model("llama-3-8b")))
    ]
    assert said == [True, False]
