"""Predictions of a real engine with the embedded engine: the same schedule, predicted step times.

Step times come from the roofline model for known models and GPUs, otherwise from a fitted profile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.adapters.base import AS_IT_IS, BASELINE, EngineError, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import (
    EmbeddedEndpoint,
    deployment,
    engine_config,
    scheduler_config,
    step_profile,
    step_time,
)
from harness.adapters.embedded.engine import EngineConfig, EngineCore
from harness.adapters.embedded.step_time import StepTime, known_step_errors

_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedValues:
    """Reported values of a real engine that its prediction uses; None: not reported."""

    kv_tokens: int | None = None
    block_tokens: int | None = None
    tokens_per_step: float | None = None  # tokens per verify step, including the target's own


def as_scheduled(settings: EngineSettings) -> EngineSettings:
    """Return the settings of a real engine, reduced to those that the embedded engine supports.

    The attention backend becomes `auto`. A server that the harness did not start is assumed to run
    with the baseline's toggles.
    """
    usual = {name: BASELINE.get(name, value) for name, value in settings.toggles.items()}
    toggles = {
        name: usual[name] if value == AS_IT_IS else value
        for name, value in settings.toggles.items()
    }
    toggles["attention_backend"] = ToggleValue("auto")
    dtype = settings.dtype if settings.dtype in ("bfloat16", "float16") else "auto"
    return replace(settings, toggles=toggles, dtype=dtype)


def predicted_endpoint(settings: EngineSettings, reported: ReportedValues) -> EmbeddedEndpoint:
    """Return an embedded engine with the step times of `settings`.

    Uses the number of KV blocks that the real engine reported, if any. Raises `EngineError` for an
    unknown model or GPU, or a model that does not fit.
    """
    config = engine_config(settings)
    if reported.kv_tokens and reported.block_tokens:
        config = _config(settings, reported.kv_tokens, reported.block_tokens)
    config = _accepting(config, reported.tokens_per_step)
    return EmbeddedEndpoint(settings, EngineCore(config, step_time(settings)))


def prediction_basis(settings: EngineSettings) -> dict[str, Any]:
    """Return the basis of a prediction and its known error (a share; None if unknown)."""
    if profile := step_profile(settings):
        return {
            "basis": profile.sentence,
            "errors": profile.error_sentences,
            "error_share": profile.error_share,
        }
    gpu = deployment(settings).gpu
    known = known_step_errors(gpu)
    return {
        "basis": f"step times of {gpu.name}: {gpu.basis}",
        "errors": [one.sentence for one in known],
        "error_share": max((one.worst_percent / 100 for one in known), default=None),
    }


def roof_sides_s(
    settings: EngineSettings, sequences: float, context_tokens: float, prompt: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the floor of a decode step and of a prefill, each as seconds of (bytes, FLOPs).

    The decode step has `sequences` sequences that read `context_tokens` in total; `prompt` is
    (new, cached) tokens. Raises `EngineError` for an unknown model or GPU.
    """
    timer, queries = StepTime(deployment(settings)), engine_config(settings).queries
    rows = max(1, round(sequences))
    decode = timer.roof_sides_s(rows, queries, round(context_tokens), [])
    return decode, timer.roof_sides_s(0, 1, 0, [prompt])


def _config(settings: EngineSettings, kv_tokens: int, block_tokens: int) -> EngineConfig:
    if kv_tokens < settings.max_model_len:
        raise EngineError(
            f"the KV cache of {kv_tokens:,} tokens is smaller than max_model_len "
            f"{settings.max_model_len:,}"
        )
    return scheduler_config(settings, kv_tokens // block_tokens, block_tokens)


def _accepting(config: EngineConfig, tokens_per_step: float | None) -> EngineConfig:
    """Return `config` with the acceptance that gives `tokens_per_step` tokens per verify step."""
    speculation = config.speculation
    if speculation is None or tokens_per_step is None:
        return config
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # bisection: the mean increases with the acceptance
        middle = (low + high) / 2
        mean = replace(speculation, acceptance=middle).mean_tokens_per_step
        low, high = (middle, high) if mean < tokens_per_step else (low, middle)
    return replace(config, speculation=replace(speculation, acceptance=(low + high) / 2))
